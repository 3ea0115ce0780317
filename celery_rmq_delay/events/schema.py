"""The schema of events: what a worker reports of the tasks it settles, as small JSON objects. No I/O.

The worker publishes them to the events queue; the collector writes them into the database and the history files.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields
from datetime import datetime, timezone
from functools import lru_cache
from typing import Any

from ..exceptions import EventError
from ..headers import FIRST_LIFE, MAX_GENERATION, MAX_LIFE, printable

VERSION = 1

PARKED, FORWARDED, RECOVERED, EXHAUSTED = "parked", "forwarded", "recovered", "exhausted"
DISCARDED, REQUEUED, ROLLUP = "discarded", "requeued", "rollup"
KINDS = (PARKED, FORWARDED, RECOVERED, EXHAUSTED, DISCARDED, REQUEUED, ROLLUP)

#: Seconds that one rollup spans.
ROLLUP_SECONDS = 10

#: Characters of the exception's message, of a preview of arguments, and of every other text.
MAX_MESSAGE = 1_000
MAX_PREVIEW = 300
MAX_NAME = 255
#: Bytes of an event as JSON.
MAX_BYTES = 16 * 1024
#: Tiers of a ladder that an event names.
MAX_TIERS = 100

_ID_LENGTH = 32


@dataclass(frozen=True)
class Event:
    """One change of a task, or one count of successes.

    Times have a time zone (UTC). ``kind`` is one of `KINDS`. ``attempt`` counts from 0; ``max_retries`` None means
    without a limit. ``tier`` is the 1-based tier that the task is parked in, ``delay_ms`` how long it waits there,
    ``delay_queue`` the queue it waits in; None for exact delays. ``generation`` counts requeues of an exhausted task,
    ``life`` is the one that a requeue from the database has named, see `headers.LIFE`.
    ``ok_count`` is of rollups only: how many first attempts of ``task`` succeeded on ``worker`` in the
    `ROLLUP_SECONDS` from ``occurred_at``.
    """

    event_id: str
    kind: str
    occurred_at: datetime
    task: str
    queue: str
    worker: str
    task_id: str | None = None
    root_id: str | None = None
    parent_id: str | None = None
    group_id: str | None = None
    exchange: str | None = None
    routing_key: str | None = None
    generation: int = 0
    attempt: int = 0
    max_retries: int | None = None
    tier: int | None = None
    delay_ms: int | None = None
    due_at: datetime | None = None
    delay_queue: str | None = None
    first_failed_at: datetime | None = None
    started_at: datetime | None = None
    runtime_ms: int | None = None
    exception_type: str | None = None
    exception_message: str | None = None
    fingerprint: str | None = None
    frame: str | None = None
    reason: str | None = None
    crashes: int = 0
    ladder_ms: tuple[int, ...] = ()
    args_preview: str | None = None
    kwargs_preview: str | None = None
    ok_count: int | None = None
    life: str | None = None
    version: int = VERSION

    def to_json(self) -> bytes:
        """Return the event as a JSON object in UTF-8; times as ISO 8601 in UTC with microseconds."""
        found = dict(vars(self))
        for name in _TIMES:
            if found[name] is not None:
                found[name] = found[name].astimezone(timezone.utc).isoformat(timespec="microseconds")
        found["ladder_ms"] = list(self.ladder_ms)
        return encode(found).encode("utf-8", "replace")

    @classmethod
    def from_json(cls, data: bytes | str) -> Event:
        """Return the event that `to_json` or a worker wrote; unknown fields are ignored.

        Raises `EventError`, which names the field, for anything else.
        """
        if len(data) > MAX_BYTES:
            raise EventError("event", f"{len(data)} bytes", f"An event has at most {MAX_BYTES} bytes.")
        try:
            raw = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise EventError("event", data[:40], f"This is not JSON ({str(error)[:80]}).") from error
        if not isinstance(raw, dict):
            raise EventError("event", type(raw).__name__, "An event is a JSON object.")
        if raw.get("version") != VERSION or type(raw["version"]) is not int:
            raise EventError("version", raw.get("version"), f"This version of the package reads {VERSION}.")
        for name in _REQUIRED:
            if name not in raw:
                raise EventError(name, None, "It is missing.")
        event = cls(**{name: read(name, raw[name]) for name, read in _READERS.items() if name in raw})
        needed = "ok_count" if event.kind == ROLLUP else "task_id"
        if getattr(event, needed) is None and event.reason != "undecodable":
            raise EventError(needed, None, f"Events of kind {event.kind!r} must have it.")
        return event


def event_id(task_id: str, generation: int, attempt: int, kind: str, life: str | None = None) -> str:
    """Return the id of a task's event: equal for every worker and repetition in which this attempt ends this way.

    An attempt repeated after a crash is forwarded instead of parked: both have one id.
    """
    kind = PARKED if kind == FORWARDED else kind
    another = "" if life in (None, FIRST_LIFE) else f"\0{life}"
    return _digest(f"{task_id}\0{generation}\0{attempt}\0{kind}{another}")


def rollup_id(worker: str, task: str, queue: str, slot: int, nonce: str) -> str:
    """Return the id of a rollup; ``slot`` is its start in `ROLLUP_SECONDS`, ``nonce`` is unique for each one sent."""
    return _digest(f"{worker}\0{task}\0{queue}\0{slot}\0{nonce}")


def digest_id(data: bytes) -> str:
    """Return the id of a message that could not be decoded, from its bytes."""
    return hashlib.sha256(data).hexdigest()[:_ID_LENGTH]


def iso(epoch_us: int) -> str:
    """Return a time in microseconds since the epoch as ISO 8601 in UTC."""
    seconds, microseconds = divmod(epoch_us, 1_000_000)
    return f"{_second(seconds)}.{microseconds:06d}+00:00"


@lru_cache(maxsize=1024)
def _second(epoch: int) -> str:
    return datetime.fromtimestamp(epoch, timezone.utc).strftime("%Y-%m-%dT%H:%M:%S")


#: Encodes an event's fields as JSON.
encode = json.JSONEncoder(ensure_ascii=False, check_circular=False, separators=(",", ":"), allow_nan=False).encode


def _digest(text: str) -> str:
    return digest_id(text.encode("utf-8", "replace"))


# -- reading: one function per type, which raises the EventError of its field --------------------------------------

_Reader = Callable[[str, Any], Any]


def _text(longest: int) -> _Reader:
    def read(name: str, value: object) -> str:
        if not isinstance(value, str):
            raise EventError(name, value, "It has to be a text.")
        if len(value) > longest:
            raise EventError(name, f"{len(value)} characters", f"It has at most {longest} characters.")
        if printable(value) != value:
            raise EventError(name, value, "It contains NUL, or characters that UTF-8 cannot encode.")
        return value

    return read


def _whole(most: int, limit: str) -> _Reader:
    def read(name: str, value: object) -> int:
        if type(value) is not int or not 0 <= value <= most:
            raise EventError(name, value, f"It has to be a whole number, not negative, {limit}.")
        return value

    return read


_name, _count, _small = _text(MAX_NAME), _whole(2**63 - 1, "of 64 bits"), _whole(2**31 - 1, "of 32 bits")


def _time(name: str, value: object) -> datetime:
    hint = 'It has to be a time with its zone, such as "2026-01-31T12:00:00.000000+00:00".'
    try:
        found = datetime.fromisoformat(_name(name, value).replace("Z", "+00:00"))
        if found.tzinfo is None:
            raise ValueError
        return found.astimezone(timezone.utc)
    except (ValueError, OverflowError) as error:
        raise EventError(name, value, hint) from error


def _ladder(name: str, value: object) -> tuple[int, ...]:
    if not isinstance(value, list) or len(value) > MAX_TIERS:
        raise EventError(name, value, f"It has to be a list of at most {MAX_TIERS} delays in milliseconds.")
    return tuple(_count(name, each) for each in value)


def _kind(name: str, value: object) -> str:
    if value not in KINDS:
        raise EventError(name, value, f"It has to be one of {', '.join(KINDS)}.")
    return str(value)


def _optional(read: _Reader) -> _Reader:
    return lambda name, value: None if value is None else read(name, value)


_BY_TYPE: dict[str, _Reader] = {"str": _name, "int": _count, "datetime": _time, "tuple[int, ...]": _ladder}
_BY_NAME: dict[str, _Reader] = {
    "kind": _kind,
    "generation": _whole(MAX_GENERATION, f"up to {MAX_GENERATION}"),
    **dict.fromkeys(("attempt", "crashes", "tier", "max_retries"), _small),
    "exception_message": _text(MAX_MESSAGE),
    **dict.fromkeys(("args_preview", "kwargs_preview"), _text(MAX_PREVIEW)),
    "life": _text(MAX_LIFE),
}


def _reader(name: str, kind: str) -> _Reader:
    kind, _, is_optional = kind.partition(" | ")
    read = _BY_NAME.get(name, _BY_TYPE[kind])
    return _optional(read) if is_optional else read


_READERS = {field.name: _reader(field.name, str(field.type)) for field in fields(Event)}
_TIMES = tuple(field.name for field in fields(Event) if "datetime" in str(field.type))
_REQUIRED = tuple(field.name for field in fields(Event) if field.default is MISSING)
