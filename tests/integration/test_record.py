"""The record of a queue's ladder: kept in the broker, held by one process at a time."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import amqp
import kombu
import pytest

from celery_rmq_delay.amqp.apply import ready_counts
from celery_rmq_delay.amqp.confirms import publisher_on
from celery_rmq_delay.amqp.objects import Binding, Objects, Queue
from celery_rmq_delay.amqp.record import Record, locked_record, read_record, read_record_without_publishing
from celery_rmq_delay.amqp.route import Route
from celery_rmq_delay.exceptions import BrokerBlockedError, LockLostError, LockTimeoutError
from celery_rmq_delay.ladders import Ladder
from celery_rmq_delay.topology.transition import apply_plan
from tests.support.brokers.alarms import alarm
from tests.support.brokers.lab import Lab
from tests.support.waiting import BUSY, wait_for

pytestmark = pytest.mark.brokers


@pytest.fixture
def queue(lab):
    return lab.plan(Ladder((1000,))).record_queue()


def save(lab, queue, value):
    with locked_record(lab.connection, queue, BUSY) as (_, record):
        record.save(value)


def test_nothing_was_saved_in_a_new_record(lab, queue):
    assert read_record(lab.connection, queue) is None
    assert ready_counts(lab.connection, [queue.name]) == {queue.name: None}, "an inspection creates nothing"
    with locked_record(lab.connection, queue, BUSY) as (_, record):
        assert record.value is None
    assert read_record(lab.connection, queue) is None


def test_only_the_last_of_many_values_stays(lab, queue):
    with locked_record(lab.connection, queue, BUSY) as (_, record):
        for number in range(20):
            record.save({"number": number, "text": "ünïcode"})
            assert record.value == {"number": number, "text": "ünïcode"}
    assert read_record(lab.connect(), queue) == {"number": 19, "text": "ünïcode"}
    wait_for(lambda: ready_counts(lab.connection, [queue.name]) == {queue.name: 1}, "one message in the record")


def test_one_process_at_a_time_holds_the_record(lab, queue):
    """Many threads add one to the value: no addition is lost."""
    threads, rounds = 4, 8
    inside: list[int] = []

    def count():
        connection = lab.connect()
        for _ in range(rounds):
            with locked_record(connection, queue, BUSY) as (_, record):
                inside.append(threading.get_ident())
                assert set(inside) == {threading.get_ident()}, "another one holds it too"
                record.save({"number": (record.value or {"number": 0})["number"] + 1})
                inside.clear()

    with ThreadPoolExecutor(threads) as pool:
        for running in [pool.submit(count) for _ in range(threads)]:
            running.result()
    assert read_record(lab.connection, queue) == {"number": threads * rounds}


def test_the_error_of_a_lock_timeout_names_the_record(lab, queue):
    save(lab, queue, {"number": 1})
    other = lab.connect()
    with locked_record(lab.connection, queue, BUSY):
        begun = time.monotonic()
        with (
            pytest.raises(LockTimeoutError, match=rf"{queue.name} was held .* for 0\.3 s.*rmq-delay apply"),
            locked_record(other, queue, 0.3),
        ):
            pass
        assert 0.3 <= time.monotonic() - begun < BUSY
        with pytest.raises(LockTimeoutError):
            read_record(other, queue, 0.1)
    with locked_record(other, queue, BUSY) as (_, record):
        assert record.value == {"number": 1}


def test_the_next_holder_gets_the_value_saved_while_it_waited(lab, queue):
    save(lab, queue, {"number": 0})
    found: list[Any] = []

    def wait():
        with locked_record(lab.connect(), queue, BUSY) as (_, record):
            found.append(record.value)

    waiting = [threading.Thread(target=wait) for _ in range(3)]
    with locked_record(lab.connection, queue, BUSY) as (_, record):
        for thread in waiting:
            thread.start()
        while len(record._received) < 4:  # the value, and a marker of each waiting process
            lab.connection.drain_events(timeout=BUSY)
        for number in range(5):
            record.save({"number": number})
        assert found == []
    for thread in waiting:
        thread.join()
    assert found == [{"number": 4}] * 3


@pytest.mark.parametrize("saved", [False, True], ids=["before-saving", "after-saving"])
def test_the_lock_of_a_process_that_crashed_is_free_and_the_value_is_there(lab, queue, saved):
    save(lab, queue, {"number": 1})
    crashing = lab.connect()
    with pytest.raises(ZeroDivisionError), locked_record(crashing, queue, BUSY) as (_, record):
        if saved:
            record.save({"number": 2})
        crashing.collect()
        raise ZeroDivisionError
    with locked_record(lab.connection, queue, BUSY) as (_, record):
        assert record.value == {"number": 2 if saved else 1}


def test_a_crash_between_the_new_value_and_the_end_of_the_old_one_leaves_the_new_one(lab, queue, monkeypatch):
    save(lab, queue, {"number": 1})
    crashing = lab.connect()

    def crash(_record):
        crashing.collect()
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), locked_record(crashing, queue, BUSY) as (_, record):
        monkeypatch.setattr(Record, "_drop_older", crash)
        record.save({"number": 2})
    monkeypatch.undo()
    for _ in range(2):
        assert read_record(lab.connection, queue) == {"number": 2}
    wait_for(lambda: ready_counts(lab.connection, [queue.name]) == {queue.name: 1}, "the end of the old value")


def test_a_marker_that_a_crash_left_behind_is_ignored(lab, queue):
    save(lab, queue, {"number": 1})
    marker = amqp.Message("left", type="marker", delivery_mode=1, expiration="100")
    publisher_on(lab.channel).send(marker, Route("", queue.name))
    save(lab, queue, {"number": 2})
    assert read_record(lab.connection, queue) == {"number": 2}
    wait_for(
        lambda: read_record(lab.connection, queue) and ready_counts(lab.connection, [queue.name])[queue.name] == 1,
        "the end of the marker",
    )


def test_two_versions_that_apply_at_once_do_not_wait_for_each_other_for_long(lab):
    plan = lab.plan(Ladder((1000, 2000)))
    lab.applied(plan)
    with (
        locked_record(lab.connect(), plan.record_queue(), BUSY),
        pytest.raises(LockTimeoutError, match="was held by another process"),
    ):
        apply_plan(lab.connection, plan, lock_timeout=0.2)
    assert not apply_plan(lab.connection, replace(plan), lock_timeout=BUSY)


def test_in_an_alarm_a_record_is_not_held_and_can_be_read(lab, queue, own_broker):
    save(lab, queue, {"number": 1})
    refused = lab.connect()
    with alarm(own_broker):
        with pytest.raises(BrokerBlockedError, match="has a memory or disk alarm"), locked_record(refused, queue, BUSY):
            pass
        assert not refused.connected
        assert read_record_without_publishing(lab.connection, queue, BUSY) == {"number": 1}
    assert read_record(lab.connection, queue) == {"number": 1}


def test_a_record_that_is_held_or_missing_shows_nothing_at_a_glimpse(lab, queue):
    assert read_record_without_publishing(lab.connection, queue) is None
    assert ready_counts(lab.connection, [queue.name]) == {queue.name: None}, "an inspection creates nothing"
    save(lab, queue, {"number": 1})
    with locked_record(lab.connect(), queue, BUSY):
        assert read_record_without_publishing(lab.connection, queue, 0.3) is None


WRITES: dict[str, Callable[[Record, Lab, Queue], object]] = {
    "save": lambda record, _lab, _other: record.save({"number": 3}),
    "declare": lambda record, _lab, other: record.declare(Objects(queues=(other,))),
    "unbind": lambda record, _lab, other: record.unbind(Binding("amq.fanout", other.name)),
    "delete exchange": lambda record, _lab, other: record.delete_exchange(other.name),
    "delete unused": lambda record, lab, other: record.delete_unused(lab.connection, other),
    "start move": lambda record, _lab, other: record.start_move(other),
    "finish move": lambda record, _lab, other: record.finish_move(other, None),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_a_holder_whose_lock_was_taken_back_changes_nothing(classic_lab, write):
    lab, queue = classic_lab, classic_lab.plan(Ladder((1000,))).record_queue()
    other = replace(queue, name=lab.queue())
    with (
        pytest.raises(LockLostError),
        kombu.Connection(lab.url) as lost,
        locked_record(lost, queue, BUSY) as (_, record),
    ):
        record.moving = True
        lab.channel.queue_delete(queue.name)  # ends its consumer, as the end of a partition does
        save(lab, queue, {"number": 2})
        write(record, lab, other)
    assert read_record(lab.connection, queue) == {"number": 2}
    assert ready_counts(lab.connection, [other.name]) == {other.name: 0}
