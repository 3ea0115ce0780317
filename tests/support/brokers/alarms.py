"""Alarms of a broker: it stops reading from connections that publish."""

from collections.abc import Iterator
from contextlib import contextmanager

from celery_rmq_delay.testing import PrivateBroker
from tests.support.waiting import wait_for

_STATES = "[S || [{state, S}] <- rabbit_networking:connection_info_all([state])]"


@contextmanager
def alarm(broker: PrivateBroker, resource: str = "memory") -> Iterator[None]:
    """Let a broker be out of ``memory`` or ``disk`` for the length of the block.

    The block begins when every connection is blocked by the alarm.
    """
    source = f"{{resource_limit, {resource}, node()}}"
    try:
        broker.evaluate(f"rabbit_alarm:set_alarm({{{source}, []}})")
        wait_for(lambda: "running" not in broker.evaluate(_STATES), "connections blocked by the alarm")
        yield
    finally:
        broker.evaluate(f"rabbit_alarm:clear_alarm({source})")


def slow_disk(broker: PrivateBroker) -> None:
    """Suspend for a second the log to which quorum queues write each command before they execute it."""
    broker.evaluate(
        "spawn(fun() -> erlang:suspend_process(whereis(ra_log_wal)), timer:sleep(1000) end), timer:sleep(100), ok"
    )
