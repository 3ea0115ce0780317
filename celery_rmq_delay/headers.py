"""What message headers say of earlier attempts, and what we add to them. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any

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

MAX_MESSAGE = 1_000
MAX_TRACEBACK = 8_000

_DEAD_LETTER_PREFIXES = ("x-first-death-", "x-last-death-")
_DEAD_LETTER_HEADERS = frozenset({"x-death", "x-delivery-count", "x-acquired-count", "x-opt-deaths"})

Headers = Mapping[str, Any]


def deaths(headers: Headers) -> list[dict[str, Any]]:
    """Return the entries of ``x-death``, newest first; none where the header is missing or not what a broker writes."""
    found = headers.get("x-death")
    return [death for death in found if isinstance(death, dict)] if isinstance(found, list) else []


def whole_number(value: object) -> int:
    """Return a header's value as a count: 0 for all that is none."""
    return value if isinstance(value, int) and value > 0 else 0


def _count(death: Mapping[str, Any]) -> int:
    return whole_number(death.get("count"))


def rejections(headers: Headers, *queues: str) -> int:
    """Return how often the broker dead-lettered this message from ``queues`` because it was rejected."""
    return sum(
        _count(death) for death in deaths(headers) if death.get("reason") == "rejected" and death.get("queue") in queues
    )


def all_rejections(headers: Headers) -> int:
    """Return how often this message was rejected from any queue."""
    return sum(_count(death) for death in deaths(headers) if death.get("reason") == "rejected")


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
        if name not in _DEAD_LETTER_HEADERS and not name.startswith(_DEAD_LETTER_PREFIXES)
    }


def forwarded(
    headers: Headers, *, retries: int, exchange: str, routing_key: str, more: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the headers of a copy that stands for the message in another queue; ``more`` where it is not None."""
    kept = without_dead_letters(headers)
    if EXCHANGE not in kept and "retries" in kept:
        kept[RETRIES] = kept["retries"]
    return {
        **kept,
        "retries": retries,
        EXCHANGE: exchange,
        ROUTING_KEY: routing_key,
        **{name: value for name, value in more.items() if value is not None},
    }


def original(headers: Headers) -> dict[str, Any]:
    """Return the headers as the publisher sent them: no dead-letter history, nothing of ours, retries as at first."""
    kept = {name: value for name, value in without_dead_letters(headers).items() if not name.startswith(PREFIX)}
    if LANE in headers:
        kept[LANE] = headers[LANE]
    if RETRIES in headers:
        kept["retries"] = headers[RETRIES]
    elif EXCHANGE in headers:  # a copy of a message that had none
        kept.pop("retries", None)
    return kept


def origin_queue(headers: Headers) -> str | None:
    """Return the origin queue of a message that lies in the exhausted queue; None where nothing says it."""
    if QUEUE in headers:
        return str(headers[QUEUE])
    for death in deaths(headers):
        queue = str(death.get("queue", ""))
        if death.get("reason") != "expired" or ".retry." not in queue:
            return queue.removesuffix(".suspects") or None
    return None


def bounded(text: str, limit: int) -> str:
    """Return at most ``limit`` characters of ``text``, its end where it is a traceback's, without NUL."""
    return text if len(text) <= limit else f"[{len(text) - limit} characters left out]{text[-limit:]}"


def printable(text: str) -> str:
    """Return ``text`` as AMQP can carry it: valid UTF-8 without NUL."""
    return text.encode("utf-8", "replace").decode("utf-8").replace("\0", "\N{REPLACEMENT CHARACTER}")


def timestamp(moment: datetime) -> str:
    """Return a moment as our headers have it: ISO 8601 in UTC, to the millisecond."""
    return moment.astimezone(timezone.utc).isoformat(timespec="milliseconds")


def first_death(headers: Headers) -> datetime | None:
    """Return when this message was first dead-lettered, with a time zone; None where no broker says it."""
    times = [death["time"] for death in deaths(headers) if isinstance(death.get("time"), datetime)]
    return min(times).replace(tzinfo=timezone.utc) if times else None
