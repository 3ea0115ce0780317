"""Generate events and exhausted messages as workers send them while a shop's partners are down."""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from typing import Any

import amqp

from celery_rmq_delay import headers as h
from celery_rmq_delay.events.fingerprint import fingerprint
from celery_rmq_delay.events.schema import EXHAUSTED, PARKED, RECOVERED, ROLLUP, Event, event_id, rollup_id

LADDER = (5_000, 30_000, 300_000)
#: Outcomes of tasks and their frequency: recovered or exhausted, after this many parked attempts.
LIVES = (
    *[(1, RECOVERED)] * 4,
    *[(2, RECOVERED)] * 3,
    (3, RECOVERED),
    (3, EXHAUSTED),
    (3, None),
)
#: Bytes of an exhausted message.
BODY = 1024
_TASKS = [("orders.tasks.charge", "payments"), ("orders.tasks.send_receipt", "mail")]
_TASKS += [(f"catalogue.tasks.import_{number}", "default") for number in range(6)]
_ERRORS = ("requests.exceptions.ConnectionError", "smtplib.SMTPServerDisconnected", "builtins.TimeoutError")
_SHOWN = "HTTPSConnectionPool(host='gateway.example', port=443): Max retries exceeded with url: /charges/"

Outgoing = tuple[str, amqp.Message]


def outage_messages(count: int, queues: tuple[str, str], seed: int = 1) -> Iterator[Outgoing]:
    """Yield ``count`` messages or a few more, as (queue, message); ``queues``: of events, and of exhausted tasks.

    The tasks come in waves, as in an outage: thousands fail before the first retry.
    """
    dice, sent = random.Random(seed), 0
    while sent < count:
        lives = [(str(uuid.UUID(int=dice.getrandbits(128))), *dice.choice(LIVES)) for _ in range(2_000)]
        for attempt in range(4):
            going = [each for each in lives if attempt <= each[1] and (attempt < each[1] or each[2])]
            dice.shuffle(going)
            for task_id, last, end in going:
                for each in _attempt(dice, queues, task_id, attempt, end if attempt == last else PARKED):
                    sent += 1
                    yield each


def _attempt(
    dice: random.Random, queues: tuple[str, str], task_id: str, attempt: int, end: str | None
) -> list[Outgoing]:
    task, queue = _TASKS[int(task_id[:4], 16) % len(_TASKS)]
    error = _ERRORS[int(task_id[4:6], 16) % len(_ERRORS)]
    now = datetime.now(timezone.utc)
    frame = f"{task.partition('.')[0]}/gateway.py:post"
    values: dict[str, Any] = {}
    if end != RECOVERED:
        text = f"{_SHOWN}{dice.randrange(10_000)}"
        values = {"exception_type": error, "exception_message": text, "frame": frame}
        values["fingerprint"] = fingerprint(error, text, frame)
    if end == PARKED:
        delay = LADDER[attempt]
        values |= {"tier": attempt + 1, "delay_ms": delay, "due_at": now + timedelta(milliseconds=delay)}
        values["delay_queue"] = f"{queue}.retry.{attempt + 1}.{delay // 1000}s"
    if end == EXHAUSTED:
        values["reason"] = "retries_used"
    worker = f"celery@worker-{dice.randrange(8)}"
    event = Event(
        event_id=event_id(task_id, 0, attempt, str(end)),
        kind=str(end),
        occurred_at=now,
        task=task,
        queue=queue,
        worker=worker,
        task_id=task_id,
        root_id=task_id,
        exchange=queue,
        routing_key=queue,
        attempt=attempt,
        max_retries=len(LADDER),
        first_failed_at=now,
        started_at=now,
        runtime_ms=dice.randrange(3_000),
        ladder_ms=LADDER,
        args_preview="(10482, 'EUR')",
        kwargs_preview="{'amount': '129.90', 'customer': 771}",
        **values,
    )
    found: list[Outgoing] = [
        (queues[0], amqp.Message(event.to_json(), content_type="application/json", delivery_mode=2))
    ]
    if end == EXHAUSTED:
        found.append((queues[1], _exhausted(event, dice)))
    if dice.random() < 0.01:
        found.append((queues[0], _rollup(event)))
    return found


def _exhausted(event: Event, dice: random.Random) -> amqp.Message:
    headers = {
        "lang": "py",
        "task": event.task,
        "id": event.task_id,
        "root_id": event.root_id,
        "retries": event.attempt,
        "argsrepr": event.args_preview,
        "kwargsrepr": event.kwargs_preview,
        "origin": "gen123@shop",
        h.QUEUE: event.queue,
        h.EXCHANGE: event.exchange,
        h.ROUTING_KEY: event.routing_key,
        h.REASON: event.reason,
        h.EXCEPTION: event.exception_type,
        h.MESSAGE: event.exception_message,
        h.TRACEBACK: "Traceback (most recent call last):\n"
        + "".join(f'  File "/srv/shop/orders/step_{n}.py", line {n}, in step\n    call()\n' for n in range(20))
        + f'  File "/srv/shop/{str(event.frame).replace(":post", "")}", line 12, in post\n    send()\n'
        + f"{event.exception_type}: {event.exception_message}",
        h.ATTEMPTS: event.attempt + 1,
        h.FIRST_FAILED: h.timestamp(event.occurred_at),
        h.EXHAUSTED_AT: h.timestamp(event.occurred_at),
        h.WORKER: event.worker,
    }
    return amqp.Message(
        dice.randbytes(BODY // 2).hex(),
        application_headers=headers,
        correlation_id=event.task_id,
        content_type="application/json",
        content_encoding="utf-8",
        delivery_mode=2,
    )


def _rollup(event: Event) -> amqp.Message:
    slot = int(event.occurred_at.timestamp() // 10)
    body = Event(
        event_id=rollup_id(event.worker, event.task, event.queue, slot, uuid.uuid4().hex),
        kind=ROLLUP,
        occurred_at=event.occurred_at,
        task=event.task,
        queue=event.queue,
        worker=event.worker,
        ok_count=100,
    )
    return amqp.Message(body.to_json(), content_type="application/json", delivery_mode=2)
