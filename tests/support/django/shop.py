"""A Celery app that the Django app finds, on any broker."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from celery import Celery
from django.test import override_settings

from celery_rmq_delay import RetryableTask
from tests.support.apps import app_of

PATH = f"{__name__}.found"

found: Celery


def charge(*_args: Any, **_kwargs: Any) -> None:
    """Do nothing."""


def make(
    broker: str, *, prefix: str = "rmq_delay", queue: str = "payments", rmq_delay: Any = None, **conf: Any
) -> Celery:
    """Return an app with one queue and one task, ``payments.charge``."""
    settings = {"prefix": prefix, "tiers": ["1h", "2h"], **(rmq_delay or {})}
    app = app_of(settings, broker=broker, **{"task_default_queue": queue, **conf})
    app.task(base=RetryableTask, name="payments.charge", shared=False)(charge)
    return app


@contextmanager
def of(app: Celery, **rmq_delay: Any) -> Iterator[Celery]:
    """Make ``app`` the project's; ``rmq_delay``: the Django settings, in lower case."""
    global found
    found = app
    settings = {name.upper(): value for name, value in rmq_delay.items()}
    with override_settings(RMQ_DELAY={"CELERY_APP": PATH, **settings}):
        yield app
