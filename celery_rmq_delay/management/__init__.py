"""RabbitMQ's management HTTP API: client, errors, records, and policies.

May import `app` and what is below it.
"""
