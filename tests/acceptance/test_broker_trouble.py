"""Workers on a broker that has an alarm, is busy or is partly down."""

import signal
import time
from contextlib import contextmanager
from dataclasses import replace

import pytest

from celery_rmq_delay.amqp.capabilities import Capabilities
from celery_rmq_delay.amqp.confirms import CONFIRM_TIMEOUT
from celery_rmq_delay.amqp.record import locked_record
from celery_rmq_delay.testing.servers.host import free_port
from tests.support.brokers.alarms import alarm
from tests.support.brokers.connections import close_connections
from tests.support.brokers.erlang import queue_resource
from tests.support.brokers.proxy import elsewhere
from tests.support.corpus import slow
from tests.support.waiting import SECONDS, wait_for
from tests.support.workers.lab import proxied

#: What each worker of these tests logs when its copies have to wait.
BLOCKED = "RabbitMQ has a memory or disk alarm and accepts no copies"
POOLS = pytest.mark.parametrize("pool", ["prefork", *(slow(pool) for pool in ("gevent", "threads", "solo"))])


def confirming(lab, confirms):
    return replace(lab.config, conf={"broker_transport_options": {"confirm_publish": confirms}})


@contextmanager
def held_record(lab, queue="shop"):
    """Hold the record of a queue, as a process that hangs during an apply does."""
    record = lab.app._rmq_delay.plan(queue, reason_routing=True).record_queue()
    with lab.app.connection_for_read() as connection, locked_record(connection, record, SECONDS):
        yield


def unacknowledged(broker, lab, queue):
    name = queue_resource(lab.vhost, queue)
    found = broker.evaluate(
        f"{{ok, Q}} = rabbit_amqqueue:lookup({name}), rabbit_amqqueue:info(Q, [messages_unacknowledged])"
    )
    return int(found.strip("[]{}").rpartition(",")[2])


def close_copies(broker):
    """Close the connections that workers publish copies on, and no other."""
    broker.evaluate(
        '[rabbit_networking:close_connection(Pid, "test") || [{pid, Pid}, {client_properties, Properties}] <- '
        "rabbit_networking:connection_info_all([pid, client_properties]), "
        '{<<"connection_name">>, _, <<"celery_rmq_delay copies", _/binary>>} <- Properties]'
    )


def stopped(worker, seconds=SECONDS):
    """Stop a worker warmly; return the seconds it took."""
    begun = time.monotonic()
    worker.send(signal.SIGTERM)
    worker.wait(seconds)
    return time.monotonic() - begun


@pytest.mark.slow
@pytest.mark.brokers
def test_a_worker_parks_its_retries_with_two_of_three_brokers_down(classic_lab):
    broker = classic_lab.config.broker
    listed = ";".join([elsewhere(broker, free_port()), elsewhere(broker, free_port()), broker])
    worker = classic_lab.worker("prefork", 1, config=replace(classic_lab.config, broker=listed))

    assert classic_lab.task("fails").delay(2).get(timeout=SECONDS) == 2
    assert "Connection to broker lost" not in worker.logs()


def behind_a_gate(lab, *options, config=None):
    """Start a worker of one process whose only task is running, until ``lab.open_gate()`` lets it go on."""
    worker = lab.worker(*(options or ("prefork", 1)), config=config)
    gate = lab.task("gated").delay()
    wait_for(lambda: lab.attempts(gate.id), "the task at the gate")
    return worker


@contextmanager
def a_copy_that_waits(lab, broker):
    """Start the block in an alarm, with a worker and a task whose copy waits for the end of the alarm."""
    worker = behind_a_gate(lab)
    given_up = lab.task("gives_up").delay()
    with alarm(broker):
        lab.open_gate()
        wait_for(lambda: BLOCKED in worker.logs())
        yield worker, given_up


def exhausted(lab):
    """Return the ids of the exhausted tasks, once there are any, and take them."""
    return [message.headers["id"] for message in wait_for(lambda: lab.take("rmq_delay.exhausted"), "exhausted tasks")]


