"""What one message says, as the tables take it. No I/O.

An exhausted message says what the event of its last attempt says, and more: the traceback, and itself. Both have the
same `event_id`, so whichever comes second only fills gaps.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import Any

import amqp

from .... import headers as h
from ....events import schema as events
from ....events.fingerprint import fingerprint, top_frame
from ....events.schema import Event, event_id
from ....headers import printable
from ....operations.exhausted import describe
from ....redaction import Redaction, shortened
from ..messages import StoredMessage, call_digest, stored
from ..messages import fingerprint as digest_of
from ..models import TaskState

#: The states that events bring about; what people do is written by who does it.
STATES = {
    events.PARKED: TaskState.PARKED,
    events.FORWARDED: TaskState.PARKED,
    events.RECOVERED: TaskState.RECOVERED,
    events.EXHAUSTED: TaskState.EXHAUSTED,
    events.DISCARDED: TaskState.DISCARDED,
}
#: Which of two ends of the same attempt counts. An attempt may end twice, when its worker dies before the broker hears
#: of it. What lies in the exhausted queue is never hidden behind a success.
RANKS = {
    TaskState.PARKED: 1,
    TaskState.RUNNING: 2,
    TaskState.RECOVERED: 3,
    TaskState.DISCARDED: 4,
    TaskState.EXHAUSTED: 5,
}

_NO_ID = "no-id-"


@dataclass(frozen=True)
class Fact:
    """What a message says; ``message`` is itself, where it is to be kept.

    Then ``digest`` tells it from all others, and ``call`` its call from other calls.
    """

    event: Event
    task_id: str
    traceback: str = ""
    message: StoredMessage | None = None
    digest: str = ""
    call: str = ""

    @property
    def key(self) -> tuple[str, str]:
        """What the task's row is known by: its id, and the life of that."""
        return self.task_id, self.event.life or h.FIRST_LIFE

    @property
    def state(self) -> TaskState | None:
        """The state that it brings about; None where it is history only."""
        return STATES.get(self.event.kind)

    @property
    def version(self) -> tuple[int, int, int]:
        """The order in which a task's facts came about, whatever the order in which they come here."""
        state = self.state
        return self.event.generation, self.event.attempt, RANKS[state] if state else 0

    def apart(self) -> Fact:
        """Return what begins a row of the message's own."""
        event, life = self.event, self.digest[: h.MAX_LIFE]
        own_id = event_id(self.task_id, event.generation, event.attempt, event.kind, life)
        return replace(self, event=replace(event, life=life, event_id=own_id))


def of_exhausted(message: amqp.Message, redaction: Redaction) -> Fact:
    """Return what a message in the exhausted queue says. Raises whatever its headers make impossible."""
    raw: Mapping[str, Any] = message.headers
    found = describe(message)
    kept = stored(message)
    digest = digest_of(kept)
    task_id = _name(found.task_id) or _NO_ID + digest[:32]
    queue = _name(found.queue)
    exchange, routing_key = h.first_route(raw, queue, "", "")
    generation, life = h.whole_number(raw.get(h.GENERATION)), h.life(raw)
    attempt = max(found.attempts - 1, 0)
    exception_type = _name(found.exception) or None
    exception_message = redaction.text(found.message, events.MAX_MESSAGE) if found.message else None
    traceback = redaction.text(raw.get(h.TRACEBACK), h.MAX_TRACEBACK)
    frame = _name(top_frame(traceback)) or None
    event = Event(
        event_id=event_id(task_id, generation, attempt, events.EXHAUSTED, life),
        kind=events.EXHAUSTED,
        occurred_at=h.moment(found.exhausted_at) or datetime.now(timezone.utc),
        task=_name(found.task),
        queue=queue,
        worker=_name(raw.get(h.WORKER)),
        task_id=task_id,
        root_id=_name(raw.get("root_id")),
        parent_id=_name(raw.get("parent_id")),
        group_id=_name(raw.get("group")),
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
        args_preview=redaction.text(raw.get("argsrepr"), events.MAX_PREVIEW),
        kwargs_preview=redaction.text(raw.get("kwargsrepr"), events.MAX_PREVIEW),
        life=life,
    )
    return Fact(event, task_id, traceback, kept, digest, call_digest(kept))


def _name(value: object) -> str:
    """Return a name as the tables have it: clean, and where it is too long with a digest in place of its end."""
    if value is None:
        return ""
    text = printable(str(value))
    if len(text) <= events.MAX_NAME:
        return text
    digest = hashlib.sha256(text.encode()).hexdigest()[:32]
    return f"{shortened(text, events.MAX_NAME - len(digest) - 1)}-{digest}"
