"""A night after a long outage: 40,000 exhausted tasks in 12 failure groups, called in the shop's process.

Written as the collector writes them, with the messages that a requeue publishes: the tasks run in the shop's worker.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, NamedTuple


class Cause(NamedTuple):
    """A failure group: the task, its error, and how many tasks it has exhausted."""

    task: str
    error: str
    message: str
    count: int


CHARGE, RECEIPT, PRICES = "orders.tasks.charge", "orders.tasks.send_receipt", "catalogue.tasks.import_prices"
GATEWAY = Cause(CHARGE, "orders.gateway.GatewayError", "ReadTimeout: the gateway did not answer", 14_000)
DECLINED = Cause(CHARGE, "orders.gateway.InvalidCard", "The card was declined", 9_000)
MAIL = Cause(RECEIPT, "smtplib.SMTPServerDisconnected", "Connection unexpectedly closed", 8_000)
CAUSES = (
    GATEWAY,
    DECLINED,
    MAIL,
    *(Cause(PRICES, f"catalogue.feeds.Feed{name}Error", "The feed is broken", 1_000) for name in "ABCDEFGHI"),
)


def prefix(cause: Cause) -> str:
    """Return how the ids of the tasks of a group begin."""
    return f"night-{CAUSES.index(cause):02}-"


def fill() -> int:
    """Write the rows; return how many."""
    from django.db import transaction
    from django.utils import timezone
    from orders.models import Order

    now = timezone.now()
    with transaction.atomic():
        for cause in CAUSES:
            _write(cause, now)
        cards = ((GATEWAY, "tok_good"), (DECLINED, "tok_stolen"), (MAIL, "tok_good"))
        Order.objects.bulk_create(
            Order(reference=f"{prefix(cause)}{number:05}", email="night@example.org", card=card, amount="19.90")
            for cause, card in cards
            for number in range(cause.count)
        )
    return sum(cause.count for cause in CAUSES)


def _write(cause: Cause, now: datetime) -> None:
    from celery_rmq_delay.contrib.django.messages import call_digest
    from celery_rmq_delay.contrib.django.models import FailureGroup, LookupValue, Payload, Tally, TaskRecord

    place = CAUSES.index(cause)
    group = FailureGroup.objects.create(
        fingerprint=f"{place:064x}", exception_type=cause.error, message=cause.message, frame="orders/tasks.py:run",
        first_seen=now - timedelta(hours=8), last_seen=now - timedelta(minutes=place),
    )  # fmt: skip
    queue = {CHARGE: "payments", RECEIPT: "mail"}.get(cause.task, "default")
    messages = [_message(cause, f"{prefix(cause)}{number:05}") for number in range(cause.count)]
    records = TaskRecord.objects.bulk_create(
        TaskRecord(
            task_id=f"{prefix(cause)}{number:05}", root_id=f"{prefix(cause)}{number:05}", name=cause.task,
            state="EXHAUSTED", changed_at=now - timedelta(seconds=number), queue=queue, exchange=queue,
            routing_key=queue, worker="shop@node1", attempt=2, max_retries=2, ladder_ms=[1_000, 2_000],
            first_failed_at=now - timedelta(hours=8), parked_at=now - timedelta(hours=7),
            exhausted_at=now - timedelta(seconds=number), exception_type=cause.error, exception_message=cause.message,
            reason="retries_used", failure_group=group, args_preview=f"['{prefix(cause)}{number:05}']",
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
    import amqp
    from shop.celery import app

    from celery_rmq_delay.contrib.django.messages import stored

    sent = app.amqp.as_task_v2(task_id, cause.task, (task_id,), {})
    content_type, encoding, body = _dumped(sent.body)
    headers = {name: value for name, value in sent.headers.items() if name != "stamps"}
    return stored(
        amqp.Message(
            body, application_headers=headers, content_type=content_type, content_encoding=encoding,
            correlation_id=task_id, reply_to="",
        )
    )  # fmt: skip


def _dumped(body: Any) -> tuple[str, str, str]:
    from kombu.serialization import dumps

    found: tuple[str, str, str] = dumps(body, serializer="json")
    return found


def open_by_cause() -> dict[str, int]:
    """Return the number of exhausted tasks by the beginning of their ids."""
    from celery_rmq_delay.contrib.django.models import TaskRecord

    tasks = TaskRecord.objects.filter(state="EXHAUSTED")
    return {prefix(cause): tasks.filter(task_id__startswith=prefix(cause)).count() for cause in CAUSES}
