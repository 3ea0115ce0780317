"""Parked tasks that a user runs now or discards: they leave their delay queues, the others keep their places."""

import time

import kombu
import pytest
from django.utils import timezone

from celery_rmq_delay import headers as h
from celery_rmq_delay.amqp.capabilities import capabilities
from celery_rmq_delay.amqp.scan import Scan, inspection_leaves_no_trace
from celery_rmq_delay.contrib.django.collecting.database import Database
from celery_rmq_delay.contrib.django.models import Attempt, Operation, Payload, TaskRecord, TaskState
from celery_rmq_delay.contrib.django.services.operations import parked
from celery_rmq_delay.contrib.django.services.operations.requests import freeze, run
from celery_rmq_delay.names import return_key
from tests.support.brokers.alarms import alarm
from tests.support.brokers.parking import metadata_to_disk
from tests.support.django import shop
from tests.support.django.desk import ALICE, ParkedDesk, states
from tests.support.django.reported import fact
from tests.support.waiting import BUSY, wait_for

Kind, State = Operation.Kind, Operation.State


@pytest.fixture
def desk(rmq_vhost, sqlite, queue_type):
    queues = [kombu.Queue("payments", queue_arguments={"x-queue-type": queue_type})]
    made = shop.make(rmq_vhost, task_queues=queues, task_default_queue_type=queue_type)
    with shop.of(made, broker_timeout=30) as app:
        yield ParkedDesk(rmq_vhost, app)


def done(kind, *task_ids):
    records = TaskRecord.objects.filter(task_id__in=task_ids).order_by("pk")
    return run(freeze(kind, records, actor=ALICE, reason="a test"))


@pytest.mark.brokers
def test_a_parked_task_runs_now_and_the_others_stay(desk):
    desk.parked(4)
    operation = done(Kind.RUN_NOW, "id-1", "id-2")
    assert (operation.state, operation.message) == (State.DONE, "2 sent to run now")
    messages = desk.taken()
    assert [message.headers["id"] for message in messages] == ["id-1", "id-2"]
    assert [message.delivery_info["routing_key"] for message in messages] == [return_key("payments", 1)] * 2
    assert [message.headers["retries"] for message in messages] == [1, 1]
    assert desk.counts(desk.delay_queue(1)) == [2]
    assert states() == {TaskState.PARKED: 2, TaskState.RUNNING: 2}
    assert set(Attempt.objects.values_list("kind", "reason", "worker")) == {("requeued", "run_now", "alice")}


@pytest.mark.brokers
def test_a_discarded_parked_task_is_kept_and_can_be_requeued(desk):
    desk.parked(3)
    assert done(Kind.DISCARD, "id-1").message == "1 discarded"
    assert desk.counts(desk.delay_queue(1), "payments") == [2, 0]
    assert states() == {TaskState.PARKED: 2, TaskState.DISCARDED: 1}
    assert Payload.objects.get().body == b"body 1"

    assert done(Kind.RESTORE, "id-1").message == "1 restored"
    assert done(Kind.REQUEUE, "id-1").message == "1 requeued"
    (message,) = desk.taken()
    assert message.headers.pop("x-delivery-count", 0) == 0  # a quorum queue's
    named = {h.GENERATION: 1, h.LIFE: h.FIRST_LIFE}
    assert message.headers == {"id": "id-1", "task": "payments.charge", "retries": 0, **named}


@pytest.mark.slow
@pytest.mark.parametrize("queue_type", ["quorum"])
def test_tasks_discarded_from_quorum_queues_do_not_come_back_when_the_broker_is_killed(desk, own_broker, monkeypatch):
    """Those of classic queues can: RabbitMQ 3.10.8 has their acks on disk after some 0.3 s."""
    desk.parked(120)
    metadata_to_disk(own_broker)
    settle = parked.Discard._settle

    def killed_when_done(work, settled):
        settle(work, settled)
        if TaskRecord.objects.filter(state=TaskState.DISCARDED).count() == 100:
            own_broker.kill()

    monkeypatch.setattr(parked.Discard, "_settle", killed_when_done)
    with shop.of(shop.found, broker_timeout=5):
        done(Kind.DISCARD, *(f"id-{number}" for number in range(100)))
    assert own_broker.pid is None
    own_broker.start()
    wait_for(lambda: desk.counts(desk.delay_queue(1)) == [20], "the tasks that were not discarded")


