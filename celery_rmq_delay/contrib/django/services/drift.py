"""The difference between the messages in the delay queues and the parked tasks in the table."""

from __future__ import annotations

from datetime import datetime, timedelta

from ..models import TaskRecord, TaskState
from ..queries import capped_counts
from .counts import BrokerCounts

#: More parked tasks are not counted: the counts are exact, and repeated.
MOST = 100_000
#: Tasks that are due so soon, or since so short a time, may be in their delay queue or not.
_EDGE = timedelta(minutes=1)


def parked_difference(counts: BrokerCounts, now: datetime) -> int | None:
    """Return by how many messages the delay queues hold more than the table, beyond what is in flight.

    In flight are tasks that are due about now, and events that wait for a collector. Exact delays and native retries
    are left out. None where the broker does not answer, or more than `MOST` tasks are parked.
    """
    if not counts.ok:
        return None
    waiting = TaskRecord.objects.filter(state=TaskState.PARKED).exclude(delay_queue="")
    later = waiting.filter(due_at__gt=now + _EDGE)
    about_now = waiting.filter(due_at__gt=now - _EDGE, due_at__lte=now + _EDGE)
    found = capped_counts(MOST, later=later, about_now=about_now)
    if any(each.is_more for each in found.values()):
        return None
    held, moving = counts.parked - counts.exact, counts.events or 0
    least, most = found["later"].number - moving, found["later"].number + found["about_now"].number + moving
    return held - most if held > most else min(0, held - least)
