"""Message headers: reading earlier attempts, and adding this package's own headers. No I/O."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any

from .names import MAX_NAME_BYTES, origin_of, quarantine

PREFIX = "rmq-delay-"
LANE = "rmq-delay-lane"
QUEUE = "rmq-delay-queue"
EXCHANGE = "rmq-delay-exchange"
ROUTING_KEY = "rmq-delay-routing-key"
CRASHES = "rmq-delay-crashes"
RETRIES = "rmq-delay-original-retries"
REASON = "rmq-delay-reason"
EXCEPTION = "rmq-delay-exception"
MESSAGE = "rmq-delay-message"
TRACEBACK = "rmq-delay-traceback"
ATTEMPTS = "rmq-delay-attempts"
FIRST_FAILED = "rmq-delay-first-failed-at"
EXHAUSTED_AT = "rmq-delay-exhausted-at"
WORKER = "rmq-delay-worker"
#: The original priority of a message in a delay queue that would deliver by priority instead of by due time.
PRIORITY = "rmq-delay-priority"
#: How often the task was sent back from the exhausted queue.
GENERATION = "rmq-delay-generation"
#: How often in a row the task has put its message back with `Reject(requeue=True)`.
REQUEUED = "rmq-delay-requeued"
#: The row of the database from which a requeue sent the message: a task id may have several rows, see `life`.
LIFE = "rmq-delay-life"
#: The life of a message without that header, and of the first row of a task id.
FIRST_LIFE = "first"
MAX_LIFE = 32
#: When a message with an exact delay is due (milliseconds since the epoch), and its destination queue.
DUE = "rmq-delay-due"
TO = "rmq-delay-to"

#: The raw AMQP properties of a message whose properties cannot be decoded: its only header.
PROPERTIES = "rmq-delay-properties"

_MAX_PRIORITY = 255
MAX_MESSAGE = 1_000
MAX_TRACEBACK = 8_000
#: The upper limit of counts: one more still fits into AMQP and database integers.
MAX_COUNT = 2**31 - 2
#: The highest generation. A message with a higher one was not requeued: it counts as one of generation 0.
MAX_GENERATION = 1_000_000

_DEAD_LETTER_PREFIXES = ("x-first-death-", "x-last-death-")
_DEAD_LETTER_HEADERS = frozenset({"x-death", "x-delivery-count", "x-acquired-count", "x-opt-deaths"})

Headers = Mapping[str, Any]


def deaths(headers: Headers) -> list[dict[str, Any]]:
    """Return the entries of ``x-death``, newest first; none where the header is missing or malformed."""
    found = headers.get("x-death")
    return [death for death in found if isinstance(death, dict)] if isinstance(found, list) else []


def whole_number(value: object) -> int:
    """Return a header's value as a count of at most `MAX_COUNT`; 0 for anything else."""
    return min(value, MAX_COUNT) if type(value) is int and value > 0 else 0


def generation(headers: Headers) -> int:
    """Return how often a task was requeued; 0 where the header is no whole number up to `MAX_GENERATION`."""
    found = headers.get(GENERATION)
    return found if type(found) is int and 0 < found <= MAX_GENERATION else 0


def next_generation(found: int) -> int:
    """Return the generation of the next requeue; the last one is used again."""
    return min(found + 1, MAX_GENERATION)


def _count(death: Mapping[str, Any]) -> int:
    return whole_number(death.get("count"))


def rejections(headers: Headers, *queues: str) -> int:
    """Return how often the broker dead-lettered this message from ``queues`` because it was rejected."""
    return whole_number(
        sum(
            _count(death)
            for death in deaths(headers)
            if death.get("reason") == "rejected" and death.get("queue") in queues
        )
    )


def retries(headers: Headers, queue: str) -> int:
    """Return how often a message of the origin queue ``queue`` was sent to be tried again, by publish and by reject."""
    return whole_number(whole_number(headers.get("retries")) + rejections(headers, queue, quarantine(queue)))


