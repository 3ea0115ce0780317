"""The rows that a batch becomes, in the order of the columns of their statements. No I/O."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from typing import Any

from ....events import schema as events
from ....events.fingerprint import normalise_message
from ....events.schema import Event
from ....headers import printable
from ..messages import StoredMessage
from ..models import LookupValue, TaskState
from .facts import Fact
from .reading import Unreadable
from .statements import COUNTERS

Row = tuple[Any, ...]
Name = tuple[str, str]

#: What a `Tally` counts together.
SLOT = timedelta(minutes=10)
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_COUNTED = {
    events.PARKED: "parked",
    events.FORWARDED: "parked",
    events.RECOVERED: "recovered",
    events.EXHAUSTED: "exhausted",
    events.ROLLUP: "succeeded",
}
_LONGEST_REASON = 32


def waves(told: Iterable[Fact]) -> Iterator[list[Fact]]:
    """Yield the facts, each task once in a wave, oldest first, each wave in the order of the task ids and their lives.

    No statement can change a row twice, and collectors that take rows in one order wait for each other in no circle.
    """
    by_task: dict[tuple[str, str], list[Fact]] = {}
    for fact in told:
        by_task.setdefault(fact.key, []).append(fact)
    tasks = sorted(by_task.items())
    for _, facts in tasks:
        facts.sort(key=lambda fact: fact.version)
    for number in range(max(map(len, by_task.values()), default=0)):
        yield [facts[number] for _, facts in tasks if len(facts) > number]


def record(fact: Fact, groups: Mapping[str, int], now: datetime) -> Row:
    """Return the row of a task as one fact has it; ``groups`` are the ids of the failure groups by fingerprint."""
    event, state = fact.event, fact.state
    at = event.occurred_at
    return (
        *fact.key,
        event.root_id or "",
        event.parent_id or "",
        event.group_id or "",
        event.task,
        state.value if state else "",
        now,
        event.queue,
        event.exchange or "",
        event.routing_key or "",
        event.worker,
        event.generation,
        event.attempt,
        event.max_retries,
        event.crashes,
        event.tier,
        event.delay_ms,
        event.delay_queue or "",
        json.dumps(event.ladder_ms),
        at if state is TaskState.PARKED else None,
        event.due_at,
        event.first_failed_at,
        at if state is TaskState.EXHAUSTED else None,
        at if state is TaskState.RECOVERED else None,
        event.exception_type or "",
        event.exception_message or "",
        _reason(event),
        groups.get(event.fingerprint) if event.fingerprint else None,
        event.args_preview or "",
        event.kwargs_preview or "",
        fact.call,
        event.life is not None,
    )


def attempt(fact: Fact, record_id: int) -> Row:
    """Return the row of one attempt of the task with that record."""
    event = fact.event
    return (
        event.event_id,
        record_id,
        event.kind,
        event.generation,
        event.attempt,
        event.occurred_at,
        event.runtime_ms,
        event.worker,
        event.tier,
        event.delay_ms,
        event.due_at,
        event.exception_type or "",
        event.exception_message or "",
        event.frame or "",
        fact.traceback,
        _reason(event),
    )


def _reason(event: Event) -> str:
    return (event.reason or "")[:_LONGEST_REASON]


def payload(kept: StoredMessage, generation: int, record_id: int, now: datetime) -> Row:
    """Return the row of a message that is kept for the task with that record."""
    # PostgreSQL's JSON has no NUL.
    properties = {name: printable(each) if isinstance(each, str) else each for name, each in kept.properties.items()}
    return record_id, generation, kept.body, kept.headers, json.dumps(properties), now


def unreadable(found: Iterable[Unreadable], now: datetime) -> list[Row]:
    """Return the rows of what could not be read."""
    rows = [(each.digest, each.queue, each.error, each.body, each.headers, "{}", now) for each in found]
    return sorted(rows, key=lambda row: row[0])


# -- names and counters --------------------------------------------------------------------------------------------


def groups(failures: Iterable[Event]) -> list[Row]:
    """Return the rows of the failure groups that these events belong to, seen from the first of them to the last."""
    found: dict[str, Row] = {}
    for event in failures:
        if event.fingerprint:
            at = event.occurred_at
            known = found.get(event.fingerprint)
            message = normalise_message(event.exception_message or "") if known is None else known[2]
            first, last = (at, at) if known is None else (min(at, known[4]), max(at, known[5]))
            named = event.fingerprint, event.exception_type or "", message, event.frame or ""
            found[event.fingerprint] = (*named, first, last, "", False)
    return [found[fingerprint] for fingerprint in sorted(found)]


def names(told: Iterable[Event]) -> set[Name]:
    """Return the queues, tasks and errors that events name, as (kind, value)."""
    found: set[Name] = set()
    for event in told:
        found.add((LookupValue.Kind.QUEUE.value, event.queue))
        found.add((LookupValue.Kind.TASK.value, event.task))
        found.add((LookupValue.Kind.ERROR.value, event.exception_type or ""))
    return {(kind, value) for kind, value in found if value}


def tallies(counted: Iterable[Event]) -> list[Row]:
    """Return what new events add to the counters."""
    found: dict[tuple[datetime, str, str, str], dict[str, int]] = {}
    for event in counted:
        counter = _COUNTED.get(event.kind)
        if counter is not None:
            key = _slot(event.occurred_at), event.queue, event.task, event.fingerprint or ""
            counts = found.setdefault(key, dict.fromkeys(COUNTERS, 0))
            counts[counter] += 1 if event.ok_count is None else event.ok_count
    return [(*key, *found[key].values()) for key in sorted(found)]


def _slot(at: datetime) -> datetime:
    return at - (at - _EPOCH) % SLOT


def distinct(rows: Sequence[Row]) -> list[Row]:
    """Return the first row of each key, which is a row's first value, in the order of the keys."""
    found: dict[str, Row] = {}
    for row in rows:
        found.setdefault(row[0], row)
    return [found[key] for key in sorted(found)]
