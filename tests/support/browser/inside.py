"""Functions that tests have called in the shop's process, by name: ``shop.call("partner_is", "payments", "down")``.

Arguments and results travel as JSON. Only that process can import this module: the tests' own has other models.
"""

from __future__ import annotations

import random
from collections import Counter
from datetime import datetime, timedelta
from typing import Any

import amqp
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Permission
from django.db import transaction
from django.db.models import Count, F
from django.test import Client
from django.utils import timezone
from kombu.serialization import dumps
from orders.models import Order
from orders.services import request_payment
from shop.celery import app

from celery_rmq_delay.contrib.django.messages import call_digest, stored
from celery_rmq_delay.contrib.django.models import (
    CollectorStatus,
    FailureGroup,
    InsightRun,
    LookupValue,
    Operation,
    Payload,
    Tally,
    TaskRecord,
    UnreadableMessage,
)
from celery_rmq_delay.contrib.django.services.actors import Actor
from celery_rmq_delay.contrib.django.services.insight_runs import load
from celery_rmq_delay.contrib.django.services.operations import requests as operations
from example_django_project.demo.outages import Mood, Schedule
from example_django_project.demo.partners import PaymentGateway
from tests.support.browser.seeds import CAUSES, CHARGE, DECLINED, GATEWAY, MAIL, RECEIPT, Cause

#: The shop's stack, which its process sets.
running: Any = None


def partner_is(name: str, mood: str) -> None:
    """Let ``payments``, ``mail`` or ``feeds`` be ``up``, ``flaky``, ``slow`` or ``down`` from now on."""
    partner = {"payments": running.gateway, "mail": running.mail, "feeds": running.feeds}[name]
    partner.schedule = Schedule(((Mood(mood), float("inf")),))
    partner.schedule.start()


def gateway_answers(statuses: dict[str, int], times: int | None = None) -> None:
    """Let the gateway answer orders with a prefix with an HTTP status, ``times`` for each; others, and 200, as usual.

    Each status is a failure group of its own where httpx words it differently: 4xx is not 5xx.
    """
    gateway, asked = running.gateway, Counter[str]()

    def charge(key: str, card: str, amount: str) -> tuple[int, dict[str, str]]:
        status = next((status for prefix, status in statuses.items() if key.startswith(prefix)), 200)
        asked[key] += 1
        if status == 200 or (times is not None and asked[key] > times):
            return PaymentGateway.charge(gateway, key, card, amount)
        return status, {"error": "Not now."}

    gateway.charge = charge  # type: ignore[method-assign]


# -- the shop's work ------------------------------------------------------------------------------------------------


def order(prefix: str, count: int, card: str = "tok_good") -> list[str]:
    """Place orders ``PREFIX-001`` and so on; return the ids of their payment tasks."""
    references = [f"{prefix}-{number:03}" for number in range(1, count + 1)]
    Order.objects.bulk_create(
        Order(reference=each, email=f"{each}@example.org", card=card, amount="19.90") for each in references
    )
    return [request_payment(each) for each in references]


def send(name: str, args: list[Any], kwargs: dict[str, Any], task_id: str) -> None:
    app.send_task(name, args, kwargs, task_id=task_id)


def write_nonsense() -> None:
    with app.connection_for_write() as connection:
        connection.default_channel.basic_publish(
            connection.default_channel.prepare_message(b"\x80\x04 no event <script>alert('event')</script>"),
            exchange="",
            routing_key="rmq_delay.events",
        )


def discard(prefix: str, reason: str) -> int:
    """Discard the tasks with an id prefix, as a command would; return the number of the operation."""
    return int(operations.run(_frozen("discard", prefix, reason=reason)).pk)


def _frozen(kind: str, prefix: str, **more: Any) -> Operation:
    chosen = TaskRecord.objects.filter(task_id__startswith=prefix)
    return operations.freeze(kind, chosen, actor=Actor(None, "night shift"), **more)


def unreadable() -> int:
    return UnreadableMessage.objects.count()


