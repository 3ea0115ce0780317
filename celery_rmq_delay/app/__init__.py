"""The state that `install` attaches to an app: settings, queues, exact delays, and the records in the broker."""
