"""The rows of a batch, as values by column name. No I/O."""

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
from .facts import Fact, Unreadable
from .statements import COUNTERS

Row = dict[str, Any]
Name = tuple[str, str]

#: The period of a `Tally`.
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
_OF_BOTH = ("generation", "attempt", "worker", "tier", "delay_ms", "due_at")
_OF_RECORD = (*_OF_BOTH, "queue", "max_retries", "crashes", "first_failed_at")
_TEXTS_OF_RECORD = (
    "root_id", "parent_id", "exchange", "routing_key", "delay_queue", "exception_type", "exception_message",
    "args_preview", "kwargs_preview",
)  # fmt: skip
_OF_ATTEMPT = (*_OF_BOTH, "event_id", "kind", "occurred_at", "runtime_ms")
_TEXTS_OF_ATTEMPT = ("exception_type", "exception_message", "frame")


def waves(facts: Iterable[Fact]) -> Iterator[list[Fact]]:
    """Yield the facts in waves, oldest first: each task once in a wave, in the order of the task ids and their lives.

    A statement cannot change a row twice, and collectors that lock rows in one order do not deadlock.
    """
    by_task: dict[tuple[str, str], list[Fact]] = {}
    for fact in facts:
        by_task.setdefault(fact.key, []).append(fact)
    tasks = sorted(by_task.items())
    for _, of_task in tasks:
        of_task.sort(key=lambda fact: fact.version)
    for number in range(max(map(len, by_task.values()), default=0)):
        yield [of_task[number] for _, of_task in tasks if len(of_task) > number]


def record(fact: Fact, groups: Mapping[str, int], now: datetime) -> Row:
    """Return the row of a task from one fact; ``groups`` are the ids of the failure groups by fingerprint."""
    event, state, (task_id, life) = fact.event, fact.state, fact.key
    at = event.occurred_at
    return {
        **_of_event(event, _OF_RECORD, _TEXTS_OF_RECORD),
        "task_id": task_id,
        "life": life,
        "canvas_id": event.group_id or "",
        "name": event.task,
        "state": state.value if state else "",
        "changed_at": now,
        "ladder_ms": json.dumps(event.ladder_ms),
        "parked_at": at if state is TaskState.PARKED else None,
        "exhausted_at": at if state is TaskState.EXHAUSTED else None,
        "recovered_at": at if state is TaskState.RECOVERED else None,
        "failure_group_id": groups.get(event.fingerprint) if event.fingerprint else None,
        "call_digest": fact.call,
        "is_named": event.life is not None,
    }


def runs(facts: Iterable[Fact]) -> list[Row]:
    """Return the last attempt that a worker ran of each task, in the order of the task ids and their lives."""
    ran = [fact for fact in facts if fact.state not in (None, TaskState.DISCARDED)]
    last = {fact.key: fact for fact in sorted(ran, key=lambda fact: fact.version)}
    return [
        {
            "task_id": task_id,
            "life": life,
            "generation": fact.event.generation,
            "attempt": fact.event.attempt,
            "ran_at": fact.event.occurred_at,
            "first_failed_at": fact.event.first_failed_at,
            "is_named": fact.event.life is not None,
        }
        for (task_id, life), fact in sorted(last.items())
    ]


def attempt(fact: Fact, record_id: int) -> Row:
    """Return the row of one attempt of the task with that record."""
    found = _of_event(fact.event, _OF_ATTEMPT, _TEXTS_OF_ATTEMPT)
    return {**found, "record_id": record_id, "traceback": fact.traceback}


def _of_event(event: Event, names: Iterable[str], texts: Iterable[str]) -> Row:
    """Return columns with the names of an event's fields; ``texts`` are empty where the event has none."""
    found = vars(event)
    return {
        **{name: found[name] for name in names},
        **{name: found[name] or "" for name in texts},
        "reason": (event.reason or "")[:_LONGEST_REASON],
    }


def payload(kept: StoredMessage, generation: int, record_id: int, now: datetime) -> Row:
    """Return the row of the stored message of the task with that record."""
    # PostgreSQL's JSON has no NUL.
    properties = {name: printable(each) if isinstance(each, str) else each for name, each in kept.properties.items()}
    return {
        "record_id": record_id,
        "generation": generation,
        "body": kept.body,
        "headers": kept.headers,
        "properties": json.dumps(properties),
        "stored_at": now,
    }


def unreadable(found: Iterable[Unreadable], now: datetime) -> list[Row]:
    """Return the rows of unreadable messages."""
    in_order = sorted({each.digest: each for each in found}.values(), key=lambda each: each.digest)
    return [{**vars(each), "properties": "{}", "received_at": now} for each in in_order]


# -- names and counters --------------------------------------------------------------------------------------------


def groups(failures: Iterable[Event]) -> list[Row]:
    """Return the rows of the failure groups of these events, with the times of their first and last event."""
    found: dict[str, Row] = {}
    for event in failures:
        if event.fingerprint:
            at = event.occurred_at
            known = found.get(event.fingerprint)
            found[event.fingerprint] = {
                "fingerprint": event.fingerprint,
                "exception_type": event.exception_type or "",
                "message": known["message"] if known else normalise_message(event.exception_message or ""),
                "frame": event.frame or "",
                "first_seen": min(at, known["first_seen"]) if known else at,
                "last_seen": max(at, known["last_seen"]) if known else at,
                "note": "",
                "muted": False,
            }
    return [found[fingerprint] for fingerprint in sorted(found)]


def names(named: Iterable[Event]) -> set[Name]:
    """Return the queues, tasks, errors and workers that events name, as (kind, value)."""
    found: set[Name] = set()
    for event in named:
        found.add((LookupValue.Kind.QUEUE.value, event.queue))
        found.add((LookupValue.Kind.TASK.value, event.task))
        found.add((LookupValue.Kind.ERROR.value, event.exception_type or ""))
        if event.kind != events.ROLLUP:  # a rollup has no task that the filter could find
            found.add((LookupValue.Kind.WORKER.value, event.worker))
    return {(kind, value) for kind, value in found if value}


def tallies(counted: Iterable[Event]) -> list[Row]:
    """Return the rows that new events add to the counters."""
    found: dict[tuple[datetime, str, str, str], dict[str, int]] = {}
    for event in counted:
        counter = _COUNTED.get(event.kind)
        if counter is not None:
            key = _slot(event.occurred_at), event.queue, event.task, event.fingerprint or ""
            counts = found.setdefault(key, dict.fromkeys(COUNTERS, 0))
            counts[counter] += 1 if event.ok_count is None else event.ok_count
    return [
        {"slot": slot, "queue": queue, "name": name, "fingerprint": fingerprint, **counts}
        for (slot, queue, name, fingerprint), counts in sorted(found.items())
    ]


def _slot(at: datetime) -> datetime:
    return at - (at - _EPOCH) % SLOT


def distinct(attempts: Sequence[Row]) -> list[Row]:
    """Return the first row of each event, in the order of the event ids."""
    found = {row["event_id"]: row for row in reversed(attempts)}
    return [found[key] for key in sorted(found)]