def charged(prefix: str) -> list[str]:
    """Return the references of these orders that the gateway has charged."""
    with running.gateway.lock:
        return sorted(each for each in running.gateway.ledger if each.startswith(prefix))


def mailed(reference: str) -> int:
    """Return how many receipts of an order have arrived."""
    with running.mail.lock:
        return int(running.mail.delivered[f"receipt-{reference}"])


# -- states in the database ---------------------------------------------------------------------------------------


def states(prefix: str) -> dict[str, int]:
    counted = TaskRecord.objects.filter(task_id__startswith=prefix).order_by().values_list("state")
    return dict(counted.annotate(Count("pk")))


def record(task_id: str) -> dict[str, Any] | None:
    fields = ("pk", "state", "generation", "attempt", "queue", "args_preview", "kwargs_preview", "failure_group_id")
    return TaskRecord.objects.filter(task_id=task_id).values(*fields).first()


def operation(pk: int) -> dict[str, Any]:
    fields = ("kind", "state", "actor", "reason", "requested", "ok", "skipped", "failed", "unknown", "canary", "rate")
    found = Operation.objects.get(pk=pk)
    return {name: getattr(found, name) for name in fields}


def add_failed(prefix: str) -> int:
    """Add a requeue that could not send the tasks with an id prefix; return its number."""
    made = _frozen("requeue", prefix, not_before=timezone.now() + timedelta(days=1))
    failed = made.items.update(outcome="FAILED", detail="broker unreachable")
    Operation.objects.filter(pk=made.pk).update(state=Operation.State.DONE, failed=failed, finished_at=made.created_at)
    return int(made.pk)


def add_drift(by: int) -> None:
    """Add a running collector that has counted ``by`` more messages in the delay queues for an hour; 0 removes it."""
    now = timezone.now()
    CollectorStatus.objects.filter(name="drift").delete()
    if by:
        since = now - timedelta(hours=1)
        CollectorStatus.objects.create(
            name="drift", started_at=since, heartbeat_at=now, differs_by=by, differs_since=since
        )


# -- for pictures ---------------------------------------------------------------------------------------------------


def forget(prefix: str) -> None:
    TaskRecord.objects.filter(task_id__startswith=prefix).delete()
    FailureGroup.objects.filter(records=None).delete()


def make_up_a_day() -> None:
    """Move events into the last hours, and add figures of the hours before."""
    chance = random.Random(7)
    moments = ("changed_at", "parked_at", "due_at", "first_failed_at", "exhausted_at", "recovered_at")
    for record in TaskRecord.objects.all():
        ago = timedelta(minutes=chance.randrange(28 if record.state == "PARKED" else 240))
        for name in moments:
            if getattr(record, name) is not None:
                setattr(record, name, getattr(record, name) - ago)
        record.save(update_fields=moments)
        record.attempts.update(occurred_at=F("occurred_at") - ago, due_at=F("due_at") - ago)
    FailureGroup.objects.update(first_seen=F("first_seen") - timedelta(hours=20))
    now = Tally.objects.latest("slot").slot
    for hours in range(1, 24):
        number = chance.randrange(40, 160) + (400 if 9 <= hours <= 11 else 0)
        Tally.objects.create(
            slot=now - timedelta(hours=hours), queue="payments", name=CHARGE, parked=number,
            recovered=number * 4 // 5, exhausted=number // 7,
        )  # fmt: skip


def load_insights(folder: str) -> str:
    return str(load(folder))


def no_insights() -> None:
    InsightRun.objects.all().delete()


# -- people ---------------------------------------------------------------------------------------------------------


def add_superuser(name: str, password: str) -> None:
    get_user_model().objects.create_superuser(name, password=password)


def add_user(name: str, permissions: list[str]) -> None:
    """Add a staff user with these permissions only, such as ``view_exhaustedtask``."""
    user = get_user_model().objects.create_user(name, is_staff=True)
    found = Permission.objects.filter(content_type__app_label="rmq_delay", codename__in=permissions)
    assert {each.codename for each in found} == set(permissions)
    user.user_permissions.set(found)