def all_rejections(headers: Headers) -> int:
    """Return how often this message was rejected from any queue."""
    return whole_number(sum(_count(death) for death in deaths(headers) if death.get("reason") == "rejected"))


def first_route(headers: Headers, queue: str, exchange: str, routing_key: str) -> tuple[str, str]:
    """Return the (exchange, routing key) with which a message first came to ``queue``.

    They are those in the headers of a forwarded copy, else of the entry (queue, rejected) of ``x-death``, which keeps
    them through later rounds, else of the delivery itself.
    """
    if EXCHANGE in headers:
        return str(headers[EXCHANGE]), str(headers.get(ROUTING_KEY, ""))
    for death in reversed(deaths(headers)):
        if death.get("queue") == queue and death.get("reason") == "rejected":
            keys = death.get("routing-keys")
            return str(death.get("exchange", "")), str(keys[0]) if isinstance(keys, list) and keys else ""
    return exchange, routing_key


def without_dead_letters(headers: Headers) -> dict[str, Any]:
    """Return the headers without the broker's dead-letter history, which would make a republished message a cycle."""
    return {
        name: value
        for name, value in headers.items()
        # A name that is not valid UTF-8 is of type bytes.
        if name[:2] != "x-" or (name not in _DEAD_LETTER_HEADERS and not name.startswith(_DEAD_LETTER_PREFIXES))
    }


def priority(headers: Headers) -> int:
    """Return the priority that was removed from a message for a delay queue; 0 for none."""
    return min(_MAX_PRIORITY, whole_number(headers.get(PRIORITY)))


def put_priority_away(properties: dict[str, Any], headers: dict[str, Any]) -> None:
    """Move a message's priority into its headers: a queue that sorts would deliver due messages out of turn."""
    priority = properties.get("priority")
    if isinstance(priority, int) and 0 < priority <= _MAX_PRIORITY:  # AMQP refuses other values
        properties["priority"], headers[PRIORITY] = 0, priority


def of_task(headers: Headers) -> dict[str, Any]:
    """Return the headers without the broker's dead-letter history and without ours, as passed to the task."""
    return {name: value for name, value in without_dead_letters(headers).items() if name[: len(PREFIX)] != PREFIX}


