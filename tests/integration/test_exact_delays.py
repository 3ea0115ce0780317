"""Exact delays when their objects are deleted, and the output of the commands about them."""

import logging
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta, timezone

import pytest
from amqp.exceptions import NotFound
from celery import Celery
from kombu import Connection, Queue, pools

from celery_rmq_delay import RetryableTask, install
from celery_rmq_delay.amqp import apply
from celery_rmq_delay.amqp.apply import ready_counts
from celery_rmq_delay.amqp.confirms import ConfirmingPublisher, confirming_channel
from celery_rmq_delay.app import exact
from celery_rmq_delay.app.inventory import plans
from celery_rmq_delay.app.state import state_of
from celery_rmq_delay.exceptions import ConflictError, OutcomeUnknownError, RefusedError, TopologyError, UnroutableError
from celery_rmq_delay.headers import DUE, EXCHANGE, GENERATION, ROUTING_KEY, TO
from celery_rmq_delay.operations.doctor import examine
from celery_rmq_delay.operations.exhausted import Selection, list_exhausted, requeue
from celery_rmq_delay.operations.pending import exact_pending
from celery_rmq_delay.operations.status import read_status
from celery_rmq_delay.publish import forward
from celery_rmq_delay.topology.exact.alternatives import Loop, Plugin
from celery_rmq_delay.worker.queues import Releaser
from celery_rmq_delay.worker.settle import Settling
from tests.support.brokers.delays import TICK, assert_on_time, held
from tests.support.brokers.lab_app import declare_exact, shop
from tests.support.brokers.limits import vhost_limit
from tests.support.commands import run
from tests.support.waiting import SECONDS, wait_for
from tests.support.workers.roles import NO_LEVELS, Permissions, add_user

pytestmark = pytest.mark.brokers

MakeApp = Callable[..., Celery]
UNIT = 0.1
FULL = {"x-queue-type": "quorum", "x-max-length": 1, "x-overflow": "reject-publish"}


@pytest.fixture
def make_app(lab):
    apps: list[Celery] = []

    def make(**settings):
        app = shop(lab, **{"exact_unit": UNIT, "exact_queue_type": lab.queue_type, "exact_levels": 8, **settings})
        exchanges: list[str] = []
        for topology in state_of(app).exact.topologies:
            route = topology.route(1, queue_of(app))
            lab.forget(*(queue.name for queue in (*topology.frame().queues, *route.objects.queues, *route.leased)))
            exchanges.extend(each.name for each in (*topology.frame().exchanges, *route.objects.exchanges))
        lab.forget(queue_of(app), exchanges=exchanges)
        apps.append(app)
        return app

    yield make
    for app in apps:
        app.close()


def call(app, countdown):
    return str(app.tasks["shop.charge"].apply_async(countdown=countdown).id)


def queue_of(app):
    return str(app.conf.task_default_queue)


@pytest.mark.parametrize("topology", ["levels", "hold"])
def test_a_publisher_declares_what_it_needs_without_a_worker(lab, make_app, topology):
    app = make_app(exact_delays=topology)
    start = time.time()

    task_id = call(app, 0.5)

    called = time.time()
    message = lab.get(queue_of(app), ack=True)
    due = message.headers[DUE] / 1000
    assert time.time() >= due
    assert start + 0.5 <= due <= called + 0.5 + TICK
    assert_on_time(held(message), due, (start, called), UNIT)
    assert message.headers["id"] == task_id
    assert (message.headers[EXCHANGE], message.headers[ROUTING_KEY]) == ("", queue_of(app))
    assert message.headers[TO] == queue_of(app)


def test_a_publisher_declares_deleted_objects_again(lab, make_app):
    app = make_app()
    call(app, UNIT)
    lab.get(queue_of(app), ack=True)
    level = state_of(app).exact.topologies[0].holding()[0]
    for delete in (lab.channel.exchange_delete, lab.channel.queue_delete):
        delete(level)

        task_id = call(app, UNIT)

        assert lab.get(queue_of(app), ack=True).headers["id"] == task_id


@pytest.fixture
def no_pool():
    """Let each call have a connection of its own; kombu has one limit for all apps of a process."""
    limit = pools.get_limit()
    pools.reset()
    pools.set_limit(0)
    yield
    pools.set_limit(limit)


