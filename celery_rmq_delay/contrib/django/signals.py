"""Django signals about retried tasks, sent by the collector after a commit.

``sender`` is `TaskRecord`, ``record`` the task's row with its failure group. Each signal is sent at most once: it is
lost if the collector dies between commit and signal. A receiver that blocks also blocks the collector; exceptions of
receivers are logged. The worker's own signals are in `celery_rmq_delay.signals`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

from django.db import DatabaseError
from django.dispatch import Signal

from ...headers import FIRST_LIFE
from .models import TaskRecord, TaskState

__all__ = [
    "BY_STATE", "announce", "announce_ran_after_discard", "task_exhausted", "task_parked", "task_ran_after_discard",
    "task_recovered",
]  # fmt: skip

logger = logging.getLogger(__name__)

task_parked = Signal()
task_recovered = Signal()
task_exhausted = Signal()
#: A task ran although a user had discarded it.
task_ran_after_discard = Signal()

BY_STATE = {TaskState.PARKED: task_parked, TaskState.RECOVERED: task_recovered, TaskState.EXHAUSTED: task_exhausted}

#: Records that are read at a time.
_PAGE = 500


def announce(changes: Iterable[tuple[str, str, str | None]]) -> None:
    """Send the signals of tasks whose states have changed; ``changes`` are (state, task id, life), in order.

    Never raises. Reads only records whose signal has receivers.
    """
    received = [(state, (task_id, life or FIRST_LIFE)) for state, task_id, life in changes if _has_receivers(state)]
    for start in range(0, len(received), _PAGE):
        page = received[start : start + _PAGE]
        try:
            found = TaskRecord.objects.select_related("failure_group").filter(
                task_id__in={task_id for _, (task_id, _life) in page}, life__in={life for _, (_id, life) in page}
            )
            records = {(record.task_id, record.life): record for record in found}
        except DatabaseError:
            logger.exception("Signals of %d changed tasks were not sent", len(received) - start)
            return
        for state, key in page:
            if key in records:
                BY_STATE[TaskState(state)].send_robust(sender=TaskRecord, record=records[key])


def announce_ran_after_discard(keys: Sequence[int]) -> None:
    """Send `task_ran_after_discard` for the records with these ids. Never raises."""
    if not keys or not task_ran_after_discard.has_listeners(TaskRecord):
        return
    try:
        records = list(TaskRecord.objects.select_related("failure_group").filter(pk__in=keys).order_by("pk"))
    except DatabaseError:
        logger.exception("Signals of %d tasks that ran after their discard were not sent", len(keys))
        return
    for record in records:
        task_ran_after_discard.send_robust(sender=TaskRecord, record=record)


def _has_receivers(state: str) -> bool:
    signal = BY_STATE.get(TaskState(state))
    return signal is not None and signal.has_listeners(TaskRecord)
