"""Celery retries held by RabbitMQ instead of worker memory."""