@pytest.mark.brokers
@POOLS
def test_healthy_tasks_go_on_in_an_alarm_while_an_exhausted_one_waits_for_its_end(
    make_lab, own_broker, queue_type, pool
):
    lab = make_lab(queue_type)
    worker = behind_a_gate(lab, pool, 1)
    given_up = lab.task("gives_up").delay()
    healthy = [lab.task("healthy").delay(number) for number in range(20)]
    with alarm(own_broker):
        lab.open_gate()
        assert [result.get(timeout=SECONDS) for result in healthy] == list(range(20))
        wait_for(lambda: BLOCKED in worker.logs())
        assert lab.count("rmq_delay.exhausted") == 0

    assert exhausted(lab) == [given_up.id]
    wait_for(lambda: unacknowledged(own_broker, lab, "shop") == 0)
    assert len(lab.attempts(given_up.id)) == 1


@pytest.mark.brokers
def test_a_worker_that_starts_in_an_alarm_takes_tasks_if_its_ladder_was_applied(make_lab, own_broker, queue_type):
    is_parked_by_copy = queue_type == "classic" and Capabilities(own_broker.version).flags_returned
    ends_in_alarm = [0] if is_parked_by_copy else [0, 1]
    lab = make_lab(queue_type)
    stopped(lab.worker("prefork", 1))
    results = [lab.task("fails").delay(fails) for fails in ends_in_alarm]
    with alarm(own_broker):
        worker = lab.worker("prefork", 1)
        assert [result.get(timeout=SECONDS) for result in results] == ends_in_alarm
        assert "is consumed with the ladder that was applied before" in worker.logs()

    worker.wait_for_log("The ladder of queue shop is applied")
    assert lab.task("fails").delay(1).get(timeout=SECONDS) == 1


CONFIRMS = pytest.mark.parametrize("confirms", [slow(False), True])


@pytest.mark.brokers
@CONFIRMS
def test_a_worker_with_heartbeat_events_starts_works_and_stops_in_an_alarm(make_lab, own_broker, confirms):
    lab = make_lab("quorum")  # the worker rejects what fails, on each version
    config = confirming(lab, confirms)
    lab.worker("prefork", 1, config=config)  # answers the other worker's hello
    stopped(lab.worker("prefork", 1, config=config))
    results = [lab.task("fails").delay(fails) for fails in (0, 1, 2)]
    with alarm(own_broker):
        worker = lab.worker("prefork", 1, "--heartbeat-interval", "1", config=config, quiet=False)
        assert [result.get(timeout=SECONDS) for result in results] == [0, 1, 2]
        time.sleep(3)  # heartbeats that the broker does not read
        assert stopped(worker) < CONFIRM_TIMEOUT


@pytest.mark.brokers
@CONFIRMS
def test_a_worker_that_loses_its_connection_in_an_alarm_consumes_again_in_it(make_lab, own_broker, confirms):
    lab = make_lab()
    with proxied(lab) as (proxy, config):
        config = replace(config, conf=confirming(lab, confirms).conf)
        worker = lab.worker("prefork", 1, "--heartbeat-interval", "1", config=config, quiet=False)
        results = [lab.task("fails").apply_async((0,), countdown=6) for _ in range(3)]
        with alarm(own_broker):
            time.sleep(2)
            proxy.cut()
            worker.wait_for_log("is consumed with the ladder that was applied before")
            assert [result.get(timeout=SECONDS) for result in results] == [0, 0, 0]


@pytest.mark.brokers
@CONFIRMS
@pytest.mark.parametrize("pool", ["threads", *(slow(pool) for pool in ("prefork", "solo"))])
def test_tasks_are_exhausted_once_although_the_exhausted_queue_was_deleted(classic_lab, confirms, pool):
    worker = classic_lab.worker(pool, 2, config=confirming(classic_lab, confirms))
    classic_lab.delete("rmq_delay.exhausted")
    given_up = [classic_lab.task("gives_up").delay() for _ in range(10)]
    wait_for(lambda: classic_lab.count("rmq_delay.exhausted") >= len(given_up))

    assert sorted(exhausted(classic_lab)) == sorted(result.id for result in given_up)
    assert [len(classic_lab.attempts(result.id)) for result in given_up] == [1] * 10
    assert "No connection for publishing copies" not in worker.logs()