def session_of(name: str) -> str:
    """Log a user in and return the session's key, the value of the cookie ``sessionid``."""
    client = Client()
    client.force_login(get_user_model().objects.get(username=name))
    return client.cookies["sessionid"].value


# -- a night after a long outage ------------------------------------------------------------------------------------


def fill_night() -> int:
    """Write the rows as the collector does, with the messages that a requeue publishes; return how many."""
    now = timezone.now()
    with transaction.atomic():
        for cause in CAUSES:
            _write(cause, now)
        cards = ((GATEWAY, "tok_good"), (DECLINED, "tok_stolen"), (MAIL, "tok_good"))
        Order.objects.bulk_create(
            Order(reference=f"{cause.prefix}{number:05}", email="night@example.org", card=card, amount="19.90")
            for cause, card in cards
            for number in range(cause.count)
        )
    return sum(cause.count for cause in CAUSES)


def _write(cause: Cause, now: datetime) -> None:
    place, prefix = CAUSES.index(cause), cause.prefix
    group = FailureGroup.objects.create(
        fingerprint=f"{place:064x}", exception_type=cause.error, message=cause.message, frame="orders/tasks.py:run",
        first_seen=now - timedelta(hours=8), last_seen=now - timedelta(minutes=place),
    )  # fmt: skip
    queue = {CHARGE: "payments", RECEIPT: "mail"}.get(cause.task, "default")
    messages = [_message(cause, f"{prefix}{number:05}") for number in range(cause.count)]
    records = TaskRecord.objects.bulk_create(
        TaskRecord(
            task_id=f"{prefix}{number:05}", root_id=f"{prefix}{number:05}", name=cause.task,
            state="EXHAUSTED", changed_at=now - timedelta(seconds=number), queue=queue, exchange=queue,
            routing_key=queue, worker="shop@node1", attempt=2, max_retries=2, ladder_ms=[1_000, 2_000],
            first_failed_at=now - timedelta(hours=8), parked_at=now - timedelta(hours=7),
            exhausted_at=now - timedelta(seconds=number), exception_type=cause.error, exception_message=cause.message,
            reason="retries_used", failure_group=group, args_preview=f"['{prefix}{number:05}']",
            kwargs_preview="{}", call_digest=call_digest(kept),
        )
        for number, kept in enumerate(messages)
    )  # fmt: skip
    Payload.objects.bulk_create(
        Payload(record=record, stored_at=now, **vars(kept)) for record, kept in zip(records, messages, strict=True)
    )
    slot = now.replace(minute=now.minute // 10 * 10, second=0, microsecond=0)
    Tally.objects.bulk_create(
        Tally(
            slot=slot - timedelta(hours=hour), queue=queue, name=cause.task, fingerprint=group.fingerprint,
            exhausted=cause.count // 8,
        )
        for hour in range(8)
    )  # fmt: skip
    for kind, value in (("queue", queue), ("task", cause.task), ("error", cause.error)):
        LookupValue.objects.get_or_create(kind=kind, value=value)


def _message(cause: Cause, task_id: str) -> Any:
    sent = app.amqp.as_task_v2(task_id, cause.task, (task_id,), {})
    content_type, encoding, body = dumps(sent.body, serializer="json")
    headers = {name: value for name, value in sent.headers.items() if name != "stamps"}
    return stored(
        amqp.Message(
            body, application_headers=headers, content_type=content_type, content_encoding=encoding,
            correlation_id=task_id, reply_to="",
        )
    )  # fmt: skip


def open_by_cause() -> dict[str, int]:
    """Return the number of exhausted tasks by the beginning of their ids."""
    tasks = TaskRecord.objects.filter(state="EXHAUSTED")
    return {cause.prefix: tasks.filter(task_id__startswith=cause.prefix).count() for cause in CAUSES}
