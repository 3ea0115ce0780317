"""Celery retries held by RabbitMQ: dead-letter and TTL delay queues instead of worker memory.

Typical imports of a project:

    from celery_rmq_delay import RetryableTask, install
"""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING

from .exceptions import RmqDelayError, SettingsError
from .installation import install
from .signals import before_requeue, requeue_failed, task_exhausted, task_parked, task_recovered

__version__ = version("celery-rmq-delay")

__all__ = [
    "RetryableTask",
    "RmqDelayError",
    "SettingsError",
    "before_requeue",
    "install",
    "requeue_failed",
    "task_exhausted",
    "task_parked",
    "task_recovered",
]


if TYPE_CHECKING:
    from .task import RetryableTask
else:

    def __getattr__(name: str) -> object:
        # Importing Celery's Task class resolves the current app, so the import waits for the first access.
        if name == "RetryableTask":
            from .task import RetryableTask

            return RetryableTask
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
