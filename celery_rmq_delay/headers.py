"""What message headers say of earlier attempts, and what we add to them. No I/O."""

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
#: The priority of a message whose delay queue would hand it out by priority, and not when it is due.
PRIORITY = "rmq-delay-priority"
#: How often the task was sent back from the exhausted queue.
GENERATION = "rmq-delay-generation"
#: How often in a row the task has put its message back with `Reject(requeue=True)`.
REQUEUED = "rmq-delay-requeued"
#: Which row of the database a requeue has sent the message from: a task id may have several, see `life`.
LIFE = "rmq-delay-life"
#: The life of a message without that header, and of the first row of a task id.
FIRST_LIFE = "first"
MAX_LIFE = 32
#: When a message with an exact delay is due (milliseconds since the epoch), and the queue that it is to reach.
DUE = "rmq-delay-due"
TO = "rmq-delay-to"

#: What a message came with whose properties nobody can read, as AMQP has them: instead of all other headers.
PROPERTIES = "rmq-delay-properties"

_MAX_PRIORITY = 255
MAX_MESSAGE = 1_000
MAX_TRACEBACK = 8_000
#: What a count is cut to: one more is still a number that AMQP and databases can carry.
MAX_COUNT = 2**31 - 2

_DEAD_LETTER_PREFIXES = ("x-first-death-", "x-last-death-")
_DEAD_LETTER_HEADERS = frozenset({"x-death", "x-delivery-count", "x-acquired-count", "x-opt-deaths"})

Headers = Mapping[str, Any]


def deaths(headers: Headers) -> list[dict[str, Any]]:
    """Return the entries of ``x-death``, newest first; none where the header is missing or not what a broker writes."""
    found = headers.get("x-death")
    return [death for death in found if isinstance(death, dict)] if isinstance(found, list) else []


def whole_number(value: object) -> int:
    """Return a header's value as a count of at most `MAX_COUNT`: 0 for all that is none."""
    return min(value, MAX_COUNT) if isinstance(value, int) and value > 0 else 0


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

    A forwarded copy carries them; the entry (queue, rejected) of ``x-death`` keeps them through later rounds; otherwise
    they are those of the delivery itself.
    """
    if EXCHANGE in headers:
        return str(headers[EXCHANGE]), str(headers.get(ROUTING_KEY, ""))
    for death in reversed(deaths(headers)):
        if death.get("queue") == queue and death.get("reason") == "rejected":
            keys = death.get("routing-keys")
            return str(death.get("exchange", "")), str(keys[0]) if isinstance(keys, list) and keys else ""
    return exchange, routing_key


def without_dead_letters(headers: Headers) -> dict[str, Any]:
    """Return the headers without the broker's dead-letter history: republished, it would be taken for a cycle."""
    return {
        name: value
        for name, value in headers.items()
        # One that is no UTF-8 comes as bytes.
        if name[:2] != "x-" or (name not in _DEAD_LETTER_HEADERS and not name.startswith(_DEAD_LETTER_PREFIXES))
    }


def priority(headers: Headers) -> int:
    """Return the priority that a message has lost to a delay queue; 0 for none."""
    return min(_MAX_PRIORITY, whole_number(headers.get(PRIORITY)))


def put_priority_away(properties: dict[str, Any], headers: dict[str, Any]) -> None:
    """Move a message's priority into its headers: a queue that sorts would hand it out of turn when it is due."""
    priority = properties.get("priority")
    if isinstance(priority, int) and 0 < priority <= _MAX_PRIORITY:  # AMQP refuses another
        properties["priority"], headers[PRIORITY] = 0, priority


def of_task(headers: Headers) -> dict[str, Any]:
    """Return the headers without the broker's dead-letter history and without ours: as the task may see them."""
    return {name: value for name, value in without_dead_letters(headers).items() if name[: len(PREFIX)] != PREFIX}


