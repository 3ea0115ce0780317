"""The command `celery rmq-delay`: parses options, calls one operation and prints its result."""
