"""Encodes events of the messages that a worker settles as JSON.

It runs in the worker's main process for every retry. It writes JSON of the schema in `celery_rmq_delay.events.schema`
without making an `Event`; `docs/contributing/decisions.md` has the measurements.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timezone
from functools import lru_cache
from json.encoder import encode_basestring as quoted
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from .. import headers as h
from ..redaction import shortened
from ..retry.delivery import KEY, Delivery
from . import schema
from .fingerprint import fingerprint, message_of, top_frame, type_name, without_retry

if TYPE_CHECKING:
    from kombu.message import Message

    from ..app.state import AppState

_T = TypeVar("_T")

_FAMILY = (("root_id", "root_id"), ("parent_id", "parent_id"), ("group_id", "group"))
_MOST_KEPT = 4096


class PendingEvent(NamedTuple):
    """The facts of an event that is not encoded yet; ``at_us`` is in microseconds since the epoch.

    ``traceback`` may end with Celery's ``Retry``, which is not part of the failure. ``waits`` is where the task waits
    now.
    """

    kind: str
    at_us: int
    request: Any
    exception: BaseException | None = None
    traceback: str | None = None
    waits: Waits | None = None
    reason: str | None = None
    crashes: int = 0


class Waits(NamedTuple):
    """Where a failed task waits: on a tier, or for an exact delay (ms)."""

    tier_index: int
    exact_ms: int | None
    #: Whether it is in the delay queue of the tier; False where the origin queue holds it, or where that is unknown.
    in_delay_queue: bool
    #: The queue that it returns to, if that is not the queue it came from.
    queue: str | None = None


class EventMaker:
    """Encodes the events of one worker."""

    def __init__(self, delay: AppState, worker: str) -> None:
        self._delay, self._worker = delay, _name(worker)
        self._redaction = delay.settings.redaction
        #: JSON that many events have in common, by what it depends on.
        self._starts: dict[tuple[str, str, str, str], str] = {}
        self._waits: dict[tuple[str, str, Waits, int | None], tuple[int, str]] = {}

    def of_task(self, pending: PendingEvent) -> bytes:
        """Return the event of a task. Raises `ValueError` where it would be too large."""
        event = self._of_task(pending, brief=False)
        if len(event) > schema.MAX_BYTES:
            event = self._of_task(pending, brief=True)
        if len(event) > schema.MAX_BYTES:
            raise ValueError(f"an event of {len(event)} bytes")
        return event

    def _of_task(self, pending: PendingEvent, *, brief: bool) -> bytes:
        """Return the event of a task; a ``brief`` one has neither previews nor the text of the exception."""
        kind, at_us, request, exception, *_ = pending
        facts, message = request._request_dict, request._message
        raw, delivery, started = request.flight.headers, facts[KEY], request.time_start
        task_id, attempt, generation = _id(request.id), h.whole_number(facts.get("retries")), h.generation(raw)
        at, life = schema.iso(at_us), h.life(raw)
        event = (
            f'{self._start(request.task, delivery.queue, message.delivery_info)},"kind":"{kind}","occurred_at":"{at}",'
            f'"event_id":"{schema.event_id(task_id, generation, attempt, kind, life)}","task_id":{quoted(task_id)},'
            f'"generation":{generation},"attempt":{attempt}'
        )
        if life is not None:
            event += f',"life":{quoted(life)}'
        event += "".join(
            [f',"{name}":{quoted(_id(facts[key]))}' for name, key in _FAMILY if facts.get(key) is not None]
        )
        if started:
            started_us = int(started * 1_000_000)
            event += f',"started_at":"{schema.iso(started_us)}","runtime_ms":{max(0, at_us - started_us) // 1000}'
        if not brief:
            event += self._previews(request.argsrepr, request.kwargsrepr)
        if pending.waits is not None:
            delay_ms, where = self._where(pending.waits, request.task, delivery)
            event += f',{where},"due_at":"{schema.iso(at_us + delay_ms * 1000)}"'
        if exception is not None:
            event += self._failure(exception, pending.traceback, brief=brief)
            if not attempt:
                event += f',"first_failed_at":"{at}"'
        return f"{event}{_rest(pending, raw, attempt)}}}".encode("utf-8", "replace")

    def of_undecodable(
        self, message: Message, raw: h.Headers, queue: str, exception: BaseException, at_us: int, reason: str
    ) -> bytes:
        """Return the event of a message in the exhausted queue that could not be decoded; ``raw``: its headers."""
        info = message.delivery_info
        found = h.task_id(raw, message.properties)
        task_id, generation = _id(found) if found else None, h.generation(raw)
        attempt, life = h.retries(raw, queue), h.life(raw)
        body = message.body if isinstance(message.body, bytes) else str(message.body).encode("utf-8", "replace")
        fields = {
            **self._common(str(raw.get("task") or ""), queue),
            "event_id": schema.event_id(task_id, generation, attempt, schema.EXHAUSTED, life)
            if task_id
            else schema.digest_id(body),
            "attempt": attempt,
            "kind": schema.EXHAUSTED,
            "occurred_at": schema.iso(at_us),
            "first_failed_at": schema.iso(at_us),
            "task_id": task_id,
            "exchange": _name(info.get("exchange") or ""),
            "routing_key": _name(info.get("routing_key") or ""),
            "generation": generation,
            **({} if life is None else {"life": life}),
            "reason": reason,
        }
        return f"{schema.encode(fields)[:-1]}{self._failure(exception, None, brief=False)}}}".encode("utf-8", "replace")

    def of_successes(self, task: str, queue: str, slot: int, count: int, nonce: str) -> bytes:
        """Return the rollup of ``count`` first attempts in ``slot``, a number of `ROLLUP_SECONDS` since the epoch."""
        fields = {
            **self._common(task, queue),
            "event_id": schema.rollup_id(self._worker, task, queue, slot, nonce),
            "kind": schema.ROLLUP,
            "occurred_at": schema.iso(slot * schema.ROLLUP_SECONDS * 1_000_000),
            "ok_count": count,
        }
        return schema.encode(fields).encode("utf-8", "replace")

    # -- parts, as JSON ---------------------------------------------------------------------------------------------

    def _common(self, task: object, queue: str) -> dict[str, Any]:
        return {"version": schema.VERSION, "worker": self._worker, "task": _name(task), "queue": _name(queue)}

    def _start(self, task: Any, queue: str, info: Mapping[str, Any]) -> str:
        """Return the first fields of all events of a task with this queue, exchange and routing key."""
        key = task.name, queue, info["exchange"], info["routing_key"]
        start = self._starts.get(key)
        if start is None:
            fields = {
                **self._common(task.name, queue),
                "exchange": _name(key[2]),
                "routing_key": _name(key[3]),
                "max_retries": self._delay.budget(queue, task),
                "ladder_ms": self._delay.ladder(queue, task).tiers_ms[: schema.MAX_TIERS],
            }
            start = _kept(self._starts, key, schema.encode(fields)[:-1])
        return start

    def _where(self, waits: Waits, task: Any, delivery: Delivery) -> tuple[int, str]:
        """Return how long a task waits (ms), and the fields with where it waits."""
        if waits.exact_ms is not None:
            return waits.exact_ms, f'"delay_ms":{waits.exact_ms}'
        key = task.name, delivery.queue, waits, delivery.lane if type(delivery.lane) is int else None
        found = self._waits.get(key)
        if found is None:
            queue = waits.queue or delivery.queue
            ladder = self._delay.ladder(queue, task)
            tier_index = min(waits.tier_index, len(ladder))
            ttl = ladder.ttl(tier_index, delivery.lane)
            text = f'"tier":{tier_index},"delay_ms":{ttl}'
            if waits.in_delay_queue:
                name = self._delay.delay_queue(queue, tier_index, ttl)
                text += f',"delay_queue":{quoted(_name(name))}'
            found = _kept(self._waits, key, (ttl, text))
        return found

    def _previews(self, args: Any, kwargs: Any) -> str:
        text = ""
        if args:
            text = f',"args_preview":{quoted(self._redaction.text(args, schema.MAX_PREVIEW))}'
        if kwargs:
            safe = kwargs if kwargs == "{}" else self._redaction.text(kwargs, schema.MAX_PREVIEW)
            text += f',"kwargs_preview":{quoted(safe)}'
        return text

    def _failure(self, exception: BaseException, traceback: str | None, *, brief: bool) -> str:
        if traceback is not None:
            traceback = without_retry(traceback)
        kind, frame = _name(type_name(exception)), top_frame(traceback)
        message = self._redaction.text(message_of(exception), schema.MAX_MESSAGE)
        text = f',"exception_type":{quoted(kind)},"fingerprint":"{fingerprint(kind, message, frame)}"'
        if not brief:
            text += f',"exception_message":{quoted(message)}'
        if frame is not None:
            text += f',"frame":{quoted(frame)}'
        return text


def _kept(cache: dict[Any, _T], key: Any, value: _T) -> _T:
    """Keep a value in a bounded cache: there may be many routing keys."""
    if len(cache) >= _MOST_KEPT:
        cache.clear()
    cache[key] = value
    return value


@lru_cache(maxsize=4096)
def _name(value: object) -> str:
    """Return a name, shortened to `MAX_NAME`; cached, as there are few."""
    return shortened(h.printable(str(value)), schema.MAX_NAME)


def _id(value: object) -> str:
    text = str(value)
    return text if text.isascii() and len(text) <= schema.MAX_NAME and text.isprintable() else _name(text)


def _rest(pending: PendingEvent, raw: h.Headers, attempt: int) -> str:
    """Return the fields that few events have, as JSON."""
    text = f',"reason":"{pending.reason}"' if pending.reason is not None else ""
    if crashes := pending.crashes or h.whole_number(raw.get(h.CRASHES)):
        text += f',"crashes":{crashes}'
    if attempt and (first := _first_failed(raw)):
        text += f',"first_failed_at":{quoted(first)}'
    return text


def _first_failed(raw: h.Headers) -> str | None:
    value = raw.get(h.FIRST_FAILED)
    if isinstance(value, str) and _is_time(value):
        return value
    died = h.first_death(raw) if "x-death" in raw else None
    return None if died is None else died.astimezone(timezone.utc).isoformat(timespec="microseconds")


def _is_time(text: str) -> bool:
    try:
        return datetime.fromisoformat(text).tzinfo is not None
    except ValueError:
        return False