@pytest.mark.usefixtures("no_pool")
def test_calls_without_a_pool_of_connections_declare_the_levels_once_a_minute(lab, make_app, monkeypatch):
    app = make_app()
    app.conf.broker_pool_limit = 0
    levels = state_of(app).exact.topologies[0]
    declared: set[str] = set()
    really = apply.declare

    def declare(channel, objects, command):
        declared.update(each.name for each in objects.queues)
        really(channel, objects, command)

    monkeypatch.setattr(apply, "declare", declare)

    def declares():
        declared.clear()
        task_id = call(app, UNIT)
        assert lab.get(queue_of(app), ack=True).headers["id"] == task_id
        assert declared.isdisjoint(levels.holding()) or declared.issuperset(levels.holding())
        return bool(declared.intersection(levels.holding()))

    assert [declares() for _ in range(3)] == [True, False, False]
    lab.channel.exchange_delete(levels.holding()[0])
    assert [declares() for _ in range(2)] == [True, False]
    monkeypatch.setattr(exact, "RELIED_ON", 0.0)
    assert declares()


#: Calls a task before and after it forks, as gunicorn does with ``preload``. Prints the ids of the tasks.
FORKS = """
import os, sys, threading
from celery import Celery
from kombu import Queue
from celery_rmq_delay import RetryableTask, install
from celery_rmq_delay.app.state import state_of

url, name, kind, settings = {given!r}
app = Celery("shop", broker=url, set_as_current=False)
app.conf.task_default_queue = name
app.conf.task_queues = [Queue(name, queue_arguments={{"x-queue-type": kind}})]
app.conf.rmq_delay = settings
install(app)

@app.task(base=RetryableTask, name="shop.charge", shared=False)
def charge():
    pass

def call(count):
    made = [charge.apply_async(countdown={unit}).id for _ in range(count)]
    os.write(sys.stdout.fileno(), "".join(each + "\\n" for each in made).encode())

held, ended = threading.Event(), threading.Event()

def declare():
    with state_of(app).exact._lock:
        held.set()
        ended.wait()

call(1)
threading.Thread(target=declare).start()  # as a thread that makes its first call meanwhile
held.wait()
for _ in range(2):
    if not os.fork():
        call(50)
        os._exit(0)
call(50)
assert [os.wait()[1] for _ in range(2)] == [0, 0]
ended.set()
call(1)
"""


def test_processes_that_fork_after_a_call_publish_each_of_their_calls_once(lab, make_app):
    app = make_app()
    given = lab.url, queue_of(app), lab.queue_type, app.conf.rmq_delay
    done = subprocess.run(
        [sys.executable, "-c", FORKS.format(given=given, unit=UNIT)], capture_output=True, text=True, timeout=SECONDS
    )
    assert done.returncode == 0, done.stderr
    called = done.stdout.split()
    assert len(called) == 152
    arrived = Counter(lab.get(queue_of(app), ack=True).headers["id"] for _ in called)
    assert arrived == Counter(called)
    assert ready_counts(lab.connection, [queue_of(app)])[queue_of(app)] == 0


@pytest.mark.parametrize("topology", ["levels", "hold"])
def test_a_message_whose_queue_is_gone_when_it_is_due_is_exhausted_and_can_be_requeued(lab, make_app, topology):
    for delay in (0.3, 10, 64):  # the longer ones for a machine that is slow to delete a queue
        app = make_app(exact_delays=topology, exact_levels=10)
        settings, queue = state_of(app).settings, queue_of(app)
        lab.queue(queue, **app.amqp.queues[queue].queue_arguments)
        task_id = call(app, delay)
        if lab.channel.queue_delete(queue) == 0:
            break

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


def test_a_publisher_that_may_not_declare_uses_the_objects_of_apply(lab, make_app):
    app = make_app(apply_on_start=False)
    with pytest.raises(UnroutableError, match="apply --exact-delays"):
        call(app, 0.2)
    exact = state_of(app).exact
    with app.connection_for_write() as connection:
        exact.declare(connection)  # without apply_on_start no use declares them
        app.amqp.queues[queue_of(app)](connection.default_channel).declare()
        exact.bind(connection, queue_of(app))

    task_id = call(app, 0.2)

    assert lab.get(queue_of(app), ack=True).headers["id"] == task_id


