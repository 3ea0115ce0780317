"""Functions that tests have called in the shop's process: ``shop.call(inside.partner_is, "payments", "down")``.

Arguments and results travel as JSON. The shop's models can be imported in that process only, so within the functions.
"""

from __future__ import annotations

import os
from collections import Counter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from example_django_project.demo.stack import Stack

#: Set by the shop's process.
running: Stack | None = None


def stack() -> Stack:
    assert running is not None
    return running


def pid() -> int:
    """Return the id of the shop's process."""
    return os.getpid()


def worker_is_running() -> bool:
    """Return whether the worker's main process runs."""
    return stack().worker.is_running()


def end_worker() -> None:
    """Kill the worker as the kernel's out-of-memory killer does."""
    stack().worker.end("kill", timeout=30)


def partner_is(name: str, mood: str) -> None:
    """Let ``payments``, ``mail`` or ``feeds`` be ``up``, ``flaky``, ``slow`` or ``down`` from now on."""
    from example_django_project.demo.outages import Mood, Schedule

    partner = {"payments": stack().gateway, "mail": stack().mail, "feeds": stack().feeds}[name]
    partner.schedule = Schedule(((Mood(mood), float("inf")),))
    partner.schedule.start()


def gateway_answers(statuses: dict[str, int], times: int | None = None) -> None:
    """Let the gateway answer orders with a prefix with an HTTP status; others, and 200, as usual.

    ``times``: so often for each order, and then as usual.

    Each status is a failure group of its own where httpx words it differently: 4xx is not 5xx.
    """
    from example_django_project.demo.partners import PaymentGateway

    gateway, asked = stack().gateway, Counter[str]()

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
    from orders.models import Order
    from orders.services import request_payment

    references = [f"{prefix}-{number:03}" for number in range(1, count + 1)]
    Order.objects.bulk_create(
        Order(reference=each, email=f"{each}@example.org", card=card, amount="19.90") for each in references
    )
    return [request_payment(each) for each in references]


def send(name: str, args: list[Any], kwargs: dict[str, Any], task_id: str) -> None:
    """Send any task with any arguments, as another program could."""
    from shop.celery import app

    app.send_task(name, args, kwargs, task_id=task_id)


def write_nonsense() -> None:
    """Write an invalid message into the queue of events."""
    from shop.celery import app

    with app.connection_for_write() as connection:
        connection.default_channel.basic_publish(
            connection.default_channel.prepare_message(b"\x80\x04 no event <script>alert('event')</script>"),
            exchange="",
            routing_key="rmq_delay.events",
        )


def discard(prefix: str, reason: str) -> int:
    """Discard the tasks with an id prefix, as a command would; return the number of the operation."""
    from celery_rmq_delay.contrib.django.models import Operation, TaskRecord
    from celery_rmq_delay.contrib.django.services.actors import Actor
    from celery_rmq_delay.contrib.django.services.operations import requests as operations

    chosen = TaskRecord.objects.filter(task_id__startswith=prefix)
    actor = Actor(None, "night shift")
    operation = operations.run(operations.freeze(Operation.Kind.DISCARD, chosen, actor=actor, reason=reason))
    return int(operation.pk)


def unreadable() -> int:
    """Return how many messages the collector could not read."""
    from celery_rmq_delay.contrib.django.models import UnreadableMessage

    return UnreadableMessage.objects.count()


def charged(prefix: str) -> list[str]:
    """Return the references of these orders that the gateway has charged."""
    with stack().gateway.lock:
        return sorted(each for each in stack().gateway.ledger if each.startswith(prefix))


def mailed(reference: str) -> int:
    """Return how many receipts of an order have arrived."""
    with stack().mail.lock:
        return int(stack().mail.delivered[f"receipt-{reference}"])


# -- states in the database ---------------------------------------------------------------------------------------


def states(prefix: str) -> dict[str, int]:
    """Return the number of tasks with an id prefix by state."""
    from django.db.models import Count

    from celery_rmq_delay.contrib.django.models import TaskRecord

    counted = TaskRecord.objects.filter(task_id__startswith=prefix).order_by().values_list("state")
    return dict(counted.annotate(Count("pk")))


def record(task_id: str) -> dict[str, Any] | None:
    """Return the state of a task in the database."""
    from celery_rmq_delay.contrib.django.models import TaskRecord

    fields = ("pk", "state", "generation", "attempt", "queue", "args_preview", "kwargs_preview", "failure_group_id")
    return TaskRecord.objects.filter(task_id=task_id).values(*fields).first()


def operation(pk: int) -> dict[str, Any]:
    """Return the columns of an operation in the database."""
    from celery_rmq_delay.contrib.django.models import Operation

    fields = ("kind", "state", "actor", "reason", "requested", "ok", "skipped", "failed", "unknown", "canary", "rate")
    found = Operation.objects.get(pk=pk)
    return {name: getattr(found, name) for name in fields}