@pytest.mark.slow
@pytest.mark.brokers
def test_events_that_the_broker_does_not_read_cost_a_worker_no_connection(make_lab, own_broker):
    lab = make_lab()
    worker = behind_a_gate(lab, "prefork", 1, "--task-events")
    large = [lab.task("healthy").apply_async((number,), argsrepr="x" * 60_000) for number in range(200)]
    with alarm(own_broker):
        lab.open_gate()
        assert [result.get(timeout=SECONDS) for result in large] == list(range(200))
    assert "Connection to broker lost" not in worker.logs()
    assert "the quarantine queue" not in worker.logs()


@pytest.mark.slow
@pytest.mark.brokers
def test_a_queue_without_a_ladder_waits_for_the_end_of_an_alarm_and_others_do_not(make_lab, own_broker):
    lab = make_lab(queues={"other": False})
    waits = lab.task("fails").delay(1)
    goes_on = lab.task("healthy").apply_async((1,), queue="other")
    with alarm(own_broker):
        worker = lab.worker("prefork", 1, "--queues", "shop,other")
        assert goes_on.get(timeout=SECONDS) == 1
        assert "The queue is not consumed until it is" in worker.logs()
        assert not lab.attempts(waits.id)

    assert waits.get(timeout=SECONDS) == 1


@pytest.mark.brokers
def test_a_queue_without_a_ladder_that_is_added_in_an_alarm_waits_for_its_end(make_lab, own_broker):
    lab = make_lab(queues={"other": False})
    waiting = [lab.task("fails").delay(1) for _ in range(20)]
    worker = lab.worker("prefork", 1, "--queues", "other")
    worker.send(signal.SIGSTOP)
    lab.app.control.add_consumer("shop")  # an alarm would stop this publish
    with alarm(own_broker):
        worker.send(signal.SIGCONT)
        worker.wait_for_log("The queue is not consumed until it is")

    assert [each.get(timeout=SECONDS) for each in waiting] == [1] * len(waiting)
    logs = worker.logs()
    assert logs.index("The ladder of queue shop is applied") < logs.index(" received")


@pytest.mark.slow
@pytest.mark.brokers
def test_a_worker_that_loses_its_connection_while_a_record_is_held_goes_on(classic_lab):
    with proxied(classic_lab) as (proxy, config):
        worker = classic_lab.worker("prefork", 1, config=config)
        with held_record(classic_lab):
            proxy.cut()
            worker.wait_for_log("is consumed with the ladder that was applied before")
            assert classic_lab.task("fails").delay(1).get(timeout=SECONDS) == 1

        worker.wait_for_log("The ladder of queue shop is applied")


@pytest.mark.parametrize("pool", ["threads", slow("gevent")])
def test_a_worker_that_loses_its_connection_while_it_waits_for_an_answer_consumes_again(classic_lab, own_broker, pool):
    config = replace(classic_lab.config, asks_on=True, event_loop=False)
    classic_lab.worker(pool, 2, config=config)
    close_connections(own_broker)

    assert classic_lab.task("healthy").delay(1).get(timeout=SECONDS) == 1


@pytest.mark.slow
def test_a_worker_that_starts_while_a_record_is_held_waits_for_it(classic_lab):
    result = classic_lab.task("fails").delay(1)
    with held_record(classic_lab):
        worker = classic_lab.worker("prefork", 1)
        assert "The queue is not consumed until it is" in worker.logs()
        assert not classic_lab.attempts()

    assert result.get(timeout=SECONDS) == 1