def test_a_call_without_a_permission_names_it_and_the_next_call_is_published(lab, make_app, own_broker):
    app = make_app(apply_on_start=False)
    declare_exact(lab, app)
    app.conf.broker_write_url = add_user(own_broker, lab.url, NO_LEVELS)

    for _ in range(2):
        with pytest.raises(RefusedError, match=r"access to exchange .*the permission \*write\*"):
            call(app, 0.2)
    with app.connection_for_write() as connection, forward.confirming(app, connection) as producer:
        channel = producer.channel
    task_id = call(app, 0)
    with forward.confirming(app) as producer:
        assert producer.channel is channel, "the connection was lost"

    assert lab.get(queue_of(app), ack=True).headers["id"] == task_id


def test_a_call_to_a_queue_of_another_connection_is_refused_with_the_reply_of_the_broker(lab, make_app):
    app = make_app()
    locked = f"{lab.names.prefix}-locked"
    lab.channel.queue_declare(locked, exclusive=True)
    with pytest.raises(RefusedError, match="RESOURCE_LOCKED - cannot obtain exclusive access"):
        app.tasks["shop.charge"].apply_async(countdown=0, queue=locked)
    task_id = call(app, 0)
    assert lab.get(queue_of(app), ack=True).headers["id"] == task_id


@pytest.mark.slow
@pytest.mark.parametrize("queue_type", ["classic"])
def test_unused_queues_of_hold_expire(lab, make_app, monkeypatch):
    lease = 1.2
    monkeypatch.setattr("celery_rmq_delay.topology.exact.alternatives.LEASE_MS", round(1000 * lease))
    app = make_app(exact_delays="hold")
    route = state_of(app).exact.topologies[0].route(round(1000 * UNIT), queue_of(app))
    holding = route.leased[0].name

    def outlives_its_lease():
        """Use the queue for longer than its lease; return whether that was in time, which depends on the machine."""
        began, ended = list[float](), list[float]()
        for _ in range(5):
            began.append(time.monotonic())
            with suppress(OutcomeUnknownError):  # the confirm may be that late
                call(app, UNIT)  # renews the lease
            ended.append(time.monotonic())
            lab.get(queue_of(app), ack=True)
            time.sleep(lease / 4)
        found = ready_counts(lab.connection, [holding])[holding]
        ended.append(time.monotonic())
        in_time = all(after - before < lease for before, after in zip(began, ended[1:], strict=True))
        assert not in_time or (found == 0 and ended[-1] - began[0] > lease)
        return in_time

    wait_for(outlives_its_lease, "a machine that is in time")
    # An inspection renews the lease, too.
    wait_for(lambda: ready_counts(lab.connection, [holding])[holding] is None, "its end", pause=1.5 * lease)

    task_id = call(app, UNIT)
    assert lab.get(queue_of(app), ack=True).headers["id"] == task_id


def test_plan_names_missing_objects_and_apply_leaves_nothing_to_do(lab, make_app):
    app = make_app(exact_delays=["levels", "loop"])
    exact = state_of(app).exact
    lab.queue(queue_of(app), **app.amqp.queues[queue_of(app)].queue_arguments)
    with app.connection_for_write() as connection:
        assert not exact_pending(connection, exact)  # none was used yet
        call(app, 20)
        level = exact.topologies[0].holding()[0]
        connection.default_channel.queue_delete(level)
        before = exact_pending(connection, exact)
        exact.declare(connection)
        after = exact_pending(connection, exact)
    assert [each.name for each in before.create] == [level]
    assert not after


@pytest.mark.slow
def test_levels_whose_empty_queues_were_deleted_are_counted_reported_and_restored(lab, make_app):
    app = make_app(exact_unit=0.25)
    (levels,) = state_of(app).exact.topologies
    task_id = call(app, 0.25 * 2**6)  # waits in level 6 of 0 to 7
    for name, count in ready_counts(lab.connection, levels.holding()).items():
        if not count:
            lab.channel.queue_delete(name)

    (status,) = read_status(app, lab.connection).exact
    listed = run(app, "parked", "list").output
    codes = [each.code for each in examine(app, use_management=False)]
    planned = exact_pending(lab.connection, state_of(app).exact).create
    run(app, "apply")
    found = ready_counts(lab.connection, levels.holding())

    assert (status.waiting, "exact-missing" in codes, len(planned)) == (1, True, 7)
    assert task_id in listed
    assert list(found.values()) == [0, 0, 0, 0, 0, 0, 1, 0]
    assert lab.get(queue_of(app), ack=True).headers["id"] == task_id


