"""Private RabbitMQ and Redis servers for tests, and pytest fixtures on top of them.

The names below are imported at first use: pytest loads this package in every run, for the fixtures of
:mod:`celery_rmq_delay.testing.plugin`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
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

_MODULES = {"PrivateBroker": "broker", "PrivateCluster": "cluster", "PrivateRedis": "redis"}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES.get(name, 'errors')}"), name)
