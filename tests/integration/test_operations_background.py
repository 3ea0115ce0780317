"""`rmq_delay_operate` runs several operations side by side: none waits for another one that pauses."""

import threading
from contextlib import contextmanager

import pytest
from django.db import connections

from celery_rmq_delay.contrib.django.models import Operation, TaskRecord, TaskState
from celery_rmq_delay.contrib.django.services.operations import background
from celery_rmq_delay.contrib.django.services.operations.requests import cancel, freeze
from tests.support.django import shop
from tests.support.django.desk import ALICE, BOB, Desk, states
from tests.support.waiting import BUSY, SECONDS, wait_for

Kind, State = Operation.Kind, Operation.State


@pytest.fixture
def desk(rmq_vhost, database):
    with shop.of(shop.make(rmq_vhost), broker_timeout=BUSY, inline_limit=2):
        yield Desk(rmq_vhost)


@contextmanager
def operating(*, once=False):
    """Run `operate` in a thread until the block ends."""
    stop = threading.Event()

    def work():
        try:
            background.operate(stop.is_set, once=once)
        finally:
            connections.close_all()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield thread
    finally:
        stop.set()
        thread.join(SECONDS)
        assert not thread.is_alive()


def of(tasks, kind=Kind.REQUEUE, **more):
    chosen = TaskRecord.objects.filter(pk__in=[task.pk for task in tasks]).order_by("pk")
    return freeze(kind, chosen, actor=ALICE, **more)


def state_of(operation):
    operation.refresh_from_db()
    return operation.state


def test_a_requeue_at_a_rate_blocks_no_other_operation(desk):
    slow = of(desk.exhausted(10), rate=1)
    discard = of(desk.exhausted(5), Kind.DISCARD)
    other = of(desk.exhausted(3), rate=6_000)
    with operating():
        for each in (discard, other):
            wait_for(lambda each=each: state_of(each) == State.DONE, "an end of the other operation")  # type: ignore[misc]
        wait_for(lambda: state_of(slow) == State.RUNNING, "a start of the requeue")
        cancel(slow, BOB)
        wait_for(lambda: state_of(slow) == State.CANCELLED, "the cancellation")
    assert states() == {TaskState.REQUEUED: slow.ok + 3, TaskState.EXHAUSTED: 10 - slow.ok, TaskState.DISCARDED: 5}
    assert len(desk.taken()) == slow.ok + 3


def test_a_requeue_that_watches_its_canaries_blocks_no_other_operation(desk):
    watching = of(desk.exhausted(5), canary=2)
    other = of(desk.exhausted(5))
    with operating():
        wait_for(lambda: state_of(other) == State.DONE, "an end of the other operation")
        wait_for(lambda: state_of(watching) == State.CANARY, "canaries on their way")
    assert state_of(watching) == State.PENDING, "handed over by the process that stopped"
    assert (watching.ok, other.message) == (2, "5 requeued")


def test_many_requeues_at_a_rate_leave_a_place_for_a_discard(desk, monkeypatch):
    monkeypatch.setattr(background, "GRADUAL_AT_ONCE", 2)
    slow = [of(desk.exhausted(3), rate=1) for _ in range(3)]
    discard = of(desk.exhausted(3), Kind.DISCARD)
    with operating():
        wait_for(lambda: state_of(discard) == State.DONE, "an end of the discard")
        expected = [State.RUNNING, State.RUNNING, State.PENDING]
        wait_for(lambda: [state_of(each) for each in slow] == expected, "a start of two requeues")
        cancel(slow[0], BOB)
        wait_for(lambda: state_of(slow[2]) == State.RUNNING, "a start of the one that waited")


def test_once_ends_when_every_operation_has_ended(desk):
    operations = [of(desk.exhausted(20), rate=1_200), of(desk.exhausted(5), Kind.DISCARD), of(desk.exhausted(5))]
    with operating(once=True) as thread:
        thread.join(SECONDS)
        assert not thread.is_alive()
    assert [state_of(each) for each in operations] == [State.DONE] * 3


def test_two_processes_run_each_operation_once(desk):
    operations = [of(desk.exhausted(10), **more) for more in ({}, {"rate": 3_000}, {"rate": 3_000}, {})]
    with operating(), operating():
        for each in operations:
            wait_for(lambda each=each: state_of(each) == State.DONE, "an end of the operation")  # type: ignore[misc]
    assert [each.message for each in operations] == ["10 requeued"] * 4
    arrived = sorted(message.headers["id"] for message in desk.taken())
    assert arrived == sorted(f"id-{number}" for number in range(40))


def test_a_requeue_whose_broker_is_away_blocks_no_discard(desk):
    requeue, discard = of(desk.exhausted(5)), of(desk.exhausted(5), Kind.DISCARD)
    with shop.of(shop.make("amqp://127.0.0.1:1//"), broker_timeout=1, inline_limit=2), operating():
        wait_for(lambda: state_of(discard) == State.DONE, "an end of the discard")
        wait_for(lambda: state_of(requeue) == State.RUNNING, "a start of the requeue")
    assert (state_of(requeue), requeue.remaining, discard.message) == (State.PENDING, 5, "5 discarded")
