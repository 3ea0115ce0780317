"""Celery's consumer without Celery's own delayed delivery."""

from __future__ import annotations

from typing import Any

from celery.worker.consumer import Consumer as CeleryConsumer

__all__ = [
    "ConsumerWithoutNativeDelay",
]

_NATIVE = "celery.worker.consumer.delayed_delivery:DelayedDelivery"
_Blueprint: Any = CeleryConsumer.Blueprint  # a class, which the stubs have as a variable


class ConsumerWithoutNativeDelay(CeleryConsumer):
    """What a worker runs where the setting ``exact_for`` is ``"all"``: nothing enters Celery's delay queues."""

    class Blueprint(_Blueprint):  # type: ignore[misc]
        """Celery's steps but one."""

        default_steps = tuple(step for step in _Blueprint.default_steps if step != _NATIVE)