def test_a_late_event_does_not_park_a_discarded_task_again(desk):
    desk.parked(1, retries=2)
    assert done(Kind.DISCARD, "id-0").message == "1 discarded"
    for attempt in (1, 2):
        Database().write([fact("id-0", attempt=attempt)])
    assert states() == {TaskState.DISCARDED: 1}


def test_a_task_that_is_due_is_not_found(desk):
    desk.parked(2)
    TaskRecord.objects.filter(task_id="id-1").update(task_id="gone")
    operation = done(Kind.RUN_NOW, "id-0", "gone")
    assert operation.message == "1 sent to run now, 1 skipped (not in its delay queue: it is already due)"
    assert states() == {TaskState.RUNNING: 1, TaskState.PARKED: 1}
    assert done(Kind.DISCARD, "gone").message.startswith("0 discarded, 1 skipped")


def test_without_the_name_of_its_delay_queue_a_task_is_found_by_its_tier(desk):
    desk.parked(1, delay_queue="")
    assert done(Kind.RUN_NOW, "id-0").message == "1 sent to run now"


def test_the_reason_why_a_task_with_an_exact_delay_cannot_run_early_is_shown(desk):
    desk.parked(1, delay_queue="", tier=None)
    assert "its delay is exact" in done(Kind.RUN_NOW, "id-0").message


@pytest.mark.brokers
def test_a_search_stops_where_an_inspection_would_leave_traces(desk, monkeypatch):
    monkeypatch.setattr("celery_rmq_delay.operations.parked.SCAN_LIMIT", 2)
    monkeypatch.setattr("celery_rmq_delay.operations.parked.TRACED_SCAN_LIMIT", 2)
    desk.parked(3)
    operation = done(Kind.RUN_NOW, "id-2")
    assert operation.message == "0 sent to run now, 1 skipped (not among the first 2 messages of its delay queue)"
    assert desk.counts(desk.delay_queue(1)) == [3]


def test_parked_and_exhausted_tasks_are_discarded_together(desk):
    desk.parked(1)
    desk.exhausted(1)
    assert done(Kind.DISCARD, "id-0", "id-1").message == "2 discarded"
    assert states() == {TaskState.DISCARDED: 2}


def test_a_discard_that_was_cut_off_before_the_ack_is_finished(desk):
    """The runner dies after the row is written and before the message is removed; another one goes on."""
    desk.parked(2)
    records = TaskRecord.objects.order_by("pk")
    operation = freeze(Kind.DISCARD, records, actor=ALICE, reason="")
    records.update(state=TaskState.DISCARDED, operation=operation)
    assert run(operation).message == "2 discarded"
    assert desk.counts(desk.delay_queue(1), "payments") == [0, 0]


def test_a_discard_that_was_cut_off_after_the_ack_is_finished(desk):
    (task,) = desk.parked(1)
    operation = freeze(Kind.DISCARD, TaskRecord.objects.all(), actor=ALICE, reason="")
    TaskRecord.objects.update(state=TaskState.DISCARDED, operation=operation)
    with kombu.Connection(desk.url) as connection:
        connection.channel().queue_purge(task.delay_queue)
    assert run(operation).message == "1 discarded"


def test_a_discard_that_was_cut_off_until_its_task_was_due_is_of_unknown_outcome(desk):
    (task,) = desk.parked(1)
    operation = freeze(Kind.DISCARD, TaskRecord.objects.all(), actor=ALICE, reason="")
    TaskRecord.objects.update(state=TaskState.DISCARDED, operation=operation, due_at=timezone.now())
    with kombu.Connection(desk.url) as connection:
        connection.channel().queue_purge(task.delay_queue)
    assert run(operation).message == (
        "0 discarded, 1 with unknown outcome (it is discarded, but its message may have come back: it was due)"
    )