def add_exhausted(prefix: str, count: int, error: str) -> int:
    """Add exhausted tasks in a failure group of their own, without their messages; return the group's number."""
    from django.utils import timezone

    from celery_rmq_delay.contrib.django.models import FailureGroup, TaskRecord, TaskState

    now = timezone.now()
    group = FailureGroup.objects.create(fingerprint=prefix, exception_type=error, first_seen=now, last_seen=now)
    TaskRecord.objects.bulk_create(
        TaskRecord(
            task_id=f"{prefix}-{number:03}",
            name="orders.tasks.charge",
            queue="payments",
            state=TaskState.EXHAUSTED,
            changed_at=now,
            exhausted_at=now,
            exception_type=error,
            failure_group=group,
        )
        for number in range(count)
    )
    return int(group.pk)


def add_failed(prefix: str) -> int:
    """Add a requeue that could not send the tasks with an id prefix; return its number."""
    from celery_rmq_delay.contrib.django.models import Operation, TaskRecord
    from celery_rmq_delay.contrib.django.services.actors import Actor
    from celery_rmq_delay.contrib.django.services.operations import requests as operations

    chosen = TaskRecord.objects.filter(task_id__startswith=prefix)
    made = operations.freeze(Operation.Kind.REQUEUE, chosen, actor=Actor(None, "night shift"), not_before=_later())
    failed = made.items.update(outcome="FAILED", detail="broker unreachable")
    Operation.objects.filter(pk=made.pk).update(state=Operation.State.DONE, failed=failed, finished_at=made.created_at)
    return int(made.pk)


def _later() -> Any:
    from datetime import timedelta

    from django.utils import timezone

    return timezone.now() + timedelta(days=1)


def add_drift(by: int) -> None:
    """Add a running collector that has counted ``by`` more messages in the delay queues for an hour; 0 removes it."""
    from datetime import timedelta

    from django.utils import timezone

    from celery_rmq_delay.contrib.django.models import CollectorStatus

    now = timezone.now()
    CollectorStatus.objects.filter(name="drift").delete()
    if by:
        since = now - timedelta(hours=1)
        CollectorStatus.objects.create(
            name="drift", started_at=since, heartbeat_at=now, differs_by=by, differs_since=since
        )


# -- for pictures ---------------------------------------------------------------------------------------------------


def forget(prefix: str) -> None:
    """Delete the tasks with an id prefix, and groups without tasks."""
    from celery_rmq_delay.contrib.django.models import FailureGroup, TaskRecord

    TaskRecord.objects.filter(task_id__startswith=prefix).delete()
    FailureGroup.objects.filter(records=None).delete()


def make_up_a_day() -> None:
    """Move events into the last hours, and add figures of the hours before."""
    import random
    from datetime import timedelta

    from django.db.models import F

    from celery_rmq_delay.contrib.django.models import FailureGroup, Tally, TaskRecord

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
            slot=now - timedelta(hours=hours),
            queue="payments",
            name="orders.tasks.charge",
            parked=number,
            recovered=number * 4 // 5,
            exhausted=number // 7,
        )


def load_insights(folder: str) -> str:
    """Load a finished output of the analytics; return its description."""
    from celery_rmq_delay.contrib.django.services.insight_runs import load

    return str(load(folder))


def no_insights() -> None:
    """Remove the loaded insights."""
    from celery_rmq_delay.contrib.django.models import InsightRun

    InsightRun.objects.all().delete()


# -- people ---------------------------------------------------------------------------------------------------------


def add_superuser(name: str, password: str) -> None:
    from django.contrib.auth import get_user_model

    get_user_model().objects.create_superuser(name, password=password)


def add_user(name: str, permissions: list[str]) -> None:
    """Add a staff user with these permissions only, such as ``view_exhaustedtask``."""
    from django.contrib.auth import get_user_model
    from django.contrib.auth.models import Permission

    user = get_user_model().objects.create_user(name, is_staff=True)
    found = Permission.objects.filter(content_type__app_label="rmq_delay", codename__in=permissions)
    assert {each.codename for each in found} == set(permissions)
    user.user_permissions.set(found)


def session_of(name: str) -> str:
    """Log a user in and return the session's key, the value of the cookie ``sessionid``."""
    from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY, get_user_model
    from django.contrib.sessions.backends.db import SessionStore

    user = get_user_model().objects.get(username=name)
    session = SessionStore()
    session[SESSION_KEY] = str(user.pk)
    session[BACKEND_SESSION_KEY] = "django.contrib.auth.backends.ModelBackend"
    session[HASH_SESSION_KEY] = user.get_session_auth_hash()
    session.save()
    assert session.session_key is not None
    return session.session_key
