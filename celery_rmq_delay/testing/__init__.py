"""Private RabbitMQ and Redis servers for tests, and pytest fixtures on top of them."""

from celery_rmq_delay.testing.broker import PrivateBroker
from celery_rmq_delay.testing.errors import PrivateServerError, ServerNotFoundError, ServerStartError

__all__ = ["PrivateBroker", "PrivateServerError", "ServerNotFoundError", "ServerStartError"]