def test_levels_are_unused_again_when_all_their_queues_were_deleted(lab, make_app):
    app = make_app()
    exact = state_of(app).exact
    (levels,) = exact.topologies
    exact.declare(lab.connection, unused=True)
    assert exact.in_use(lab.connection, levels)

    for name in levels.holding():
        lab.channel.queue_delete(name)

    assert not exact.in_use(lab.connection, levels)


def test_a_limit_of_queues_is_reported_as_such_by_a_call_and_by_apply(rmq_vhost, own_broker):
    app = Celery("limited", broker=rmq_vhost, set_as_current=False)
    app.conf.rmq_delay = {"tiers": ["10s"]}
    install(app)

    @app.task(base=RetryableTask, name="limited.charge", shared=False)
    def charge():
        """Do nothing: no worker runs here."""

    vhost = rmq_vhost.rpartition("/")[2]

    with (
        app.connection_for_write() as connection,
        vhost_limit(own_broker, vhost, 0),
        pytest.raises(TopologyError, match=r"limit in vhost .* is reached.*exact_levels"),
    ):
        app.amqp.queues["celery"](connection.default_channel).declare()
    run(app, "apply")
    with app.connection_for_read() as connection:
        plan, *_ = plans(connection, state_of(app))
        connection.default_channel.queue_delete(plan.record_queue().name)
        with vhost_limit(own_broker, vhost, 0):
            began = time.monotonic()
            refused = run(app, "apply", "--exact-delays", code=1).output
            assert time.monotonic() - began < 20, "not retried until the end of the wait for the record"
            with pytest.raises(TopologyError, match=r"limit in vhost .* is reached") as raised:
                charge.apply_async(countdown=5)
    app.close()
    assert "is reached" in refused
    assert "held by another process" not in refused
    assert not isinstance(raised.value, ConflictError)
    assert "other arguments" not in str(raised.value)


def test_a_user_who_may_not_declare_levels_is_named_the_command_that_does(lab, make_app, own_broker):
    app = make_app()
    lab.queue(queue_of(app), **app.amqp.queues[queue_of(app)].queue_arguments)
    url = add_user(own_broker, lab.url, Permissions(f"^{re.escape(queue_of(app))}$", ".*", ".*"))
    exact = state_of(app).exact
    exact.declare(lab.connection)  # only the objects of an unused app
    with Connection(url) as restricted, pytest.raises(TopologyError, match="rmq-delay apply --exact-delays` run"):
        exact.declare(restricted, unused=True)


def test_status_counts_waiting_messages(lab, make_app):
    app = make_app(exact_delays=["levels", "hold", "loop"], exact_unit=60)
    for _ in range(3):
        call(app, 3600)

    found = {each.topology: each.waiting for each in read_status(app, lab.connection).exact}

    assert found == {"levels": 3, "hold": None, "loop": 0}


def test_doctor_finds_a_level_with_other_arguments(lab, make_app):
    app = make_app()
    level = state_of(app).exact.topologies[0].holding()[0]
    lab.queue(level, **{"x-message-ttl": 5})

    (found,) = [each for each in examine(app, use_management=False) if each.code == "exact-conflict"]

    assert (found.severity, level in found.found) == ("error", True)


def test_doctor_reports_that_the_broker_has_no_plugin(make_app):
    app = make_app(exact_delays="plugin")

    found = {each.code: each for each in examine(app, use_management=False)}

    assert "x-delayed-message" in found["exact-topology"].found
    with pytest.raises(TopologyError, match="Enable rabbitmq_delayed_message_exchange"):
        call(app, 1)


def test_a_user_who_may_not_declare_the_plugins_exchange_uses_an_existing_one(lab, make_app, own_broker):
    app = make_app(exact_delays="plugin")
    (plugin,) = state_of(app).exact.topologies
    assert isinstance(plugin, Plugin)
    plugin._exchange = replace(plugin._exchange, type="fanout", delays=None)  # the type that this broker has not
    url = add_user(own_broker, lab.url, Permissions("", ".*", ".*"))

    with Connection(url) as restricted, pytest.raises(TopologyError, match="may not declare it: let"):
        plugin.check(restricted)
    plugin.check(lab.connection)  # declares nothing: without its binding the exchange would drop due messages
    for name in (plugin._exchange.name, f"{plugin._exchange.name}.probe"):
        with pytest.raises(NotFound):
            lab.connection.channel().exchange_declare(name, "fanout", passive=True)
    lab.channel.exchange_declare(plugin._exchange.name, "fanout", durable=True, auto_delete=False)

    with Connection(url) as restricted:
        plugin.check(restricted)


