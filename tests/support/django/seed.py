"""Rows as the collector writes them: a shop whose payments, mails and imports fail; by a fixed seed."""

from __future__ import annotations

import json
import random
from datetime import datetime, timedelta
from typing import Any

import amqp
from django.db import transaction
from django.utils import timezone

from celery_rmq_delay.contrib.django.messages import call_digest, stored
from celery_rmq_delay.contrib.django.models import (
    Attempt,
    CollectorStatus,
    ExhaustedTask,
    FailureGroup,
    LookupValue,
    Payload,
    Tally,
    TaskRecord,
    TaskState,
)
from celery_rmq_delay.events.fingerprint import fingerprint

LADDER = [5_000, 30_000, 300_000, 3_600_000]
TRACEBACK = """Traceback (most recent call last):
  File "/srv/venv/lib/python3.12/site-packages/celery/app/trace.py", line 453, in trace_task
    R = retval = fun(*args, **kwargs)
                 ^^^^^^^^^^^^^^^^^^^^
  File "/srv/shop/orders/tasks.py", line 41, in charge
    gateway.charge(order)
  File "/srv/shop/orders/gateway.py", line 23, in charge
    response = client.post(url, json=body)
  File "/srv/venv/lib/python3.12/site-packages/httpx/_client.py", line 1144, in post
    return self.request(
  File "/srv/venv/lib/python3.12/site-packages/httpx/_transports/default.py", line 118, in map_httpcore_exceptions
    raise mapped_exc(message) from exc
httpx.ConnectTimeout: timed out
"""
#: Task, queue, error, message.
KINDS = (
    ("orders.tasks.charge", "payments", "httpx.ConnectTimeout", "timed out"),
    ("orders.tasks.charge", "payments", "orders.gateway.Declined", "card of order {n} declined"),
    ("orders.tasks.send_receipt", "mail", "smtplib.SMTPServerDisconnected", "Connection unexpectedly closed"),
    ("catalogue.tasks.import_prices", "default", "ValueError", "line {n}: price 'n/a' is no number"),
)


def failure_group(kind: int, now: datetime) -> FailureGroup:
    """Return the failure group of one of `KINDS`."""
    _name, _queue, error, message = KINDS[kind]
    group, _made = FailureGroup.objects.get_or_create(
        fingerprint=fingerprint(error, message, "orders/gateway.py:charge"),
        defaults={
            "exception_type": error,
            "message": message.replace("{n}", "<n>"),
            "frame": "orders/gateway.py:charge",
            "first_seen": now - timedelta(days=3),
            "last_seen": now,
        },
    )
    return group


def record(number: int, state: str = TaskState.EXHAUSTED, **more: Any) -> TaskRecord:
    """Return a saved task; ``number`` determines its name and its failure."""
    now = timezone.now()
    kind = number % len(KINDS)
    name, queue, error, message = KINDS[kind]
    exhausted = state in (TaskState.EXHAUSTED, TaskState.DISCARDED, TaskState.UNKNOWN, TaskState.REQUEUING)
    attempt = len(LADDER) if exhausted else number % len(LADDER)
    parked_at = now - timedelta(seconds=7 * number + 3)
    fields = {
        "task_id": f"{number:08x}-0000-4000-8000-{number:012x}",
        "root_id": f"{number // 3 * 3:08x}-0000-4000-8000-{number // 3 * 3:012x}",
        "name": name, "queue": queue, "exchange": queue, "routing_key": queue, "worker": f"shop@node{number % 2}",
        "state": state, "changed_at": parked_at, "parked_at": parked_at,
        "first_failed_at": parked_at - timedelta(hours=2), "exhausted_at": parked_at if exhausted else None,
        "due_at": None if exhausted else now + timedelta(minutes=20 * number - 50),
        "attempt": attempt, "max_retries": len(LADDER), "tier": None if exhausted else attempt + 1,
        "delay_ms": LADDER[attempt % len(LADDER)], "ladder_ms": LADDER,
        "exception_type": error, "exception_message": message.format(n=number),
        "reason": "retries_used" if exhausted else "", "failure_group": failure_group(kind, now),
        "args_preview": f"[{number}]", "kwargs_preview": '{"currency": "EUR", "card": "[redacted]"}',
    }  # fmt: skip
    made: TaskRecord = TaskRecord.objects.create(**{**fields, **more})
    return made


