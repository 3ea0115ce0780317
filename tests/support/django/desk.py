"""Exhausted and parked tasks: in the broker, and in the database as the collector would have written them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import amqp
import kombu
from celery import Celery
from django.utils import timezone

from celery_rmq_delay import headers as h
from celery_rmq_delay.amqp.apply import ready_counts
from celery_rmq_delay.app.inventory import plans
from celery_rmq_delay.app.state import state_of
from celery_rmq_delay.contrib.django.messages import StoredMessage, call_digest, stored
from celery_rmq_delay.contrib.django.models import Operation, Payload, TaskRecord, TaskState
from celery_rmq_delay.contrib.django.services.actors import Actor
from celery_rmq_delay.contrib.django.services.operations.requests import freeze
from celery_rmq_delay.topology.common import origin_arguments
from celery_rmq_delay.topology.transition import apply_plan
from tests.support.waiting import wait_for

ALICE, BOB = Actor(None, "alice"), Actor(None, "bob")


class Desk:
    """An app on a vhost of its own, exhausted tasks in the database, and access to requeued messages."""

    def __init__(self, url: str) -> None:
        self.url, self.queue = url, "payments"
        self.declare()

    def declare(self, **arguments: Any) -> None:
        with kombu.Connection(self.url) as connection:
            connection.channel().queue_declare(self.queue, durable=True, auto_delete=False, arguments=arguments)

    def delete(self) -> None:
        with kombu.Connection(self.url) as connection:
            connection.channel().queue_delete(self.queue)

    def exhausted(self, count: int, expires: str | None = None, **given: Any) -> list[TaskRecord]:
        """Return exhausted tasks with their messages, as the collector stores them."""
        records = self.rows(count, TaskState.EXHAUSTED, **{"exhausted_at": timezone.now(), "attempt": 3, **given})
        self.keep(*(self.payload(record, expires=expires) for record in records))
        return records

    def rows(self, count: int, state: TaskState, **given: Any) -> list[TaskRecord]:
        """Return new rows; their ids continue those of the table."""
        first = TaskRecord.objects.count()
        values = {"name": "payments.charge", "queue": self.queue, "changed_at": timezone.now(), **given}
        return TaskRecord.objects.bulk_create(
            TaskRecord(**{"task_id": f"id-{number}", "state": state, **values})
            for number in range(first, first + count)
        )

    def keep(self, *payloads: Payload) -> None:
        """Keep messages as the collector does."""
        Payload.objects.bulk_create(payloads)
        for each in payloads:
            each.record.call_digest = call_digest(StoredMessage(each.body, each.headers, each.properties))
        TaskRecord.objects.bulk_update([each.record for each in payloads], ["call_digest"])

    def payload(self, record: TaskRecord, body: bytes = b"\x80\x05bytes of ", **more: Any) -> Payload:
        headers = {"id": record.task_id, "task": record.name, "retries": 3, h.RETRIES: 0, h.REASON: "retries_used"}
        headers |= {name: value for name, value in more.items() if value is not None}
        message = amqp.Message(
            body + record.task_id.encode(),
            application_headers={**headers, "x-death": [{"queue": "payments", "reason": "rejected", "count": 3}]},
            correlation_id=record.task_id,
            content_type="application/x-python-serialize",
            content_encoding="binary",
            priority=3,
        )
        return Payload(record=record, stored_at=timezone.now(), **vars(stored(message)))

    def taken(self) -> list[amqp.Message]:
        """Take every message of the queue."""
        found = []
        with kombu.Connection(self.url) as connection:
            channel = connection.channel()
            while message := channel.basic_get(self.queue, no_ack=True):
                found.append(message)
        return found


class ParkedDesk(Desk):
    """A desk whose queue has its ladder: two tiers of one and two hours."""

    def __init__(self, url: str, app: Celery) -> None:
        with kombu.Connection(url) as connection:
            (self.plan,) = plans(connection, state_of(app), ["payments"])
            super().__init__(url)
            apply_plan(connection, self.plan)

    def declare(self, **arguments: Any) -> None:
        own = origin_arguments(self.plan.names, self.plan.queue, self.plan.queue_type)
        super().declare(**own, **arguments)

    def delay_queue(self, number: int) -> str:
        """Return the name of a delay queue."""
        return self.plan.delay_queue(number, self.plan.ladder.tiers_ms[number - 1]).name

    def counts(self, *queues: str) -> list[int | None]:
        with kombu.Connection(self.url) as connection:
            return list(ready_counts(connection, queues).values())

    def parked(self, count: int, *, retries: int = 0, **given: Any) -> list[TaskRecord]:
        """Return tasks that wait in the first tier; their messages have so many retries."""
        first = TaskRecord.objects.count()
        (before,) = self.counts(self.delay_queue(1))
        with kombu.Connection(self.url) as connection:
            channel = connection.channel()
            for number in range(first, first + count):
                headers = {"id": f"id-{number}", "task": "payments.charge", "retries": retries}
                message = amqp.Message(f"body {number}", application_headers=headers, delivery_mode=2)
                channel.basic_publish(message, "", self.queue)
            for _ in range(count):
                found = wait_for(lambda: channel.basic_get(self.queue), "a message to reject")
                channel.basic_reject(found.delivery_tag, requeue=False)
        wait_for(lambda: self.counts(self.delay_queue(1)) == [(before or 0) + count], "parked messages")
        place = {"tier": 1, "delay_ms": 3_600_000, "delay_queue": self.delay_queue(1)}
        return self.rows(count, TaskState.PARKED, **{**place, "due_at": timezone.now() + timedelta(hours=1), **given})


def frozen(actor: Actor = ALICE, kind: str = Operation.Kind.REQUEUE, **more: Any) -> Operation:
    """Return a requeue, or another ``kind``, of all tasks in the order of their rows, ready to run."""
    return freeze(kind, TaskRecord.objects.order_by("pk"), actor=actor, reason="repaired", **more)


def states() -> dict[str, int]:
    """Return how many tasks are in each state."""
    found: dict[str, int] = {}
    for state in TaskRecord.objects.values_list("state", flat=True):
        found[state] = found.get(state, 0) + 1
    return found