# -- the loop --------------------------------------------------------------------------------------------------------


class Worker:
    """The part of the worker that a `Releaser` uses, driven by hand."""

    def __init__(self, lab, app):
        class Consumer:
            """The part of Celery's consumer that settling a message uses."""

            connection = lab.connect()
            connection_errors = connection.connection_errors
            hub = None
            hostname = "w@test"

        self.consumer = Consumer()
        self.consumer.app = app  # type: ignore[attr-defined]
        settling = Settling(self.consumer, state_of(app), bool)
        settling.publisher = ConfirmingPublisher(confirming_channel(self.consumer.connection))
        settling.in_loop = lambda: True  # type: ignore[method-assign]
        self.loop = next(each for each in state_of(app).exact.topologies if isinstance(each, Loop))
        self.releaser = Releaser(settling, self.loop)
        self.releaser.on_message = self._count  # type: ignore[method-assign]
        #: How often each message came to the worker.
        self.rounds: Counter[str] = Counter()

    def _count(self, message):
        self.rounds[message.headers.get("id", "")] += 1
        Releaser.on_message(self.releaser, message)

    def run(self, until, what):
        def look():
            with suppress(TimeoutError):
                self.consumer.connection.drain_events(timeout=0.02)
            return until()

        wait_for(look, what, pause=0)


def test_messages_of_a_loop_come_when_they_are_due_and_a_slow_worker_adds_no_round(lab, make_app):
    app = make_app(exact_delays="loop")
    start = time.time()
    first, second, last = (call(app, countdown) for countdown in (UNIT, 3 * UNIT, 20 * UNIT))
    sent = time.time()
    worker = Worker(lab, app)
    time.sleep(max(0.0, sent + 5 * UNIT - time.time()))  # two of the three are due before the inspection
    worker.releaser.consume(worker.consumer.connection)

    def count():
        return ready_counts(lab.connection, [queue_of(app)])[queue_of(app)] or 0

    worker.run(lambda: count() >= 2, "those that are due")
    assert (worker.rounds[first], worker.rounds[second]) == (1, 1), "they did not go around once more"
    worker.run(lambda: count() == 3, "the last")
    assert time.time() - start >= 20 * UNIT
    messages = [lab.get(queue_of(app), ack=True) for _ in range(3)]
    assert [message.headers["id"] for message in messages] == [first, second, last]


def test_several_workers_share_a_loop(lab, make_app):
    app = make_app(exact_delays="loop")
    first, second = Worker(lab, app), Worker(lab, app)
    ids = {call(app, 0.3) for _ in range(50)}
    for worker in (first, second):
        worker.releaser.consume(worker.consumer.connection)

    def all_there():
        second.run(lambda: True, "")
        return (ready_counts(lab.connection, [queue_of(app)])[queue_of(app)] or 0) >= 50

    first.run(all_there, "all messages")
    assert sorted(lab.get(queue_of(app), ack=True).headers["id"] for _ in range(50)) == sorted(ids)
    assert ready_counts(lab.connection, [queue_of(app)]) == {queue_of(app): 0}


def test_messages_that_a_loop_cannot_read_are_exhausted(lab, make_app):
    app = make_app(exact_delays="loop")
    call(app, 60)
    worker = Worker(lab, app)
    lab.publish(worker.loop.wait, "invalid", headers={DUE: "tomorrow"})
    worker.releaser.consume(worker.consumer.connection)
    exhausted = state_of(app).settings.exhausted_queue

    worker.run(lambda: ready_counts(lab.connection, [exhausted])[exhausted], "the message")

    message = lab.get(exhausted, ack=True)
    assert (message.body, message.headers["rmq-delay-reason"]) == ("invalid", "undeliverable")
    assert "has no valid due time and queue" in message.headers["rmq-delay-message"]


