"""Exact delays when somebody deletes what they are made of, and what the commands say of them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from amqp.exceptions import NotFound
from celery import Celery
from kombu import Queue

import celery_rmq_delay
from celery_rmq_delay import RetryableTask
from celery_rmq_delay.delay import delay_of
from celery_rmq_delay.doctor import examine
from celery_rmq_delay.exact_doctor import exact_pending
from celery_rmq_delay.exceptions import TopologyError, UnroutableError
from celery_rmq_delay.exhausted import Selection, list_exhausted, requeue
from celery_rmq_delay.headers import DUE, EXCHANGE, GENERATION, ROUTING_KEY, TO
from celery_rmq_delay.looping import Releaser
from celery_rmq_delay.status import read_status
from celery_rmq_delay.topology.apply import ready_counts
from celery_rmq_delay.topology.loop import Loop
from tests.waiting import wait_for

from .lab import Lab

MakeApp = Callable[..., Celery]


def do_nothing() -> None:
    """The task."""


@pytest.fixture
def make_app(lab: Lab) -> Iterator[MakeApp]:
    apps: list[Celery] = []
    exchanges: list[str] = []

    def make(**settings: Any) -> Celery:
        name = f"{lab.names.prefix}-q"
        app = Celery("exact", broker=lab.url, set_as_current=False)
        app.conf.task_queues = [Queue(name, queue_arguments={"x-queue-type": lab.queue_type})]
        app.conf.task_default_queue = name
        app.conf.rmq_delay = {
            "prefix": lab.names.prefix,
            "exact_unit": 0.2,
            "exact_queue_type": lab.queue_type,
            "exact_levels": 6,
            **settings,
        }
        delay = celery_rmq_delay.install(app)
        app.task(base=RetryableTask, name="call", shared=False)(do_nothing)
        for topology in delay.exact.topologies:
            route = topology.route(1, name)
            lab.forget(*(queue.name for queue in (*topology.frame().queues, *route.leased)))
            exchanges.extend(each.name for each in (*topology.frame().exchanges, *route.objects.exchanges))
        lab.forget(name, delay.settings.exhausted_queue, exchanges=exchanges)
        apps.append(app)
        return app

    yield make
    for app in apps:
        app.close()


def call(app: Celery, countdown: float) -> str:
    return str(app.tasks["call"].apply_async(countdown=countdown).id)


def queue_of(app: Celery) -> str:
    return str(app.conf.task_default_queue)


@pytest.mark.parametrize("topology", ["levels", "hold"])
def test_a_publisher_that_never_saw_a_worker_declares_what_it_needs(lab: Lab, make_app: MakeApp, topology: str) -> None:
    app = make_app(exact_delays=topology)
    start = time.time()

    task_id = call(app, 0.5)

    message = lab.get(queue_of(app), ack=True)
    assert time.time() - start >= 0.5
    assert message.headers["id"] == task_id
    assert (message.headers[EXCHANGE], message.headers[ROUTING_KEY]) == ("", queue_of(app))
    assert message.headers[TO] == queue_of(app)
    assert abs(message.headers[DUE] - (start + 0.5) * 1000) < 1000


@pytest.mark.parametrize("what", ["exchange", "queue"])
def test_a_publisher_declares_again_what_somebody_has_deleted(lab: Lab, make_app: MakeApp, what: str) -> None:
    app = make_app()
    call(app, 0.2)
    lab.get(queue_of(app), ack=True)
    level = delay_of(app).exact.topologies[0].holding()[0]
    if what == "exchange":
        lab.channel.exchange_delete(level)
    else:
        lab.channel.queue_delete(level)

    task_id = call(app, 0.2)

    assert lab.get(queue_of(app), ack=True).headers["id"] == task_id


@pytest.mark.parametrize("topology", ["levels", "hold"])
def test_a_message_whose_queue_is_gone_when_it_is_due_is_exhausted_and_can_be_requeued(
    lab: Lab, make_app: MakeApp, topology: str
) -> None:
    app = make_app(exact_delays=topology)
    settings, queue = delay_of(app).settings, queue_of(app)
    task_id = call(app, 0.6)
    lab.channel.queue_delete(queue)

    wait_for(lambda: ready_counts(lab.connection, [settings.exhausted_queue])[settings.exhausted_queue])
    (found,) = list_exhausted(lab.connection, settings, Selection(everything=True), limit=10).done
    assert (found.task_id, found.queue, found.reason) == (task_id, queue, "undeliverable")

    (failed,) = requeue(lab.connection, settings, Selection(everything=True)).failed
    assert "No queue takes" in failed.problem
    lab.queue(queue, **app.amqp.queues[queue].queue_arguments)
    assert len(requeue(lab.connection, settings, Selection(everything=True)).done) == 1
    message = lab.get(queue, ack=True)
    assert message.headers["id"] == task_id
    assert {name for name in message.headers if name.startswith("rmq-delay-")} == {GENERATION}


def test_without_the_right_to_declare_a_publisher_uses_what_apply_declared(lab: Lab, make_app: MakeApp) -> None:
    app = make_app(apply_on_start=False)
    with pytest.raises((UnroutableError, NotFound)):
        call(app, 0.4)
    exact = delay_of(app).exact
    with app.connection_for_write() as connection:
        exact.declare(connection)
        app.amqp.queues[queue_of(app)](connection.default_channel).declare()
        exact.bind(connection, queue_of(app))

    task_id = call(app, 0.4)

    assert lab.get(queue_of(app), ack=True).headers["id"] == task_id


def test_the_queues_of_hold_go_away_when_nobody_uses_them(
    lab: Lab, make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("celery_rmq_delay.topology.hold.LEASE_MS", 1500)
    app = make_app(exact_delays="hold")
    held = delay_of(app).exact.topologies[0].route(200, queue_of(app)).leased[0].name
    for _ in range(4):  # each publish renews the lease
        call(app, 0.2)
        lab.get(queue_of(app), ack=True)
        time.sleep(0.7)
    assert ready_counts(lab.connection, [held])[held] == 0
    time.sleep(3)  # a look would renew the lease
    assert ready_counts(lab.connection, [held])[held] is None

    task_id = call(app, 0.2)
    assert lab.get(queue_of(app), ack=True).headers["id"] == task_id


def test_plan_names_what_is_missing_and_apply_leaves_nothing_to_do(make_app: MakeApp) -> None:
    app = make_app(exact_delays=["levels", "loop"])
    exact = delay_of(app).exact
    with app.connection_for_write() as connection:
        before = exact_pending(connection, exact)
        exact.declare(connection)
        after = exact_pending(connection, exact)
    assert {each.name for each in before.create} >= set(exact.topologies[0].holding())
    assert not after


def test_status_counts_what_waits(lab: Lab, make_app: MakeApp) -> None:
    app = make_app(exact_delays=["levels", "hold", "loop"])
    for _ in range(3):
        call(app, 10)

    found = {each.topology: each.waiting for each in read_status(app, lab.connection).exact}

    assert found == {"levels": 3, "hold": None, "loop": 0}


def test_doctor_finds_a_level_with_other_arguments(lab: Lab, make_app: MakeApp) -> None:
    app = make_app()
    level = delay_of(app).exact.topologies[0].holding()[0]
    lab.queue(level, **{"x-message-ttl": 5})

    (found,) = [each for each in examine(app, use_management=False) if each.code == "exact-conflict"]

    assert (found.severity, level in found.found) == ("error", True)


def test_doctor_says_that_the_broker_has_no_plugin(make_app: MakeApp) -> None:
    app = make_app(exact_delays="plugin")

    found = {each.code: each for each in examine(app, use_management=False)}

    assert "x-delayed-message" in found["exact-topology"].found
    with pytest.raises(TopologyError, match="Enable rabbitmq_delayed_message_exchange"):
        call(app, 1)


# -- the loop --------------------------------------------------------------------------------------------------------


class Worker:
    """As much of the worker's side as a `Releaser` uses, driven by hand."""

    def __init__(self, lab: Lab, app: Celery) -> None:
        from celery_rmq_delay.worker import WorkerSide

        class Consumer:
            """Celery's consumer, to the extent that settling a message needs it."""

            connection = lab.connect()
            connection_errors = connection.connection_errors
            hub = None
            hostname = "w@test"

        self.consumer = Consumer()
        self.consumer.app = app  # type: ignore[attr-defined]
        self.side = WorkerSide(self.consumer, delay_of(app))
        self.side._publisher = celery_rmq_delay.broker.ConfirmingPublisher(self.consumer.connection)
        self.side._in_loop = lambda: True  # type: ignore[method-assign]
        self.loop = next(each for each in delay_of(app).exact.topologies if isinstance(each, Loop))
        self.releaser = Releaser(self.side, self.loop)

    def run(self, until: Callable[[], Any], what: str) -> None:
        def look() -> Any:
            with suppress(TimeoutError):
                self.consumer.connection.drain_events(timeout=0.02)
            return until()

        wait_for(look, what, pause=0)


