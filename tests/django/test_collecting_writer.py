"""Writing of batches when rows are refused or locked, and decoding of frames."""

import logging
import threading
from datetime import datetime, timedelta, timezone
from struct import pack
from typing import Any

import pytest
from django.db import IntegrityError, OperationalError, connection, transaction
from django.test import override_settings

from celery_rmq_delay.contrib.django.collecting import batches as writing
from celery_rmq_delay.contrib.django.collecting import status
from celery_rmq_delay.contrib.django.collecting.batches import Written
from celery_rmq_delay.contrib.django.collecting.consumer import Consumer, Delivery, frame_handler
from celery_rmq_delay.contrib.django.collecting.database import Database
from celery_rmq_delay.contrib.django.collecting.facts import Fact
from celery_rmq_delay.contrib.django.models import CollectorStatus, FailureGroup, TaskRecord, UnreadableMessage
from celery_rmq_delay.contrib.django.services.operations.claims import lock
from celery_rmq_delay.events.schema import PARKED, ROLLUP, ROLLUP_SECONDS, Event
from celery_rmq_delay.exceptions import AbandonedError
from tests.support.brokers.kinds import BOTH_DATABASES
from tests.support.django.batches import QUEUE, batch, delivery, method, writer
from tests.support.django.databases import waiting_for_locks
from tests.support.django.reported import event, fact
from tests.support.waiting import wait_for

DELIVER, HEADER, BODY = 1, 2, 3


class Refusing(Database):
    """A database that refuses some tasks, or everything so many times."""

    def __init__(self, *tasks, times=0):
        super().__init__()
        self.tasks, self.times = tasks, times
        self.calls = 0

    def write(self, batch):
        self.calls += 1
        if self.calls <= self.times:
            raise OperationalError("the database is away")
        if any(isinstance(each, Fact) and each.event.task_id in self.tasks for each in batch):
            raise ValueError("no such task, please")
        super().write(batch)


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(writing, "FIRST_PAUSE", 0.001)


# -- batches -------------------------------------------------------------------------------------------------------


@BOTH_DATABASES
@pytest.mark.usefixtures("database")
def test_a_rollup_at_the_end_of_its_interval_is_no_lag():
    now = datetime.now(timezone.utc)
    rollup = event("t", ROLLUP, occurred_at=now - timedelta(seconds=ROLLUP_SECONDS), ok_count=3)
    assert writer().write(batch(rollup)).lag_ms < 5_000
    assert writer().write(batch(event("t", PARKED, occurred_at=now - timedelta(seconds=10)))).lag_ms >= 10_000


@BOTH_DATABASES
@pytest.mark.usefixtures("database")
def test_a_collector_of_a_project_with_debug_keeps_no_queries_in_memory():
    database = Database()
    with override_settings(DEBUG=True):
        database.tidy()
        assert database.connection.queries, "Django keeps them"
        writer(database=database).write(batch(event("a")))
    assert not database.connection.queries


@BOTH_DATABASES
@pytest.mark.usefixtures("database", "impatient")
def test_a_batch_waits_for_an_unreachable_database():
    away = Refusing(times=3)
    waiting = writer(database=away)
    waiting.write(batch(event("a"), event("b")))
    assert (away.calls, waiting.problem) == (4, None)
    assert TaskRecord.objects.count() == 2


@BOTH_DATABASES
@pytest.mark.usefixtures("database", "impatient")
def test_a_batch_that_cannot_be_written_stays_in_the_broker_at_the_end():
    stop = threading.Event()
    waiting = writer(database=Refusing(times=10**6), stop=stop)
    timer = threading.Timer(0.2, stop.set)
    timer.start()
    with pytest.raises(AbandonedError, match="the database is away"):
        waiting.write(batch(event("a")))
    timer.join()
    assert waiting.problem == "The database: OperationalError: the database is away"


@pytest.mark.usefixtures("database")
@pytest.mark.parametrize("bad", [("t0",), ("t7", "t8"), ("t39", "t3", "t20")])
def test_a_refused_row_is_set_aside_and_the_rest_of_its_batch_is_written(bad):
    writer(database=Refusing(*bad)).write(batch(*(event(f"t{number}") for number in range(40))))
    assert TaskRecord.objects.count() == 40 - len(bad)
    kept = {Event.from_json(bytes(each.body)).task_id for each in UnreadableMessage.objects.all()}
    assert kept == set(bad)


@BOTH_DATABASES
@pytest.mark.usefixtures("database")
def test_a_group_that_is_deleted_between_two_batches_costs_no_message():
    database = Database()
    one = writer(database=database)
    one.write(batch(event("a")))
    TaskRecord.objects.all().delete()
    FailureGroup.objects.all().delete()
    one.write(batch(event("b")))
    assert TaskRecord.objects.get(task_id="b").failure_group == FailureGroup.objects.get()
    assert not UnreadableMessage.objects.exists()