def test_a_message_that_cannot_be_decompressed_leaves_a_loop_as_it_came(lab, make_app):
    app = make_app(exact_delays="loop")
    call(app, 0.2)
    worker = Worker(lab, app)
    lab.publish(worker.loop.wait, "squeezed", headers={DUE: 0, TO: queue_of(app), "compression": "zip"})
    worker.releaser.consume(worker.consumer.connection)

    worker.run(lambda: ready_counts(lab.connection, [queue_of(app)])[queue_of(app)] == 2, "both messages")

    found = [lab.get(queue_of(app), ack=True) for _ in range(2)]
    assert {("squeezed", "zip")} < {(each.body, each.headers.get("compression")) for each in found}


def test_a_message_whose_queue_is_missing_stays_in_the_loop_until_the_queue_exists(lab, make_app, caplog):
    app = make_app(exact_delays="loop")
    task_id = call(app, UNIT)
    lab.channel.queue_delete(queue_of(app))
    worker = Worker(lab, app)
    worker.releaser.consume(worker.consumer.connection)

    def tries():
        return sum("No queue takes" in record.getMessage() for record in caplog.records)

    began = time.monotonic()
    with caplog.at_level(logging.ERROR):
        worker.run(lambda: tries() >= 3, "some rounds")
    assert time.monotonic() - began >= 2 * UNIT, "one a unit"
    lab.queue(queue_of(app))

    worker.run(lambda: ready_counts(lab.connection, [queue_of(app)])[queue_of(app)], "the message")

    assert lab.get(queue_of(app), ack=True).headers["id"] == task_id


def test_publishers_and_doctor_report_a_loop_without_a_worker(lab, make_app, caplog):
    app = make_app(exact_delays="loop")
    with caplog.at_level(logging.WARNING):
        call(app, 1)
        call(app, 1)
    warnings = [record for record in caplog.records if "no worker consumes" in record.getMessage()]
    assert len(warnings) == 1
    wait_for(lambda: ready_counts(lab.connection, [Worker(lab, app).loop.wait]), "the wait queue")
    (found,) = [each for each in examine(app, use_management=False) if each.code == "exact-unconsumed"]
    assert "Start a worker" in found.fix


def test_an_eta_is_the_same_as_its_countdown(lab, make_app):
    app = make_app()
    eta = datetime.now(timezone.utc) + timedelta(seconds=0.3)
    app.tasks["shop.charge"].apply_async(eta=eta)
    lab.get(queue_of(app), ack=True)
    assert datetime.now(timezone.utc) >= eta
    app.tasks["shop.charge"].apply_async(eta=eta)  # past by now
    assert not held(lab.get(queue_of(app), ack=True))


@pytest.mark.parametrize("countdown", [0, 2 * UNIT])
def test_a_call_with_a_countdown_does_not_overtake_others_when_it_is_due(lab, make_app, countdown):
    """A message without a priority overtakes those with Celery's 0 in quorum queues of RabbitMQ 4.3."""
    app = make_app()
    task, queue = app.tasks["shop.charge"], queue_of(app)
    task.delay()
    wait_for(lambda: ready_counts(lab.connection, [queue]) == {queue: 1}, "the plain call")
    task.apply_async(countdown=countdown)
    wait_for(lambda: ready_counts(lab.connection, [queue]) == {queue: 2}, "the other one")
    first, second = lab.get(queue, ack=True), lab.get(queue, ack=True)
    assert (EXCHANGE in first.headers, EXCHANGE in second.headers) == (False, True)
    assert first.properties["priority"] == second.properties["priority"] == 0


@pytest.mark.parametrize("queue_type", ["quorum"])
def test_a_full_queue_does_not_hold_up_calls_to_another_one(lab, make_app):
    app = make_app()
    (levels,) = state_of(app).exact.topologies
    full = Queue(lab.queue(f"{queue_of(app)}.full", **FULL), queue_arguments=FULL)
    app.amqp.queues.add(full)
    lab.forget(*(each.name for each in levels.arrival(full.name).queues))
    for _ in range(40):  # more than the 32 dead letters that RabbitMQ sends before one was taken
        app.tasks["shop.charge"].apply_async(countdown=UNIT, queue=full.name)

    task_id = call(app, 3 * UNIT)

    assert lab.get(queue_of(app), ack=True).headers["id"] == task_id
