"""Reads one message into a `Fact` for the tables; an unreadable one is kept as it is. No I/O.

An exhausted message has the data of the event of its last attempt, and also the traceback and the message itself. Both
have the same `event_id`: the second to arrive only fills gaps.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import amqp
from celery.utils.saferepr import saferepr

from .... import headers as h
from ....amqp.bodies import UndecodableError, decode
from ....events import schema as events
from ....events.fingerprint import fingerprint, top_frame
from ....events.schema import Event, event_id
from ....headers import printable
from ....operations.exhausted import describe
from ....redaction import Redaction, shortened
from ..messages import StoredMessage, call_digest, stored
from ..messages import fingerprint as digest_of
from ..models import TaskState

if TYPE_CHECKING:
    from .consumer import Delivery

#: The states that events lead to; operations write the other states themselves.
STATES = {
    events.PARKED: TaskState.PARKED,
    events.FORWARDED: TaskState.PARKED,
    events.RECOVERED: TaskState.RECOVERED,
    events.EXHAUSTED: TaskState.EXHAUSTED,
    events.DISCARDED: TaskState.DISCARDED,
}
#: The higher rank wins where one attempt has two ends, as when its worker dies before it can ack. A success never
#: hides a message in the exhausted queue.
RANKS = {
    TaskState.PARKED: 1,
    TaskState.RUNNING: 2,
    TaskState.RECOVERED: 3,
    TaskState.DISCARDED: 4,
    TaskState.EXHAUSTED: 5,
}

_NO_ID = "no-id-"
#: The most characters of the arguments of a message of protocol 1, before they are shortened for the table.
_MAX_REPR = 1024
#: The most characters of the error of an unreadable message.
MAX_ERROR = 2_000


@dataclass(frozen=True)
class Fact:
    """The content of an event or an exhausted message; ``message`` is the latter as it is stored.

    Then ``digest`` identifies the message, and ``call`` its call. Only a rollup has no task.
    """

    event: Event
    traceback: str = ""
    message: StoredMessage | None = None
    digest: str = ""
    call: str = ""

    @property
    def key(self) -> tuple[str, str]:
        """The key of the task's row: its id and life."""
        return self.event.task_id or "", self.event.life or h.FIRST_LIFE

    @property
    def state(self) -> TaskState | None:
        """The state that it leads to; None where it is history only."""
        return STATES.get(self.event.kind)

    @property
    def version(self) -> tuple[int, int, int]:
        """A sort key: the order in which a task's facts happened, which may differ from that of their arrival."""
        state = self.state
        return self.event.generation, self.event.attempt, RANKS[state] if state else 0

    def apart(self) -> Fact:
        """Return the fact for a row of the message's own."""
        event, life = self.event, self.digest[: h.MAX_LIFE]
        own_id = event_id(self.key[0], event.generation, event.attempt, event.kind, life)
        return replace(self, event=replace(event, life=life, event_id=own_id))


@dataclass(frozen=True)
class Unreadable:
    """A message that the collector cannot read, and the error. ``headers`` are all its AMQP properties, encoded."""

    digest: str
    queue: str
    error: str
    body: bytes
    headers: bytes


Reading = Fact | Unreadable


@dataclass(frozen=True)
class Reader:
    """Reads the messages of the two queues."""

    events_queue: str
    redaction: Redaction

    def read(self, queue: str, delivery: Delivery) -> Reading | None:
        """Return the content of a message of ``queue``; None where another message has it."""
        try:
            if queue == self.events_queue:
                event = Event.from_json(delivery.body)
                # The event of an undecodable message without an id: the message itself is in the exhausted queue.
                return Fact(event) if event.task_id or event.kind == events.ROLLUP else None
            return of_exhausted(delivery.message(), self.redaction)
        except Exception as error:  # noqa: BLE001 - a hostile message must not stop the others
            return unreadable(queue, delivery, error, self.redaction)


