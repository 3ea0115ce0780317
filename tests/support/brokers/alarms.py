"""The alarms of a broker: it reads nothing more from connections that publish."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from celery_rmq_delay.testing import PrivateBroker
from tests.support.waiting import wait_for

_SOURCE = "{{resource_limit, {resource}, node()}}"
_STATES = "[S || [{state, S}] <- rabbit_networking:connection_info_all([state])]"


def raise_alarm(broker: PrivateBroker, resource: str = "memory") -> None:
    """Raise the alarm of ``memory`` or ``disk``, and wait until every connection heeds it."""
    broker.evaluate(f"rabbit_alarm:set_alarm({{{_SOURCE.format(resource=resource)}, []}})")
    wait_for(lambda: "running" not in broker.evaluate(_STATES), "connections that heed the alarm")


def end_alarm(broker: PrivateBroker, resource: str = "memory") -> None:
    """End the alarm; nothing happens where there is none."""
    broker.evaluate(f"rabbit_alarm:clear_alarm({_SOURCE.format(resource=resource)})")


@contextmanager
def alarm(broker: PrivateBroker, resource: str = "memory") -> Iterator[None]:
    """Let a broker be out of ``memory`` or ``disk`` for the length of the block."""
    try:
        raise_alarm(broker, resource)
        yield
    finally:
        end_alarm(broker, resource)
