"""Signals and the lateness metric for a batch that the collector has committed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime

from ....events.schema import Event
from ....headers import FIRST_LIFE
from ..models import Attempt
from ..signals import announce
from .facts import STATES

logger = logging.getLogger(__name__)

#: Events of a batch whose lateness is measured: in a retry storm a sample is enough.
SAMPLE = 200
#: An attempt that starts more seconds early than this was run by hand; less can be clock skew between workers.
EARLY = 1.0

Observe = Callable[[str, float], object]


def notify(new: Sequence[Event], observe: Observe | None = None) -> None:
    """Send signals for new events, and observe how late retries started. Never raises: the batch is committed.

    ``observe`` is called with the queue and the lateness, in seconds, of each retry.
    """
    try:
        in_order = sorted(new, key=lambda event: event.occurred_at)
        announce(
            (STATES[event.kind], event.task_id, event.life)
            for event in in_order
            if event.kind in STATES and event.task_id
        )
        if observe is not None:
            for queue, seconds in lateness(new):
                observe(queue, seconds)
    except Exception:
        logger.exception("Signals or metrics of a collected batch failed")


def lateness(new: Sequence[Event]) -> Iterator[tuple[str, float]]:
    """Yield queue and lateness of the first `SAMPLE` retries: seconds from when one was due until it started.

    The event of the previous attempt has the due time. Retries that were run by hand before it are left out.
    """
    started = {
        (event.task_id or "", event.life or FIRST_LIFE, event.generation, event.attempt - 1): (
            event.queue,
            event.started_at,
        )
        for event in [event for event in new if event.started_at and event.attempt][:SAMPLE]
    }
    for key, due_at in _dues({task_id for task_id, *_ in started}):
        queue, started_at = started.get(key, ("", None))
        if started_at is not None and (seconds := (started_at - due_at).total_seconds()) > -EARLY:
            yield queue, max(0.0, seconds)


def _dues(task_ids: set[str]) -> Iterator[tuple[tuple[str, str, int, int], datetime]]:
    """Yield (task id, life, generation, attempt) and the due time of the next attempt, of these tasks."""
    if not task_ids:
        return
    rows = Attempt.objects.filter(record__task_id__in=task_ids, due_at__isnull=False)
    for task_id, life, generation, attempt, due_at in rows.order_by().values_list(
        "record__task_id", "record__life", "generation", "attempt", "due_at"
    ):
        if due_at is not None:
            yield (task_id, life, generation, attempt), due_at