def test_only_errors_about_rows_take_a_batch_apart():
    class Limit(Exception):
        sqlstate = "54000"

    over_the_limit = OperationalError("index row size")
    over_the_limit.__cause__ = Limit()
    for about_rows in (over_the_limit, IntegrityError("x"), ValueError("x"), OverflowError("x")):
        assert writing.is_about_data(about_rows)
    for about_more in (OperationalError("x"), AbandonedError("x"), MemoryError()):
        assert not writing.is_about_data(about_more)


# -- two writers of the same rows ----------------------------------------------------------------------------------


@pytest.mark.usefixtures("postgres")
def test_collectors_and_operations_do_not_wait_for_each_other_in_a_circle():
    for task in ("c", "b", "a"):  # made in another order than that of their names
        Database().write([fact(task)])
    keys = list(TaskRecord.objects.values_list("pk", flat=True))
    problems: list[Exception] = []

    def guarded(act):
        try:
            with transaction.atomic():
                act()
        except Exception as error:  # noqa: BLE001 - reported in the test
            problems.append(error)
        finally:
            connection.close()

    acts = (lambda: Database().write([fact(task, PARKED, 1) for task in "abc"]), lambda: lock(keys))
    threads = [threading.Thread(target=guarded, args=[act]) for act in acts]
    with transaction.atomic():
        lock([TaskRecord.objects.get(task_id="b").pk])
        for thread in threads:
            thread.start()
        wait_for(lambda: waiting_for_locks() == 2, "both to come as far as the one in the middle")
    for thread in threads:
        thread.join()
    assert not problems


# -- frames --------------------------------------------------------------------------------------------------------


class Wire:
    """The attributes of a connection that a frame handler uses."""

    bytes_recv = 0


@pytest.fixture
def frames():
    taken: list[Delivery] = []
    others: list[Any] = []
    handle = frame_handler(taken.append)(Wire(), lambda *frame: others.append(frame))
    yield taken, handle
    assert not others, "py-amqp did not receive it"


def test_a_message_in_several_frames_is_one_delivery(frames):
    taken, handle = frames
    assert not handle((DELIVER, 1, method(delivery_tag=9)))
    assert not handle((HEADER, 1, pack(">HHQH", 60, 0, 6, 0)))
    assert not handle((BODY, 1, b"abc"))
    assert handle((BODY, 1, b"def"))
    (found,) = taken
    assert (found.body, found.delivery_tag, found.consumer_tag) == (b"abcdef", 9, "rmq-delay-0")


def test_messages_of_two_channels_may_take_turns(frames):
    taken, handle = frames
    for channel in (1, 2):
        handle((DELIVER, channel, method(delivery_tag=channel)))
        handle((HEADER, channel, pack(">HHQH", 60, 0, 1, 0)))
    for channel in (2, 1):
        handle((BODY, channel, str(channel).encode()))
    assert [(each.delivery_tag, each.body) for each in taken] == [(2, b"2"), (1, b"1")]


def test_a_message_without_a_body_needs_no_body_frame(frames):
    taken, handle = frames
    handle((DELIVER, 1, method()))
    assert handle((HEADER, 1, pack(">HHQH", 60, 0, 0, 0)))
    assert [each.body for each in taken] == [b""]


def test_a_batch_is_limited_by_count_and_bytes():
    app: Any = None  # it does not connect
    consumer = Consumer(app, [QUEUE], 10)
    for number in range(10):
        consumer._take(delivery(b"x" * 1000, number))
    assert [len(consumer.take(100, 2500)), len(consumer.take(3, 10**6)), len(consumer.take(100, 1))] == [3, 3, 1]
    assert consumer.size == sum(each.size for _, each in consumer.received)
    assert len(consumer.received) == 3


@pytest.mark.django_db(transaction=True)
def test_an_unreadable_message_is_the_last_error_for_an_hour(monkeypatch):
    of_collector = status.Status("one", QUEUE, Database(), writer())
    of_collector.count(batch(event("a")), Written(unreadable=1, lag_ms=0))
    of_collector.save()
    assert "1 message" in CollectorStatus.objects.get().last_error
    monkeypatch.setattr(status, "ERROR_SHOWN", timedelta(0))
    of_collector.save()
    assert not CollectorStatus.objects.get().last_error


@pytest.mark.django_db(transaction=True)
def test_a_summary_is_logged_from_time_to_time(monkeypatch, caplog):
    caplog.set_level(logging.INFO, "celery_rmq_delay")
    of_collector = status.Status("one", QUEUE, Database(), writer())
    of_collector.count(batch(event("a"), event("b")), Written(unreadable=1, lag_ms=12))
    of_collector.waiting = 7
    of_collector.report()
    assert not caplog.records, "it is not due"
    monkeypatch.setattr(of_collector, "_report_at", 0.0)
    for _ in range(2):
        of_collector.report()
    (record,) = caplog.records
    assert record.getMessage() == (
        "2 events and 0 exhausted messages collected, 1 of them unreadable; lag 12 ms, 7 waiting"
    )