def test_messages_of_a_loop_come_when_they_are_due_and_a_slow_worker_adds_no_round(lab: Lab, make_app: MakeApp) -> None:
    app = make_app(exact_delays="loop")
    start = time.time()
    for countdown in (0.2, 0.5, 1.1):
        call(app, countdown)
    worker = Worker(lab, app)
    time.sleep(0.7)  # two of the three are due before anybody looks
    worker.releaser.consume(worker.consumer.connection)
    began = time.time()

    def count() -> int:
        return ready_counts(lab.connection, [queue_of(app)])[queue_of(app)] or 0

    worker.run(lambda: count() == 2, "those that are due")
    assert time.time() - began < 0.2 + 0.4, "they did not go around once more"
    worker.run(lambda: count() == 3, "the last")
    assert time.time() - start >= 1.1
    dues = [lab.get(queue_of(app), ack=True).headers[DUE] for _ in range(3)]
    assert dues == sorted(dues)


def test_several_workers_share_a_loop(lab: Lab, make_app: MakeApp) -> None:
    app = make_app(exact_delays="loop")
    first, second = Worker(lab, app), Worker(lab, app)
    ids = {call(app, 0.3) for _ in range(50)}
    for worker in (first, second):
        worker.releaser.consume(worker.consumer.connection)

    def all_there() -> bool:
        second.run(lambda: True, "")
        return (ready_counts(lab.connection, [queue_of(app)])[queue_of(app)] or 0) >= 50

    first.run(all_there, "all messages")
    assert sorted(lab.get(queue_of(app), ack=True).headers["id"] for _ in range(50)) == sorted(ids)
    assert ready_counts(lab.connection, [queue_of(app)]) == {queue_of(app): 0}


