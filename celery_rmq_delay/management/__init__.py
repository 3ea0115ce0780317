"""RabbitMQ's management HTTP API: client, errors, records and policies.

May import `amqp` and the modules at the top of the package.
"""
