"""Signals of Django about retried tasks, sent by the collector after it has committed what it heard.

``sender`` is `TaskRecord`, ``record`` the task as the tables have it, with its failure group. Each is sent at most
once: not where the collector dies between its commit and the signal. A receiver that blocks, blocks the collector; one
that raises is logged. The worker's own signals are in `celery_rmq_delay.signals`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from django.db import DatabaseError
from django.dispatch import Signal

from .models import TaskRecord, TaskState

__all__ = [
    "BY_STATE",
    "announce",
    "task_exhausted",
    "task_parked",
    "task_recovered",
]

logger = logging.getLogger(__name__)

task_parked = Signal()
task_recovered = Signal()
task_exhausted = Signal()

BY_STATE = {
    TaskState.PARKED: task_parked,
    TaskState.RECOVERED: task_recovered,
    TaskState.EXHAUSTED: task_exhausted,
}

#: Records that are read at a time.
_PAGE = 500


def announce(changes: Iterable[tuple[str, str]]) -> None:
    """Send the signals of tasks whose states have changed: pairs of state and task id, in their order. Never raises.

    Reads the records where somebody receives the signal, and only there.
    """
    heard = [(state, task_id) for state, task_id in changes if _has_receivers(state)]
    for start in range(0, len(heard), _PAGE):
        page = heard[start : start + _PAGE]
        try:
            records = TaskRecord.objects.select_related("group").in_bulk(
                {task_id for _, task_id in page}, field_name="task_id"
            )
        except DatabaseError:
            logger.exception("%d changes of tasks are announced to nobody", len(heard) - start)
            return
        for state, task_id in page:
            if task_id in records:
                BY_STATE[TaskState(state)].send_robust(sender=TaskRecord, record=records[task_id])


def _has_receivers(state: str) -> bool:
    signal = BY_STATE.get(TaskState(state))
    return signal is not None and signal.has_listeners(TaskRecord)