@pytest.mark.parametrize("kind", [Kind.RUN_NOW, Kind.DISCARD])
def test_an_error_while_messages_are_processed_leaves_their_outcome_unknown(desk, kind, monkeypatch):
    desk.parked(2)

    def fail(*_):
        raise RuntimeError("out of order")

    monkeypatch.setattr(parked, "add_to_history", fail)
    operation = freeze(kind, TaskRecord.objects.filter(task_id="id-0"), actor=ALICE, reason="")
    with pytest.raises(RuntimeError):
        run(operation)
    operation.refresh_from_db()
    assert (operation.state, operation.unknown, operation.remaining) == (State.FAILED, 1, 0)
    assert operation.message.endswith(
        "(an error stopped the operation while it was being processed). RuntimeError: out of order"
    )
    assert desk.counts(desk.delay_queue(1)) == [1 if kind == Kind.RUN_NOW else 2]


def test_a_task_that_ran_now_and_failed_again_at_once_stays_parked(desk, monkeypatch):
    """The collector is faster than the runner that has sent the task."""
    desk.parked(2)
    synchronise = Scan.synchronise

    def synchronise_late(scan):
        TaskRecord.objects.filter(task_id="id-0").update(attempt=1, tier=2, delay_queue=desk.delay_queue(2))
        synchronise(scan)

    monkeypatch.setattr(Scan, "synchronise", synchronise_late)
    assert done(Kind.RUN_NOW, "id-0", "id-1").message == "2 sent to run now"
    assert states() == {TaskState.PARKED: 1, TaskState.RUNNING: 1}


@pytest.mark.brokers
def test_many_are_found_in_the_order_in_which_they_wait(desk):
    desk.parked(130)
    wanted = [f"id-{number}" for number in range(0, 130, 2)]
    assert done(Kind.RUN_NOW, *wanted).message == "65 sent to run now"
    assert [message.headers["id"] for message in desk.taken()] == wanted
    with kombu.Connection(desk.url) as connection:
        channel = connection.channel()
        left = [channel.basic_get(desk.delay_queue(1), no_ack=True).headers["id"] for _ in range(65)]
    assert left == [f"id-{number}" for number in range(1, 130, 2)]


@pytest.mark.brokers
def test_the_limit_of_inspections_depends_on_the_broker(desk):
    with kombu.Connection(desk.url) as connection:
        connection.connect()
        expected = 100_000 if inspection_leaves_no_trace(capabilities(connection)) else 1_000
        assert parked.search_limit(connection) == expected


def test_a_discarded_message_is_not_kept_where_the_settings_forbid_it(desk):
    desk.parked(1)
    with shop.of(shop.found, store_payload="never"):
        assert done(Kind.DISCARD, "id-0").message == "1 discarded"
    assert not Payload.objects.exists()


@pytest.mark.brokers
@pytest.mark.parametrize("queue_type", ["classic"])
def test_an_operation_does_not_hang_on_a_silent_broker_and_loses_nothing(desk, own_broker, monkeypatch):
    monkeypatch.setattr("celery_rmq_delay.amqp.confirms.CONFIRM_TIMEOUT", 0.3)
    desk.parked(3)
    with alarm(own_broker), shop.of(shop.found, broker_timeout=1):
        began = time.monotonic()
        operation = done(Kind.RUN_NOW, "id-0", "id-1", "id-2")
        assert time.monotonic() - began < BUSY
    assert (operation.ok, operation.unknown + operation.failed) == (0, 3), operation.message
    assert operation.unknown <= 1, "the others were not published"
    wait_for(lambda: sum(count or 0 for count in desk.counts(desk.delay_queue(1), "payments")) >= 3, "all of them")
