"""Requeues with failures: no task is lost, and only tasks with an unknown outcome may run twice."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from datetime import timedelta
from typing import Any

import kombu
import pytest
from django.db import connection, connections
from django.utils import timezone

from celery_rmq_delay import before_requeue
from celery_rmq_delay.contrib.django import transactions
from celery_rmq_delay.contrib.django.broker import Link
from celery_rmq_delay.contrib.django.models import Operation, OperationItem, Payload, TaskRecord, TaskState
from celery_rmq_delay.contrib.django.services.operations import background, lease, requeue
from celery_rmq_delay.contrib.django.services.operations import runner as running
from celery_rmq_delay.contrib.django.services.operations.requests import cancel, freeze, run
from tests.support import ROOT
from tests.support.brokers.alarms import alarm
from tests.support.brokers.parking import metadata_to_disk
from tests.support.django import shop
from tests.support.django.desk import ALICE, BOB, Desk, frozen, states
from tests.support.django.interrupted import at_the
from tests.support.receiving import receiving
from tests.support.waiting import BUSY, SECONDS, wait_for

Kind, State, Outcome = Operation.Kind, Operation.State, OperationItem.Outcome
PROJECT = ROOT / "example_django_project"


@pytest.fixture
def desk(rmq_vhost, database):
    with shop.of(shop.make(rmq_vhost), broker_timeout=BUSY):
        yield Desk(rmq_vhost)


@pytest.fixture
def sqlite_desk(rmq_vhost, sqlite):
    with shop.of(shop.make(rmq_vhost), broker_timeout=BUSY):
        yield Desk(rmq_vhost)


@pytest.fixture
def postgres_desk(rmq_vhost, postgres):
    with shop.of(shop.make(rmq_vhost), broker_timeout=BUSY):
        yield Desk(rmq_vhost)


class Background(threading.Thread):
    """A run in a thread of its own, with a database connection of its own."""

    def __init__(self, operation, stop=None):
        super().__init__()
        self.operation, self.stop = operation, stop
        self.error: BaseException | None = None

    def run(self):
        try:
            run(Operation.objects.get(pk=self.operation.pk), stop=self.stop)
        except BaseException as error:  # noqa: BLE001 - the test's thread is to see it
            self.error = error
        finally:
            connections.close_all()

    def end(self):
        self.join(SECONDS)
        assert not self.is_alive()
        connections.close_all()  # as the database may have been unreachable
        if self.error is not None:
            raise self.error
        self.operation.refresh_from_db()
        return self.operation


def adds_up(operation):
    outcomes = Counter(operation.items.values_list("outcome", flat=True))
    assert outcomes[Outcome.OK] == operation.ok
    assert outcomes[Outcome.SKIPPED] == operation.skipped
    assert outcomes[Outcome.FAILED] + outcomes[Outcome.UNTRIED] == operation.failed
    assert outcomes[Outcome.UNKNOWN] == operation.unknown
    assert outcomes[Outcome.CANCELLED] + outcomes[Outcome.PENDING] == operation.remaining


def nothing_lost_and_nothing_twice(desk):
    """Compare the messages in the queue with the rows."""
    arrived = Counter(message.headers["id"] for message in desk.taken())
    assert set(arrived.values()) <= {1}
    by_state: dict[str, set[str]] = {}
    for task_id, state in TaskRecord.objects.values_list("task_id", "state"):
        by_state.setdefault(state, set()).add(task_id)
    assert set(by_state) <= {TaskState.REQUEUED, TaskState.EXHAUSTED, TaskState.UNKNOWN}
    sure = by_state.get(TaskState.REQUEUED, set())
    assert sure <= set(arrived), "lost"
    assert set(arrived) <= sure | by_state.get(TaskState.UNKNOWN, set()), "exhausted, and runs"
    kept = set(Payload.objects.values_list("record__task_id", flat=True))
    assert kept == set().union(*by_state.values())


@pytest.mark.slow
def test_a_killed_broker_leaves_few_unknown_outcomes(desk, own_broker, monkeypatch):
    desk.exhausted(1000)
    metadata_to_disk(own_broker)
    at_the(500, own_broker.kill, monkeypatch)
    with shop.of(shop.found, broker_timeout=10):
        operation = run(frozen())
    assert (operation.state, operation.requested) == (State.FAILED, 1000)
    assert "broker unreachable" in operation.message
    assert operation.ok >= 400
    assert operation.unknown <= 64
    adds_up(operation)
    print(f"The broker killed: {operation.message}")
    own_broker.start()
    nothing_lost_and_nothing_twice(desk)
    assert states()[TaskState.EXHAUSTED] == operation.failed


@pytest.mark.slow
def test_a_run_in_the_background_waits_for_a_broker_that_restarts(postgres_desk, own_broker, monkeypatch):
    postgres_desk.exhausted(1000)
    restart = threading.Thread(target=own_broker.restart)
    at_the(300, restart.start, monkeypatch)
    operation = run(frozen(), stop=lambda: False)
    restart.join()
    print(f"The broker restarted: {operation.message}")
    assert operation.state == State.DONE
    assert operation.ok >= 900
    assert operation.ok + operation.unknown == 1000
    adds_up(operation)
    nothing_lost_and_nothing_twice(postgres_desk)


def test_a_runner_that_lost_its_operation_while_a_receiver_worked_publishes_nothing(sqlite_desk, monkeypatch):
    sqlite_desk.exhausted(3)
    operation = frozen()
    monkeypatch.setattr(lease, "BEAT_EVERY", 0.0)

    def takes_long(task_id, **_):
        if task_id == "id-1":
            Operation.objects.update(heartbeat_at=timezone.now() - 2 * lease.STALE_AFTER)
            lease.Lease.take(Operation.objects.get(pk=operation.pk))

    with receiving(before_requeue, takes_long):
        run(operation)
    assert [message.headers["id"] for message in sqlite_desk.taken()] == ["id-0"]


def test_an_operation_whose_receiver_is_slow_keeps_its_heartbeat(sqlite_desk, monkeypatch):
    sqlite_desk.exhausted(4)
    operation = frozen()
    monkeypatch.setattr(lease, "BEAT_EVERY", 0.0)
    beats: list[Any] = []

    def before(**_):
        beats.append(Operation.objects.values_list("heartbeat_at", flat=True).get())

    with receiving(before_requeue, before):
        assert run(operation).ok == 4
    assert beats == sorted(set(beats)), "renewed between each two receivers"


def test_a_database_that_restarts_costs_no_outcome(postgres_desk, own_postgres, monkeypatch):

    def restart():
        own_postgres.stop()
        own_postgres.start()

    affordable, looks = requeue._affordable, list[object]()

    def look(items):
        looks.append(items)
        if len(looks) == 2:
            restart()
        return affordable(items)

    monkeypatch.setattr(requeue, "_affordable", look)
    postgres_desk.exhausted(300)
    at_the(100, restart, monkeypatch)
    operation = run(frozen())
    assert (operation.state, operation.message) == (State.DONE, "300 requeued")
    adds_up(operation)
    nothing_lost_and_nothing_twice(postgres_desk)


@pytest.mark.slow
def test_a_database_that_restarts_between_two_tasks_costs_no_outcome(postgres_desk, own_postgres):
    """A gradual requeue spends nearly all its time there."""
    postgres_desk.exhausted(30)
    going = Background(frozen(rate=600), stop=lambda: False)
    going.start()
    wait_for(lambda: Operation.objects.get().ok > 5, "the first of them")
    own_postgres.stop()
    own_postgres.start()
    operation = going.end()
    assert (operation.state, operation.message) == (State.DONE, "30 requeued")
    nothing_lost_and_nothing_twice(postgres_desk)


def test_a_run_that_a_long_outage_of_the_database_breaks_off_is_taken_up_again(
    postgres_desk, own_postgres, monkeypatch, caplog
):
    monkeypatch.setattr(transactions, "PATIENCE", 0.0)
    for module in (lease, background):
        monkeypatch.setattr(module, "STALE_AFTER", timedelta(seconds=1))
    postgres_desk.exhausted(500)
    frozen(rate=300)

    def in_the_background():
        try:
            background.operate(lambda: False, once=True)
        finally:
            connections.close_all()

    going = threading.Thread(target=in_the_background)
    going.start()
    wait_for(lambda: Operation.objects.get().ok > 5, "the first of them")
    Operation.objects.update(rate=None)  # for the process that resumes it: this run goes on for more than a minute
    own_postgres.stop()
    wait_for(lambda: "The database cannot be reached: trying again" in caplog.text, "an end of the run's patience")
    own_postgres.start()
    connections.close_all()
    going.join(SECONDS)
    operation = Operation.objects.get()
    assert operation.state == State.DONE, operation.message
    assert operation.unknown <= 1
    assert operation.ok + operation.unknown == 500
    nothing_lost_and_nothing_twice(postgres_desk)


def test_a_killed_runner_leaves_few_unknown_outcomes_and_another_one_goes_on(desk, database, tmp_path):
    desk.exhausted(2000)
    operation = frozen()
    log = tmp_path / "operate.log"
    with log.open("wb") as output:
        ended = operate(desk, database, output, "--operation", str(operation.pk), interrupted_by=signal.SIGKILL)
    assert ended == -signal.SIGKILL, log.read_text()
    operation.refresh_from_db()
    assert operation.state == State.RUNNING, log.read_text()
    assert operation.ok > 200, "half-way"
    Operation.objects.update(heartbeat_at=timezone.now() - 2 * lease.STALE_AFTER)
    operation = run(operation)
    assert operation.state == State.DONE
    assert operation.unknown <= 64
    assert operation.ok + operation.unknown == 2000
    adds_up(operation)
    nothing_lost_and_nothing_twice(desk)


def test_a_runner_that_gets_a_signal_leaves_no_unknown_outcome(sqlite_desk, sqlite, tmp_path):
    sqlite_desk.exhausted(2000)
    operation = frozen()
    log = tmp_path / "operate.log"
    with log.open("wb") as output:
        assert operate(sqlite_desk, sqlite, output, interrupted_by=signal.SIGTERM) == 0, log.read_text()
        operation.refresh_from_db()
        assert operation.state == State.PENDING
        assert 200 < operation.ok < 2000
        adds_up(operation)
        assert operate(sqlite_desk, sqlite, output, "--once") == 0, log.read_text()
    operation.refresh_from_db()
    assert (operation.state, operation.message) == (State.DONE, "2,000 requeued")
    nothing_lost_and_nothing_twice(sqlite_desk)


def operate(desk, on, output, *arguments, interrupted_by=None):
    """Run ``manage.py rmq_delay_operate`` of the example project; return its exit code.

    A signal may interrupt it in the middle of its work, when it publishes the 300th message.
    """
    interrupted = ("-m", "tests.support.django.interrupted", "300", str(int(interrupted_by))) if interrupted_by else ()
    environment = {
        **os.environ,
        **on.environ,
        "PYTHONPATH": str(PROJECT.parent),
        "BROKER_URL": desk.url,
    }
    return subprocess.run(
        [sys.executable, *interrupted, "manage.py", "rmq_delay_operate", *arguments],
        cwd=PROJECT,
        env=environment,
        stdout=output,
        stderr=output,
        timeout=SECONDS,
        check=False,
    ).returncode


def test_each_task_runs_once_when_two_people_requeue_it(desk):
    desk.exhausted(200)
    runs = [Background(frozen(actor)) for actor in (ALICE, BOB)]
    connection.close()
    for each in runs:
        each.start()
    hers, his = (each.end() for each in runs)
    assert hers.ok + his.ok == 200
    assert (hers.skipped, his.skipped) == (his.ok, hers.ok)
    for operation, other in ((hers, "bob"), (his, "alice")):
        adds_up(operation)
        if operation.skipped:
            assert f"{operation.skipped} skipped (already requeued by {other})" in operation.message
    nothing_lost_and_nothing_twice(desk)


@pytest.fixture
def patient(monkeypatch):
    """Let runs wait for a connection as long as a busy machine takes, however short `BROKER_TIMEOUT` is."""
    monkeypatch.setattr(running, "Link", lambda _patience, pause: Link(BUSY, pause))


@pytest.mark.usefixtures("patient")
def test_without_a_confirm_the_outcome_is_unknown_and_nothing_more_is_sent(sqlite_desk, own_broker):
    sqlite_desk.exhausted(5)
    with alarm(own_broker), shop.of(shop.found, broker_timeout=1):
        operation = run(frozen())
    assert operation.message == "0 requeued, 4 not sent (no confirm in 1 s), 1 with unknown outcome (no confirm in 1 s)"
    assert states() == {TaskState.EXHAUSTED: 4, TaskState.UNKNOWN: 1}
    assert run(frozen()).message == (
        "4 requeued, 1 skipped (the outcome of an earlier requeue is unknown: restore it first)"
    )


@pytest.mark.usefixtures("patient")
def test_a_requeue_does_not_hang_when_a_message_fills_the_buffers_of_a_silent_broker(sqlite_desk, own_broker):
    sqlite_desk.exhausted(2)
    Payload.objects.update(body=b"x" * 30_000_000)
    with alarm(own_broker), shop.of(shop.found, broker_timeout=1):
        began = time.monotonic()
        operation = run(frozen())
        assert time.monotonic() - began < 2 * BUSY
    assert operation.unknown >= 1
    assert operation.ok == 0
    adds_up(operation)


def test_large_messages_are_published_few_at_a_time(sqlite_desk, monkeypatch):
    monkeypatch.setattr(requeue, "MAX_BYTES", 2_500)
    sqlite_desk.exhausted(8)
    Payload.objects.update(body=b"x" * 1_000)
    Payload.objects.filter(record__task_id="id-3").update(body=b"x" * 5_000)
    assert run(frozen()).message == "8 requeued"
    assert len(sqlite_desk.taken()) == 8


def test_a_restored_task_of_unknown_outcome_starts_a_new_generation(sqlite_desk):
    (task,) = sqlite_desk.exhausted(1)
    operation = frozen()
    lease.Lease.take(operation)
    TaskRecord.objects.update(state=TaskState.REQUEUING, operation=operation)
    Operation.objects.update(heartbeat_at=timezone.now() - 2 * lease.STALE_AFTER)
    assert run(operation).message == (
        "0 requeued, 1 with unknown outcome (its runner died while it was being published)"
    )
    run(freeze(Kind.RESTORE, TaskRecord.objects.all(), actor=ALICE, reason="it did not run"))
    assert run(frozen()).message == "1 requeued"
    (message,) = sqlite_desk.taken()
    assert message.headers["rmq-delay-generation"] == 2
    task.refresh_from_db()
    assert (task.state, task.generation) == (TaskState.REQUEUED, 2)


def test_events_collected_during_a_requeue_are_kept(sqlite_desk, monkeypatch):
    """The task runs and fails before its requeue is stored."""
    (task,) = sqlite_desk.exhausted(1)
    await_ = lease.Lease.settle

    def settle(self, settled):
        found = list(settled)
        if found:
            TaskRecord.objects.update(state=TaskState.PARKED, generation=1, attempt=0)
        await_(self, found)

    monkeypatch.setattr(lease.Lease, "settle", settle)
    assert run(frozen()).message == "1 requeued"
    task.refresh_from_db()
    assert (task.state, task.generation) == (TaskState.PARKED, 1)


def test_an_error_after_the_publish_leaves_the_outcome_unknown(sqlite_desk, monkeypatch):
    """A bug of the package, or a database that is unreachable for too long."""
    sqlite_desk.exhausted(3)

    def fail(*_):
        raise RuntimeError("out of order")

    monkeypatch.setattr(requeue, "add_to_history", fail)
    operation = frozen()
    with pytest.raises(RuntimeError):
        run(operation)
    operation.refresh_from_db()
    assert operation.state == State.FAILED
    assert operation.message == (
        "0 requeued, 2 not sent (RuntimeError: out of order), "
        "1 with unknown outcome (its runner died while it was being published)"
    )
    adds_up(operation)
    nothing_lost_and_nothing_twice(sqlite_desk)


def collect(**states_of):
    """Set states of requeued tasks as the collector would."""
    for task_id, state in states_of.items():
        TaskRecord.objects.filter(task_id=task_id.replace("_", "-")).update(state=state)


def test_after_good_canaries_the_rest_follows(sqlite_desk):
    sqlite_desk.exhausted(10)
    background = Background(frozen(canary=2), stop=lambda: False)
    background.start()
    wait_for(lambda: Operation.objects.get().state == State.CANARY, "canaries on their way")
    assert (Operation.objects.get().ok, len(sqlite_desk.taken())) == (2, 2)
    collect(id_0=TaskState.RECOVERED)
    assert Operation.objects.get().state == State.CANARY
    collect(id_1=TaskState.RECOVERED)
    operation = background.end()
    assert operation.message == "10 requeued"
    assert len(sqlite_desk.taken()) == 8


@pytest.mark.parametrize(
    ("state", "text"),
    [(TaskState.PARKED, "failed again and waits for its retry"), (TaskState.EXHAUSTED, "is exhausted again")],
)
def test_after_a_canary_that_fails_again_nothing_follows(sqlite_desk, state, text):
    sqlite_desk.exhausted(10)
    background = Background(frozen(canary=3), stop=lambda: False)
    background.start()
    wait_for(lambda: Operation.objects.get().ok == 3, "canaries on their way")
    collect(id_1=state)
    operation = background.end()
    assert operation.state == State.CANCELLED
    assert operation.message == f"3 requeued, 7 cancelled. 1 of 3 canaries {text}: the rest was not sent"
    adds_up(operation)
    assert states() == Counter({TaskState.REQUEUED: 2, TaskState.EXHAUSTED: 7}) + Counter([state])


def test_canaries_are_not_waited_for_when_no_task_follows(sqlite_desk):
    sqlite_desk.exhausted(2)
    assert run(frozen(canary=5), stop=lambda: False).message == "2 requeued"


def test_after_canaries_without_events_nothing_follows(sqlite_desk, monkeypatch):
    sqlite_desk.exhausted(2)
    monkeypatch.setattr(running, "CANARY_TIMEOUT", 1)
    operation = run(frozen(canary=1), stop=lambda: False)
    assert operation.state == State.CANCELLED
    assert "No event of 1 canary in 1 s" in operation.message


def test_a_rate_is_kept_and_a_cancel_stops_between_two_messages(sqlite_desk):
    sqlite_desk.exhausted(1000)
    background = Background(frozen(rate=600), stop=lambda: False)
    began = time.monotonic()
    background.start()
    wait_for(lambda: Operation.objects.get().ok >= 10, "ten messages")
    cancel(background.operation, BOB)
    operation = background.end()
    assert operation.state == State.CANCELLED
    assert 10 <= operation.ok <= 10 * (time.monotonic() - began) + 1
    assert operation.message == f"{operation.ok} requeued, {1000 - operation.ok} cancelled"
    adds_up(operation)
    assert len(sqlite_desk.taken()) == operation.ok


def test_a_message_too_large_for_the_broker_costs_no_other_its_outcome(sqlite_desk, own_broker):
    """The broker closes the channel: messages in the same window have an unknown outcome; it begins with one."""
    first, *_rest = sqlite_desk.exhausted(3)
    # RabbitMQ 3 reads the environment, RabbitMQ 4 its own copy of it.
    limit = "application:set_env(rabbit, max_message_size, {0}), persistent_term:put(max_message_size, {0})"
    own_broker.evaluate(limit.format(1000))
    try:
        Payload.objects.filter(record=first).update(body=b"x" * 2000)
        operation = run(frozen())
    finally:
        own_broker.evaluate(limit.format(16 * 1024 * 1024))
    assert operation.message.startswith("2 requeued, 1 failed (the broker refused it: PRECONDITION_FAILED")
    with kombu.Connection(sqlite_desk.url) as opened:
        assert opened.channel().queue_declare("payments", passive=True).message_count == 2
