"""RabbitMQ's management HTTP API: client, errors, records and policies."""
