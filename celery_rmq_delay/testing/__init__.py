"""Private RabbitMQ and Redis servers for tests, and pytest fixtures on top of them."""

from celery_rmq_delay.testing.broker import PrivateBroker
from celery_rmq_delay.testing.cluster import PrivateCluster
from celery_rmq_delay.testing.errors import PrivateServerError, ServerNotFoundError, ServerStartError
from celery_rmq_delay.testing.redis import PrivateRedis

__all__ = [
    "PrivateBroker",
    "PrivateCluster",
    "PrivateRedis",
    "PrivateServerError",
    "ServerNotFoundError",
    "ServerStartError",
]
