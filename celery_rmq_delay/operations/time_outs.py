"""Tasks that may take longer than RabbitMQ leaves a message unacknowledged."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from .findings import Finding

if TYPE_CHECKING:
    from ..app.state import AppState

#: Seconds: RabbitMQ's default ``consumer_timeout``. Neither AMQP nor the management API shows another one.
DEFAULT = 30 * 60
#: How many tasks are named.
_SHOWN = 5


def time_out_findings(delay: AppState) -> Iterator[Finding]:
    """Report tasks without a time limit below the default time-out: with ``acks_late`` it applies to them."""
    names = sorted(task.name for task in delay.retryable_tasks() if not _ends_in_time(task.time_limit))
    if not names:
        return
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    yield Finding(
        "consumer-timeout",
        "note",
        "consumer_timeout",
        f"These tasks have no time_limit below 30 minutes: {', '.join(names[:_SHOWN])}{more}. From one that runs for "
        "longer than its consumer_timeout (30 minutes by default) RabbitMQ takes the message back, and the worker "
        "reconnects.",
        "If a task takes that long, set consumer_timeout in rabbitmq.conf to more than the longest one takes; or set "
        "time_limit.",
    )


def _ends_in_time(limit: float | None) -> bool:
    return limit is not None and 0 < limit < DEFAULT
