"""Uses of one task id: what is sent in each, and the ledger of the bodies that have to be kept afterwards."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import amqp
from django.utils import timezone

from celery_rmq_delay import headers as h
from celery_rmq_delay.contrib.django.models import Operation, Payload, TaskRecord, TaskState, UnreadableMessage
from celery_rmq_delay.events.schema import DISCARDED, EXHAUSTED, PARKED, RECOVERED, Event
from tests.support.django.reported import at, event, message

Sent = Event | amqp.Message

#: The attempt in which the first use of an id was exhausted.
ATTEMPT = 3


@dataclass(frozen=True)
class First:
    """The first use of an id: what is sent, the state that an operator then sets, and what is sent after that.

    ``late`` is sent after the second use.
    """

    sent: Sequence[str] = ("parked", "event", "message")
    state: TaskState | None = None
    then: Sequence[str] = ()
    late: Sequence[str] = ()
    changes: dict[str, Any] = field(default_factory=dict)

    def keeps(self, second: Second) -> bool:
        """Return whether its message has to be kept after ``second``."""
        if any(name.startswith("requeued") for name in self.then):
            return False  # a worker has received it
        # A message that names this life was requeued, and is in the place of the first one.
        return "message" in self.late or "unreadable" in self.sent or ("message" in self.sent and not second.is_named)


_REQUEUED: dict[str, Any] = {"state": TaskState.REQUEUED, "changes": {"generation": 1, "attempt": 0}}
FIRSTS = {
    "parked": First(["parked"]),
    "parked after a requeue": First(then=["requeued, parked"], **_REQUEUED),
    "running": First(["parked"], TaskState.RUNNING),
    "recovered": First(["parked", "recovered"]),
    "recovered after a requeue": First(then=["requeued, recovered"], **_REQUEUED),
    "exhausted": First(),
    "exhausted, with a late event": First(["message"], late=["parked", "event"]),
    "exhausted, with a late message": First(["parked", "event"], late=["message"]),
    "requeuing": First(state=TaskState.REQUEUING),
    "requeued": First(**_REQUEUED),
    "discarded": First(state=TaskState.DISCARDED),
    "discarded before its message came": First(["parked", "event"], TaskState.DISCARDED, late=["message"]),
    "discarded by a worker": First(["parked", "revoked"]),
    "outcome unknown": First(state=TaskState.UNKNOWN),
    "unreadable": First(["unreadable"]),
}


def of_first(task_id: str, name: str) -> Sent:
    """Return an event or a message of the first use of an id."""
    sent: dict[str, Callable[[], Sent]] = {
        "parked": lambda: event(task_id, PARKED, ATTEMPT - 1),
        "event": lambda: event(task_id, EXHAUSTED, ATTEMPT),
        "message": lambda: message(task_id, ATTEMPT, body=first_body(task_id)),
        "recovered": lambda: event(task_id, RECOVERED, ATTEMPT),
        "revoked": lambda: event(task_id, DISCARDED, ATTEMPT, reason="revoked"),
        "requeued, parked": lambda: event(task_id, PARKED, 0, 1),
        "requeued, recovered": lambda: event(task_id, RECOVERED, 0, 1),
        "unreadable": lambda: message(task_id, ATTEMPT, body=first_body(task_id), **{h.EXHAUSTED_AT: None, "bad": {}}),
    }
    return sent[name]()


def first_body(task_id: str) -> bytes:
    """Return the body of the first call of an id."""
    return f'[["{task_id}"], {{}}, {{}}]'.encode()


@dataclass(frozen=True)
class Second:
    """The second use of an id; ``order`` is when its event comes: never, or before, after or together with its message.

    ``is_named``: its message names the life of the first use, as if that was requeued from the database.
    """

    is_same_call: bool
    attempt: int
    generation: int
    is_named: bool
    order: str

    def body(self, task_id: str) -> bytes:
        """Return the body of its call."""
        return first_body(task_id) if self.is_same_call else first_body(f"{task_id} again")

    def batches(self, task_id: str) -> tuple[list[Sent], list[Sent]]:
        """Return event and message in two batches, exhausted an hour after the first use."""
        life = h.FIRST_LIFE if self.is_named else None
        when = at(self.generation, self.attempt, 3_600)
        headers = {h.EXHAUSTED_AT: h.timestamp(when), h.FIRST_FAILED: h.timestamp(at(0, 0, 1_800)), h.LIFE: life}
        reported = event(task_id, EXHAUSTED, self.attempt, self.generation, life=life, occurred_at=when)
        exhausted = message(task_id, self.attempt, self.generation, self.body(task_id), **headers)
        batches: dict[str, tuple[list[Sent], list[Sent]]] = {
            "never": ([exhausted], []),
            "before": ([reported], [exhausted]),
            "after": ([exhausted], [reported]),
            "together": ([reported, exhausted], []),
        }
        return batches[self.order]


def seconds() -> Iterator[Second]:
    """Yield all second uses."""
    attempts, uses = (ATTEMPT - 2, ATTEMPT, ATTEMPT + 2), ((0, False), (1, False), (1, True))
    for same, attempt, use, order in product((False, True), attempts, uses, ("never", "before", "after", "together")):
        yield Second(same, attempt, *use, order)


def set_state(first: First, task_ids: Sequence[str]) -> None:
    """Set the state of the first uses as an operation does."""
    if first.state is not None:
        operation = Operation.objects.create(kind=Operation.Kind.DISCARD, actor="alice")
        rows = TaskRecord.objects.filter(task_id__in=task_ids)
        rows.update(state=first.state, changed_at=timezone.now(), operation=operation, **first.changes)
        if first.state is TaskState.UNKNOWN:
            Payload.objects.filter(record__in=rows).update(generation=1)


def ledger(first: First, uses: dict[str, Second]) -> set[bytes]:
    """Return the bodies of all messages that were sent, except those that workers have received from a requeue."""
    bodies = {use.body(task_id) for task_id, use in uses.items()}
    return bodies | {first_body(task_id) for task_id, use in uses.items() if first.keeps(use)}


def kept() -> set[bytes]:
    """Return the bodies of all stored messages."""
    return {
        bytes(body) for rows in (Payload, UnreadableMessage) for body in rows.objects.values_list("body", flat=True)
    }


def hidden(uses: dict[str, Second]) -> list[tuple[str, Second]]:
    """Return the second uses whose message no operator finds in the list of exhausted tasks."""
    found = Payload.objects.filter(record__state=TaskState.EXHAUSTED).values_list("record__task_id", "body")
    shown = {(task_id, bytes(body)) for task_id, body in found}
    return [(task_id, use) for task_id, use in uses.items() if (task_id, use.body(task_id)) not in shown]
