"""Celery's consumer without Celery's native delayed delivery."""

from __future__ import annotations

from typing import Any

from celery.worker.consumer import Consumer as CeleryConsumer

__all__ = ["ConsumerWithoutNativeDelay"]

_CELERY_NATIVE = "celery.worker.consumer.delayed_delivery:DelayedDelivery"
_Blueprint: Any = CeleryConsumer.Blueprint  # a class, which the stubs have as a variable


class ConsumerWithoutNativeDelay(CeleryConsumer):
    """The consumer for the setting ``exact_for="all"``: no message enters Celery's delay queues."""

    class Blueprint(_Blueprint):  # type: ignore[misc]
        """Celery's steps without delayed delivery."""

        default_steps = tuple(step for step in _Blueprint.default_steps if step != _CELERY_NATIVE)