def test_what_a_loop_cannot_understand_is_exhausted(lab: Lab, make_app: MakeApp) -> None:
    app = make_app(exact_delays="loop")
    call(app, 60)
    worker = Worker(lab, app)
    lab.publish(worker.loop.wait, "foreign", headers={DUE: "tomorrow"})
    worker.releaser.consume(worker.consumer.connection)
    exhausted = delay_of(app).settings.exhausted_queue

    worker.run(lambda: ready_counts(lab.connection, [exhausted])[exhausted], "the message")

    message = lab.get(exhausted, ack=True)
    assert (message.body, message.headers["rmq-delay-reason"]) == ("foreign", "undeliverable")
    assert "says not when it is due" in message.headers["rmq-delay-message"]


def test_a_message_that_cannot_be_decompressed_leaves_a_loop_as_it_came(lab: Lab, make_app: MakeApp) -> None:
    app = make_app(exact_delays="loop")
    call(app, 0.2)
    worker = Worker(lab, app)
    lab.publish(worker.loop.wait, "squeezed", headers={DUE: 0, TO: queue_of(app), "compression": "zip"})
    worker.releaser.consume(worker.consumer.connection)

    worker.run(lambda: ready_counts(lab.connection, [queue_of(app)])[queue_of(app)] == 2, "both messages")

    found = [lab.get(queue_of(app), ack=True) for _ in range(2)]
    assert {("squeezed", "zip")} < {(each.body, each.headers.get("compression")) for each in found}


def test_a_message_of_a_loop_whose_queue_is_missing_goes_around_until_there_is_one(
    lab: Lab, make_app: MakeApp, caplog: pytest.LogCaptureFixture
) -> None:
    app = make_app(exact_delays="loop")
    task_id = call(app, 0.2)
    lab.channel.queue_delete(queue_of(app))
    worker = Worker(lab, app)
    worker.releaser.consume(worker.consumer.connection)
    deadline = time.monotonic() + 1
    with caplog.at_level(logging.ERROR):
        worker.run(lambda: time.monotonic() > deadline, "some rounds")
    tries = [record for record in caplog.records if "No queue takes" in record.getMessage()]
    assert 1 <= len(tries) <= 6, "one a unit"
    lab.queue(queue_of(app))

    worker.run(lambda: ready_counts(lab.connection, [queue_of(app)])[queue_of(app)], "the message")

    assert lab.get(queue_of(app), ack=True).headers["id"] == task_id


def test_a_loop_without_a_worker_is_told_by_publishers_and_by_doctor(
    lab: Lab, make_app: MakeApp, caplog: pytest.LogCaptureFixture
) -> None:
    app = make_app(exact_delays="loop")
    with caplog.at_level(logging.WARNING):
        call(app, 1)
        call(app, 1)
    warnings = [record for record in caplog.records if "no worker consumes" in record.getMessage()]
    assert len(warnings) == 1
    wait_for(lambda: ready_counts(lab.connection, [Worker(lab, app).loop.wait]), "the wait queue")
    (found,) = [each for each in examine(app, use_management=False) if each.code == "exact-unconsumed"]
    assert "Start a worker" in found.mend


def test_an_eta_is_the_same_as_its_countdown(lab: Lab, make_app: MakeApp) -> None:
    app = make_app()
    eta = datetime.now(timezone.utc) + timedelta(seconds=0.7)
    app.tasks["call"].apply_async(eta=eta)
    lab.get(queue_of(app), ack=True)
    assert datetime.now(timezone.utc) >= eta
    app.tasks["call"].apply_async(eta=eta)  # past by now
    assert lab.channel.basic_get(queue_of(app)) is not None
