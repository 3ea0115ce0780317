"""Messages that a process publishes into delay queues: calls with a delay, and retries as new messages."""