def forwarded(
    headers: Headers, *, retries: int, exchange: str, routing_key: str, more: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the headers of a copy of the message for another queue, updated with ``more``; None removes a header."""
    kept = without_dead_letters(headers)
    for name in (DUE, TO, REQUEUED):
        kept.pop(name, None)
    if EXCHANGE not in kept and "retries" in kept:
        kept[RETRIES] = kept["retries"]
    found = {**kept, "retries": retries, EXCHANGE: exchange, ROUTING_KEY: routing_key, **more}
    return {name: value for name, value in found.items() if value is not None or name not in more}


def original(headers: Headers) -> dict[str, Any]:
    """Return the headers as the publisher sent them: no dead-letter history, none of ours, ``retries`` as at first."""
    kept = of_task(headers)
    for name in (LANE, PROPERTIES):
        if name in headers:
            kept[name] = headers[name]
    if RETRIES in headers:
        kept["retries"] = headers[RETRIES]
    elif EXCHANGE in headers:  # a copy of a message that had none
        kept.pop("retries", None)
    return kept


def replayed(headers: Headers) -> dict[str, Any]:
    """Return the headers of a message that starts again: as its publisher sent them, with the next generation."""
    known = life(headers)
    named = {} if known is None else {LIFE: known}
    return {**original(headers), GENERATION: next_generation(generation(headers)), **named}


def life(headers: Headers) -> str | None:
    """Return the life of a task id that a message belongs to; None where it was never requeued from the database."""
    found = headers.get(LIFE)
    is_one = isinstance(found, str) and 0 < len(found) <= MAX_LIFE and found.isascii() and found.isprintable()
    return found if is_one else None


def moment(value: object) -> datetime | None:
    """Parse the time of a header (ISO 8601, UTC where it names no zone); None for an invalid value."""
    if not isinstance(value, str):
        return None
    try:
        found = datetime.fromisoformat(value.replace("Z", "+00:00"))  # Python 3.10 does not support the Z
        return (found if found.tzinfo else found.replace(tzinfo=timezone.utc)).astimezone(timezone.utc)
    except (ValueError, OverflowError):
        return None


def has_expired(headers: Headers) -> bool:
    """Return whether Celery's ``expires`` is past: a worker would revoke the task and drop its message."""
    expires = moment(headers.get("expires"))
    return expires is not None and expires < datetime.now(timezone.utc)


def is_due(death: Mapping[str, Any]) -> bool:
    """Return whether an entry of ``x-death`` means that the message has expired in a delay queue."""
    return death.get("reason") == "expired" and origin_of(str(death.get("queue", ""))) is not None


def origin_queue(headers: Headers) -> str | None:
    """Return the origin queue of a message in the exhausted queue; None where it is unknown."""
    for name in (QUEUE, TO):
        if name in headers:
            return str(headers[name])
    for death in deaths(headers):
        queue = str(death.get("queue", ""))
        if not is_due(death):
            return queue.removesuffix(".quarantine") or None
    # A copy was dead-lettered from its delay queue only, whose name contains that of the origin queue.
    return next((origin_of(str(death["queue"])) for death in deaths(headers)), None)


def bounded(text: str, limit: int) -> str:
    """Return the end of ``text``, ``limit`` characters at most, from the start of a line.

    A cut in the middle of a line could separate a secret from the name by which it is recognized.
    """
    if len(text) <= limit:
        return text
    end = text[-limit:]
    end = end.partition("\n")[2] or end
    return f"[{len(text) - len(end)} characters left out]{end}"


def task_id(headers: Headers, properties: Mapping[str, Any]) -> Any:
    """Return the task id of a message, which may be of any type; falsy where it has none."""
    return headers.get("id") or properties.get("correlation_id")


def printable(text: str) -> str:
    """Return ``text`` as AMQP and databases can store it: valid UTF-8 without NUL."""
    if text.isascii() or text.isprintable():  # the common cases, at C's speed
        return text.replace("\0", "\N{REPLACEMENT CHARACTER}")
    return text.encode("utf-8", "replace").decode("utf-8").replace("\0", "\N{REPLACEMENT CHARACTER}")


def timestamp(moment: datetime) -> str:
    """Format a time for our headers: ISO 8601 in UTC, to the millisecond."""
    return moment.astimezone(timezone.utc).isoformat(timespec="milliseconds")


def exact_address(headers: Headers) -> tuple[str, int] | None:
    """Return the queue of a message with an exact delay, and when it is due (ms since the epoch); None without them."""
    queue, due = headers.get(TO), headers.get(DUE)
    if type(due) is not int or due < 0 or not isinstance(queue, str):
        return None
    return (queue, due) if 0 < len(queue.encode(errors="replace")) <= MAX_NAME_BYTES else None


def fulfilled_eta(headers: Headers) -> str | None:
    """Return when a message with an exact delay was due, in ISO 8601; None where it is unknown."""
    address = exact_address(headers)
    try:
        return timestamp(datetime.fromtimestamp(address[1] / 1000, timezone.utc)) if address else None
    except (OverflowError, ValueError, OSError):
        return None


def epoch_ms() -> int:
    """Return the time in milliseconds since the epoch, rounded up."""
    return -(-time.time_ns() // 1_000_000)


def first_death(headers: Headers) -> datetime | None:
    """Return when this message was first dead-lettered, with a time zone; None where ``x-death`` has no time."""
    times = [death["time"] for death in deaths(headers) if isinstance(death.get("time"), datetime)]
    return min(times).replace(tzinfo=timezone.utc) if times else None