def forwarded(
    headers: Headers, *, retries: int, exchange: str, routing_key: str, more: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the headers of a copy that stands for the message in another queue, and ``more``; None takes one away."""
    kept = without_dead_letters(headers)
    for name in (DUE, TO, REQUEUED):
        kept.pop(name, None)
    if EXCHANGE not in kept and "retries" in kept:
        kept[RETRIES] = kept["retries"]
    found = {**kept, "retries": retries, EXCHANGE: exchange, ROUTING_KEY: routing_key, **more}
    return {name: value for name, value in found.items() if value is not None or name not in more}


def original(headers: Headers) -> dict[str, Any]:
    """Return the headers as the publisher sent them: no dead-letter history, nothing of ours, retries as at first."""
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
    """Return the headers of a message that begins anew: as its publisher sent them, one generation on."""
    known = life(headers)
    named = {} if known is None else {LIFE: known}
    return {**original(headers), GENERATION: whole_number(headers.get(GENERATION)) + 1, **named}


def life(headers: Headers) -> str | None:
    """Return the life of a task id that a message belongs to; None where it was never requeued from the database."""
    found = headers.get(LIFE)
    is_one = isinstance(found, str) and 0 < len(found) <= MAX_LIFE and found.isascii() and found.isprintable()
    return found if is_one else None


def moment(value: object) -> datetime | None:
    """Return a time as headers have it: ISO 8601, in UTC where it names no zone; None for what is none."""
    if not isinstance(value, str):
        return None
    try:
        found = datetime.fromisoformat(value.replace("Z", "+00:00"))  # Python 3.10 does not know the Z
        return (found if found.tzinfo else found.replace(tzinfo=timezone.utc)).astimezone(timezone.utc)
    except (ValueError, OverflowError):
        return None


def has_expired(headers: Headers) -> bool:
    """Return whether Celery's ``expires`` is past: a worker would revoke the task and drop its message."""
    expires = moment(headers.get("expires"))
    return expires is not None and expires < datetime.now(timezone.utc)


def is_due(death: Mapping[str, Any]) -> bool:
    """Return whether an entry of ``x-death`` is that of a message which has waited in a delay queue."""
    return death.get("reason") == "expired" and origin_of(str(death.get("queue", ""))) is not None


def origin_queue(headers: Headers) -> str | None:
    """Return the origin queue of a message that lies in the exhausted queue; None where nothing says it."""
    for name in (QUEUE, TO):
        if name in headers:
            return str(headers[name])
    for death in deaths(headers):
        queue = str(death.get("queue", ""))
        if not is_due(death):
            return queue.removesuffix(".quarantine") or None
    # A copy: it has died in the delay queue only, which is named after the origin queue.
    return next((origin_of(str(death["queue"])) for death in deaths(headers)), None)


def bounded(text: str, limit: int) -> str:
    """Return the end of ``text``, ``limit`` characters at most, from the start of a line.

    What begins in the middle of a line may be a secret that has lost the name by which it would be known.
    """
    if len(text) <= limit:
        return text
    end = text[-limit:]
    end = end.partition("\n")[2] or end
    return f"[{len(text) - len(end)} characters left out]{end}"


def task_id(headers: Headers, properties: Mapping[str, Any]) -> Any:
    """Return the id of the task that a message is of, which may be any header's value; falsy where it says none."""
    return headers.get("id") or properties.get("correlation_id")


def printable(text: str) -> str:
    """Return ``text`` as AMQP and databases can carry it: valid UTF-8 without NUL."""
    if text.isascii() or text.isprintable():  # the common cases, at C's speed
        return text.replace("\0", "\N{REPLACEMENT CHARACTER}")
    return text.encode("utf-8", "replace").decode("utf-8").replace("\0", "\N{REPLACEMENT CHARACTER}")


def timestamp(moment: datetime) -> str:
    """Return a moment as our headers have it: ISO 8601 in UTC, to the millisecond."""
    return moment.astimezone(timezone.utc).isoformat(timespec="milliseconds")


def exact_address(headers: Headers) -> tuple[str, int] | None:
    """Return the queue of a message with an exact delay, and when it is due (ms since the epoch); None where unsaid."""
    queue, due = headers.get(TO), headers.get(DUE)
    if type(due) is not int or due < 0 or not isinstance(queue, str):
        return None
    return (queue, due) if 0 < len(queue.encode(errors="replace")) <= MAX_NAME_BYTES else None


def fulfilled_eta(headers: Headers) -> str | None:
    """Return when a message with an exact delay was due, in ISO 8601; None where unsaid."""
    address = exact_address(headers)
    try:
        return timestamp(datetime.fromtimestamp(address[1] / 1000, timezone.utc)) if address else None
    except (OverflowError, ValueError, OSError):
        return None


def epoch_ms() -> int:
    """Return the time in milliseconds since the epoch, rounded up."""
    return -(-time.time_ns() // 1_000_000)


def first_death(headers: Headers) -> datetime | None:
    """Return when this message was first dead-lettered, with a time zone; None where no broker says it."""
    times = [death["time"] for death in deaths(headers) if isinstance(death.get("time"), datetime)]
    return min(times).replace(tzinfo=timezone.utc) if times else None
