"""Events and exhausted messages of workers, for tests of the collector."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import amqp

from celery_rmq_delay import headers as h
from celery_rmq_delay.contrib.django.collecting.facts import Fact, of_exhausted
from celery_rmq_delay.events.fingerprint import fingerprint
from celery_rmq_delay.events.schema import EXHAUSTED, PARKED, RECOVERED, Event, event_id
from celery_rmq_delay.redaction import DEFAULT

BEGIN = datetime(2026, 1, 31, 12, tzinfo=timezone.utc)
LADDER = (5_000, 30_000, 300_000)
ERRORS = ("requests.exceptions.ConnectionError", "builtins.TimeoutError", "builtins.ValueError", "builtins.KeyError")
FRAME = "orders/gateway.py:charge"


def at(generation: int, attempt: int, more: float = 0.0) -> datetime:
    """Return when an attempt ended: each one a minute after the one before."""
    return BEGIN + timedelta(hours=generation, minutes=attempt, seconds=more)


def event(task_id: str, kind: str = PARKED, attempt: int = 0, generation: int = 0, **given: Any) -> Event:
    """Return the event of an attempt."""
    values: dict[str, Any] = {
        "event_id": event_id(task_id, generation, attempt, kind, given.get("life")),
        "kind": kind,
        "occurred_at": at(generation, attempt),
        "task": "orders.tasks.charge",
        "queue": "payments",
        "worker": f"celery@worker-{attempt % 2}",
        "task_id": task_id,
        "root_id": task_id,
        "exchange": "payments",
        "routing_key": "payments",
        "generation": generation,
        "attempt": attempt,
        "max_retries": 3,
        "runtime_ms": 12,
        "started_at": at(generation, attempt, -0.012),
        "first_failed_at": at(0, 0),
        "ladder_ms": LADDER,
        "args_preview": "(1234, 'EUR')",
        "kwargs_preview": "{}",
    }
    if generation:
        values |= {"life": h.FIRST_LIFE}
    if kind == PARKED:
        delay = LADDER[attempt % len(LADDER)]
        values |= {"tier": attempt + 1, "delay_ms": delay, "delay_queue": f"payments.retry.{attempt + 1}.5s"}
        values |= {"due_at": at(generation, attempt, delay / 1000)}
    if kind in (PARKED, EXHAUSTED):
        error = ERRORS[attempt % len(ERRORS)]
        values |= {"exception_type": error, "exception_message": f"order {attempt}", "frame": FRAME}
        values |= {"fingerprint": fingerprint(error, f"order {attempt}", FRAME)}
    if kind == EXHAUSTED:
        values |= {"reason": "retries_used"}
    return Event(**{**values, **given})


def fact(task_id: str, kind: str = PARKED, attempt: int = 0, generation: int = 0, **given: Any) -> Fact:
    """Return the collector's fact of `event`."""
    return Fact(event(task_id, kind, attempt, generation, **given))


def message(
    task_id: str | None, attempt: int = 3, generation: int = 0, body: bytes = b"[[], {}, {}]", **more: Any
) -> Any:
    """Return the message that a worker puts into the exhausted queue after the event of the same attempt."""
    error = ERRORS[attempt % len(ERRORS)]
    file, _, function = FRAME.partition(":")
    headers = {
        "task": "orders.tasks.charge",
        "root_id": task_id,
        "argsrepr": "(1234, 'EUR')",
        "kwargsrepr": "{}",
        h.QUEUE: "payments",
        h.EXCHANGE: "payments",
        h.ROUTING_KEY: "payments",
        h.REASON: "retries_used",
        h.EXCEPTION: error,
        h.MESSAGE: f"order {attempt}",
        h.TRACEBACK: f'Traceback (most recent call last):\n  File "/srv/{file}", line 7, in {function}\n{error}',
        h.ATTEMPTS: attempt + 1,
        h.FIRST_FAILED: h.timestamp(at(0, 0)),
        h.EXHAUSTED_AT: h.timestamp(at(generation, attempt)),
        h.WORKER: f"celery@worker-{attempt % 2}",
        **({h.GENERATION: generation, h.LIFE: h.FIRST_LIFE} if generation else {}),
        **({} if task_id is None else {"id": task_id}),
        **more,
    }
    properties = {"content_type": "application/json", "content_encoding": "utf-8", "delivery_mode": 2}
    if task_id is not None:
        properties["correlation_id"] = task_id
    return amqp.Message(body, application_headers=headers, **properties)


def exhausted(task_id: str | None, attempt: int = 3, generation: int = 0, **given: Any) -> Fact:
    """Return the collector's fact of `message`."""
    return of_exhausted(message(task_id, attempt, generation, **given), DEFAULT)


def life(task_id: str, attempts: int, end: str | None, generation: int = 0) -> list[Fact]:
    """Return the facts of a task: parked after each attempt except the last one, which ends with ``end``."""
    facts = [fact(task_id, PARKED, attempt, generation) for attempt in range(attempts)]
    if end == RECOVERED:
        facts.append(fact(task_id, RECOVERED, attempts, generation))
    if end == EXHAUSTED:
        facts.append(fact(task_id, EXHAUSTED, attempts, generation))
        facts.append(exhausted(task_id, attempts, generation))
    return facts