@pytest.mark.parametrize("trouble", ["alarm", slow("record")])
def test_a_strict_worker_ends_when_its_ladder_cannot_be_applied(make_lab, own_broker, trouble):
    lab = make_lab(strict=True)
    lab.task("healthy").delay(1)  # declares the queue
    with alarm(own_broker) if trouble == "alarm" else held_record(lab), pytest.raises(AssertionError):
        lab.worker("prefork", 1)

    error = "BrokerBlockedError" if trouble == "alarm" else "LockTimeoutError"
    assert f"Unrecoverable error: {error}" in lab.workers[-1].logs()


@pytest.mark.brokers
def test_tasks_not_started_by_a_worker_that_stops_in_an_alarm_run_once(make_lab, own_broker, queue_type):
    lab = make_lab(queue_type)
    worker = behind_a_gate(lab)
    tasks = [lab.task("healthy").delay(number) for number in range(3)]
    wait_for(lambda: unacknowledged(own_broker, lab, "shop") == 4, "all tasks in the worker's hands")
    with alarm(own_broker):
        worker.begin_stop()
        lab.open_gate()
        worker.wait()

    lab.worker("prefork", 1)
    assert [task.get(timeout=SECONDS) for task in tasks] == [0, 1, 2]
    wait_for(lambda: lab.count("shop") == lab.count("shop.quarantine") == unacknowledged(own_broker, lab, "shop") == 0)
    assert [len(lab.attempts(task.id)) for task in tasks] == [1, 1, 1]
    assert "messages that were not started (3) cannot be returned as copies" in worker.logs()


@pytest.mark.slow
@pytest.mark.brokers
def test_a_worker_that_stops_in_an_alarm_does_not_wait_for_confirms(classic_lab, own_broker):
    with a_copy_that_waits(classic_lab, own_broker) as (worker, given_up):
        assert stopped(worker) < CONFIRM_TIMEOUT

    assert "1 publishes without a confirm at shutdown" in worker.logs()
    classic_lab.worker("prefork", 1)
    wait_for(lambda: len(classic_lab.attempts(given_up.id)) == 2)
    assert set(exhausted(classic_lab)) == {given_up.id}  # written in the alarm, possibly read after it


@pytest.mark.brokers
def test_a_lost_connection_for_copies_is_opened_again_and_no_task_runs_twice(make_lab, own_broker, queue_type):
    lab = make_lab(queue_type)
    worker = behind_a_gate(lab)
    given_up = [lab.task("gives_up").delay() for _ in range(3)]
    close_copies(own_broker)
    worker.wait_for_log("No connection for publishing copies")
    lab.open_gate()

    wait_for(lambda: lab.count("rmq_delay.exhausted") == len(given_up))
    assert sorted(exhausted(lab)) == sorted(result.id for result in given_up)
    assert [len(lab.attempts(result.id)) for result in given_up] == [1, 1, 1]
    assert "Connection to broker lost" not in worker.logs()


@pytest.mark.brokers
def test_messages_that_wait_in_an_alarm_are_delivered_again_after_connection_loss(classic_lab, own_broker):
    with a_copy_that_waits(classic_lab, own_broker) as (worker, given_up):
        close_connections(own_broker)
        worker.wait_for_log("is consumed with the ladder that was applied before")

    assert set(exhausted(classic_lab)) == {given_up.id}
    wait_for(lambda: not any(classic_lab.counts("shop", "shop.quarantine").values()))


@pytest.mark.slow
def test_a_cold_shutdown_ends_cleanly_while_the_broker_is_silent(lab, own_broker):
    with proxied(lab) as (proxy, config):
        worker = lab.worker("prefork", 1, config=config)
        assert lab.task("fails").delay(1).get(timeout=SECONDS) == 1
        # Celery 5.7 cancels its consumers in the signal's handler, and waits for itself if the signal comes in an ack.
        wait_for(lambda: not unacknowledged(own_broker, lab, "shop"))
        proxy.hold()
        worker.stop(signal.SIGQUIT)
        assert "Error on stopping" not in worker.logs()
