"""Decides from the canaries' outcomes whether the rest of a requeue is sent."""

from __future__ import annotations

from datetime import datetime, timedelta

from django.db.models import Max

from ...models import Operation, OperationItem, TaskRecord, TaskState
from ...queries import plural
from .. import clock

#: Seconds to wait for events of the canaries, unless the operation's details have ``canary_timeout``.
TIMEOUT = 600


def judge(operation: Operation) -> str | None:
    """Return None while the outcome is open, "" when the rest may be sent, or the reason why not.

    A canary is sound when it has recovered. One that failed again and is parked is not: the cause persists.
    """
    items = OperationItem.objects.filter(operation=operation, is_canary=True)
    sent = items.filter(outcome=OperationItem.Outcome.OK)
    generations = dict(sent.values_list("record_id", "generation"))
    sound, parked, exhausted = 0, 0, 0
    for key, generation, state in TaskRecord.objects.filter(pk__in=generations).values_list(
        "pk", "generation", "state"
    ):
        if generation > generations[key]:
            sound += state == TaskState.RECOVERED
            parked += state == TaskState.PARKED
            exhausted += state in (TaskState.EXHAUSTED, TaskState.DISCARDED)
    if exhausted:
        verb = plural(exhausted, "is", "are")
        return f"{exhausted} of {len(generations)} canaries {verb} exhausted again: the rest was not sent"
    if parked:
        waits = plural(parked, "waits for its retry", "wait for their retries")
        return f"{parked} of {len(generations)} canaries failed again and {waits}: the rest was not sent"
    if not generations:
        return "no canary could be requeued: the rest was not sent"
    if sound == len(generations):
        return ""
    if clock.now() < deadline(operation):
        return None
    silent = len(generations) - sound
    return (
        f"No event of {silent} {plural(silent, 'canary', 'canaries')} in {timeout(operation)} s: the rest was not "
        "sent. Check that workers and rmq_delay_collect run"
    )


def timeout(operation: Operation) -> int:
    """Return the seconds to wait for events of the canaries."""
    seconds: int = operation.details.get("canary_timeout", TIMEOUT)
    return seconds


def deadline(operation: Operation) -> datetime:
    """Return the time until which events of the canaries are waited for: counted from the last one that was sent."""
    sent = OperationItem.objects.filter(operation=operation, is_canary=True, outcome=OperationItem.Outcome.OK)
    last: datetime = sent.aggregate(last=Max("finished_at"))["last"] or clock.now()
    return last + timedelta(seconds=timeout(operation))
