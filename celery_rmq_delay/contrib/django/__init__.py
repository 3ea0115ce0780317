"""The Django app: tables of retried tasks, the collector that fills them, and the admin."""
