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


def notify(new: Sequence[Event], observe: Observe | None) -> None:
    """Send signals for new events, and observe how late retries started. Never raises: the batch is committed."""
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
    started: dict[tuple[str, str, int, int], tuple[str, datetime]] = {}
    for event in new:
        if event.started_at and event.attempt and len(started) < SAMPLE:
            key = event.task_id or "", event.life or FIRST_LIFE, event.generation, event.attempt - 1
            started[key] = event.queue, event.started_at
    task_ids = {task_id for task_id, *_ in started}
    before = Attempt.objects.filter(record__task_id__in=task_ids, due_at__isnull=False).order_by()
    columns = "record__task_id", "record__life", "generation", "attempt", "due_at"
    for task_id, life, generation, attempt, due_at in before.values_list(*columns):
        queue, started_at = started.get((task_id, life, generation, attempt), ("", None))
        if started_at and due_at and (seconds := (started_at - due_at).total_seconds()) > -EARLY:
            yield queue, max(0.0, seconds)