def unreadable(queue: str, delivery: Delivery, error: BaseException, redaction: Redaction) -> Unreadable:
    """Return a message that cannot be read or written because of ``error``, as it is kept."""
    digest = hashlib.sha256(b"\0".join((queue.encode(), delivery.properties, delivery.body))).hexdigest()
    text = redaction.text(f"{type(error).__name__}: {error}", MAX_ERROR)
    return Unreadable(digest, queue, text, delivery.body, delivery.properties)


def of_exhausted(message: amqp.Message, redaction: Redaction) -> Fact:
    """Return the fact of a message in the exhausted queue. Raises any exception for malformed headers."""
    raw: Mapping[str, Any] = message.headers
    found = describe(message)
    kept = stored(message)
    digest = digest_of(kept)
    body = _of_body(raw, kept, redaction)
    task_id = _name(body.get("id") or found.task_id) or _NO_ID + digest[:32]
    queue = _name(found.queue)
    exchange, routing_key = h.first_route(raw, queue, "", "")
    generation, life = h.generation(raw), h.life(raw)
    attempt = max(found.attempts - 1, 0)
    exception_type = _name(found.exception) or None
    exception_message = redaction.text(found.message, events.MAX_MESSAGE) if found.message else None
    traceback = redaction.text(raw.get(h.TRACEBACK), h.MAX_TRACEBACK)
    frame = _name(top_frame(traceback)) or None
    event = Event(
        event_id=event_id(task_id, generation, attempt, events.EXHAUSTED, life),
        kind=events.EXHAUSTED,
        occurred_at=h.moment(found.exhausted_at) or datetime.now(timezone.utc),
        task=_name(body.get("task") or found.task),
        queue=queue,
        worker=_name(raw.get(h.WORKER)),
        task_id=task_id,
        root_id=_name(raw.get("root_id")),
        parent_id=_name(raw.get("parent_id")),
        group_id=_name(body.get("group") or raw.get("group")),
        exchange=_name(exchange),
        routing_key=_name(routing_key),
        generation=generation,
        attempt=attempt,
        first_failed_at=h.moment(raw.get(h.FIRST_FAILED)),
        exception_type=exception_type,
        exception_message=exception_message,
        fingerprint=fingerprint(exception_type, exception_message, frame) if exception_type else None,
        frame=frame,
        reason=_name(found.reason),
        crashes=h.whole_number(raw.get(h.CRASHES)),
        args_preview=redaction.text(body.get("args") or raw.get("argsrepr"), events.MAX_PREVIEW),
        kwargs_preview=redaction.text(body.get("kwargs") or raw.get("kwargsrepr"), events.MAX_PREVIEW),
        life=life,
    )
    return Fact(event, traceback, kept, digest, call_digest(kept))


def _of_body(raw: Mapping[str, Any], kept: StoredMessage, redaction: Redaction) -> Mapping[str, Any]:
    """Return what a message of Celery's protocol 1 has in its body instead of the headers; nothing for other messages.

    Arguments are redacted texts, as in Celery's ``argsrepr``. A body that is not JSON is not decoded.
    """
    if "task" in raw:
        return {}
    try:
        call = decode(kept.body, kept.properties, raw)
    except UndecodableError:
        return {}
    args, kwargs = redaction.value(call.args), redaction.value(call.kwargs)
    shown = {"args": saferepr(tuple(args), _MAX_REPR), "kwargs": saferepr(kwargs, _MAX_REPR)}
    return {"group": call.facts.get("taskset"), **call.facts, **shown}


def _name(value: object) -> str:
    """Return a name as the tables store it: printable, and a digest in place of its end where it is too long."""
    if value is None:
        return ""
    text = printable(str(value))
    if len(text) <= events.MAX_NAME:
        return text
    digest = hashlib.sha256(text.encode()).hexdigest()[:32]
    return f"{shortened(text, events.MAX_NAME - len(digest) - 1)}-{digest}"