def attempts(task: TaskRecord) -> None:
    """Add the attempts that led to the state of a task."""
    moment = task.first_failed_at or timezone.now()
    for number in range(task.attempt + 1):
        last = number == task.attempt and task.state == TaskState.EXHAUSTED
        delay = None if last else LADDER[number % len(LADDER)]
        Attempt.objects.create(
            event_id=f"{task.task_id[:40]}-{task.generation}-{number}", record=task, generation=task.generation,
            kind="exhausted" if last else "parked", attempt=number, tier=None if last else number + 1,
            occurred_at=moment, runtime_ms=120 + number, worker=task.worker, delay_ms=delay,
            due_at=None if delay is None else moment + timedelta(milliseconds=delay),
            exception_type=task.exception_type, exception_message=task.exception_message,
            frame="orders/gateway.py:charge", traceback=TRACEBACK, reason=task.reason if last else "",
        )  # fmt: skip
        moment += timedelta(milliseconds=delay or 0, seconds=1)


def message(task: TaskRecord, body: bytes, headers: dict[str, Any] | None = None, **properties: Any) -> None:
    """Keep a message for a task."""
    named = {"id": task.task_id[:200], "task": task.name[:200], "root_id": task.root_id[:200], **(headers or {})}
    values = {"content_type": "application/json", "content_encoding": "utf-8", **properties}
    kept = stored(amqp.Message(body, application_headers=named, **values))
    Payload.objects.create(record=task, stored_at=timezone.now(), **vars(kept))
    TaskRecord.objects.filter(pk=task.pk).update(call_digest=call_digest(kept))


def call(*args: Any, **kwargs: Any) -> bytes:
    """Return the body of a call."""
    return json.dumps([args, kwargs, {"callbacks": None, "errbacks": None, "chain": None, "chord": None}]).encode()


@transaction.atomic
def shop(*, parked: int = 20, exhausted: int = 30, seed: int = 7) -> None:
    """Fill the tables with a day of a shop."""
    chance, now = random.Random(seed), timezone.now()
    for number in range(parked):
        record(number, TaskState.PARKED)
    for number in range(parked, parked + exhausted):
        attempts(record(number))
    for kind in range(len(KINDS)):
        lookups(kind)
        group = failure_group(kind, now)
        Tally.objects.bulk_create(
            Tally(
                slot=slots(now) - timedelta(minutes=10 * slot),
                queue=KINDS[kind][1],
                name=KINDS[kind][0],
                fingerprint=group.fingerprint,
                parked=chance.randrange(40),
                exhausted=chance.choice((0, 0, 0, 1, 3)),
                recovered=chance.randrange(30),
            )
            for slot in range(144)
        )
    CollectorStatus.objects.create(
        name="node0:4242", started_at=now - timedelta(hours=3), heartbeat_at=now, events=8123, exhausted=411, lag_ms=180
    )


def now() -> datetime:
    """Return the time."""
    return timezone.now()


def slots(now: datetime) -> datetime:
    """Return the start of the ten minutes of a moment."""
    return now.replace(minute=now.minute // 10 * 10, second=0, microsecond=0)


def lookups(kind: int) -> None:
    """Add the filter values for one of `KINDS`."""
    name, queue, error, _message = KINDS[kind]
    for of, value in (("task", name), ("queue", queue), ("error", error), ("worker", f"shop@node{kind % 2}")):
        LookupValue.objects.get_or_create(kind=of, value=value)


def hostile(text: str, state: str = TaskState.EXHAUSTED, number: int = 666) -> ExhaustedTask:
    """Return a task with the same text in every field that a message can set."""
    group = FailureGroup.objects.create(
        fingerprint=f"{number:064x}",
        exception_type=text[:255],
        message=text,
        frame=text[:255],
        first_seen=timezone.now(),
        last_seen=timezone.now(),
        note=text,
    )
    short = text[:255]
    names = (
        "root_id", "parent_id", "canvas_id", "name", "queue", "exchange", "routing_key", "worker", "delay_queue",
        "exception_type",
    )  # fmt: skip
    texts = {
        **dict.fromkeys(names, short),
        **dict.fromkeys(("exception_message", "args_preview", "kwargs_preview"), text),
    }
    made = record(number, state, task_id=f"{number}{short}"[:255], reason=text[:32], failure_group=group, **texts)
    Attempt.objects.create(
        event_id=f"hostile-{number}", record=made, kind="exhausted", occurred_at=timezone.now(), worker=short,
        exception_type=short, exception_message=text, frame=short, traceback=text, reason=text[:32],
    )  # fmt: skip
    for of in ("task", "queue", "error", "worker"):
        LookupValue.objects.get_or_create(kind=of, value=short)
    return ExhaustedTask.objects.get(pk=made.pk)
