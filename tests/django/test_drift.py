"""A lasting difference between delay queues and table: found, kept with its time, and shown."""

from datetime import timedelta

import kombu
import pytest
from django.utils import timezone

from celery_rmq_delay.contrib.django.collecting import status
from celery_rmq_delay.contrib.django.collecting.database import Database
from celery_rmq_delay.contrib.django.collecting.status import Status
from celery_rmq_delay.contrib.django.models import CollectorStatus, TaskState
from celery_rmq_delay.contrib.django.queries import DIFFERS_AFTER
from celery_rmq_delay.contrib.django.services import counts
from celery_rmq_delay.contrib.django.services.counts import BrokerCounts, parked_difference
from tests.support.brokers.kinds import POSTGRES_TABLES
from tests.support.django import people
from tests.support.django.admin_pages import BASE
from tests.support.django.batches import QUEUE, writer
from tests.support.django.records import record
from tests.support.django.shop import make, of

WAITING = {"delay_queue": "payments.retry.1.1h"}


def parked(count, now, seconds, **given):
    for _ in range(count):
        record(TaskState.PARKED, due_at=now + timedelta(seconds=seconds), **{**WAITING, **given})


#: What the delay queues hold, the events that wait, and the difference.
CASES = [
    (5, 0, 0), (8, 0, 0), (9, 0, 1), (4, 0, -1), (0, 0, -5), (12, 4, 0), (13, 4, 1), (1, 4, 0), (0, 4, -1),
    (8, None, 0),
]  # fmt: skip


@POSTGRES_TABLES
@pytest.mark.usefixtures("tables")
@pytest.mark.parametrize(("held", "events", "expected"), CASES)
def test_the_difference_is_what_is_left_beyond_what_is_in_flight(held, events, expected):
    now = timezone.now()
    parked(5, now, 3600)
    parked(3, now, -30)  # they may be in the delay queue, or run
    parked(9, now, -3600)  # they run, or wait for a worker
    parked(2, now, 3600, delay_queue="")  # exact delays
    record(TaskState.EXHAUSTED, due_at=now + timedelta(hours=1), **WAITING)
    found = BrokerCounts(ok=True, parked_by_queue={"payments": held}, exact=2, events=events)
    assert parked_difference(found, now) == expected


@pytest.mark.usefixtures("tables")
def test_the_difference_is_unknown_while_the_broker_does_not_answer():
    assert parked_difference(BrokerCounts(ok=False, error="away"), timezone.now()) is None


@pytest.fixture
def app(sqlite, rmq_vhost):
    """A shop whose delay queues are empty."""
    with of(make(rmq_vhost)) as found:
        with kombu.Connection(rmq_vhost) as connection:
            found.amqp.queues["payments"].bind(connection.default_channel).declare()
        counts.forget()
        yield found
    counts.forget()


def test_a_lasting_difference_is_kept_with_its_time_and_shown(app, monkeypatch):
    monkeypatch.setattr(status, "COMPARE_EVERY", 0.0)
    client, database = people.superuser(), Database()
    collector = Status("node:1", QUEUE, database, writer(database=database))

    def page():
        text: str = client.get(f"{BASE}/parkedtask/").content.decode()
        return text

    collector.save()
    assert CollectorStatus.objects.get().differs_since is None
    parked(3, timezone.now(), 3600)
    collector.save()
    first = CollectorStatus.objects.get()
    assert (first.differs_by, first.differs_since is None) == (-3, False)
    collector.save()
    assert CollectorStatus.objects.get().differs_since == first.differs_since
    assert "in no delay queue" not in page(), "it may be in flight"
    begun = timezone.now() - DIFFERS_AFTER
    CollectorStatus.objects.update(differs_since=begun)
    assert "the table has 3 parked tasks that are in no delay queue" in page()
    CollectorStatus.objects.update(differs_by=1)
    assert "the delay queues hold 1 task that the table does not have" in page()
    assert "Difference since" in client.get(f"{BASE}/collectorstatus/{first.pk}/change/").content.decode()
