"""Nothing is lost when processes die, and tasks that kill workers are found."""

import random
import signal
import time
from collections import Counter
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from celery_rmq_delay.amqp.apply import unconsumed
from tests.support.brokers.connections import close_connections
from tests.support.brokers.erlang import queue_process
from tests.support.brokers.policies import policy
from tests.support.commands import run
from tests.support.corpus import slow
from tests.support.waiting import SECONDS, wait_for
from tests.support.workers.lab import EMPTY, proxied
from tests.support.workers.other_producer import task_message
from tests.support.workers.supervisor import MAX_CRASHES, Supervisor, ends_of_coins, kills_until_exhausted

#: The policy of a queue that refuses every message.
TAKES_NOTHING = {"max-length": 0, "overflow": "reject-publish"}


@pytest.mark.brokers
@pytest.mark.parametrize(
    ("queue_type", "fails_before"),
    [("quorum", 1), slow("classic", 0), slow("quorum", 0), slow("quorum", 2), slow("classic", 1), slow("classic", 2)],
)
def test_a_task_that_kills_its_worker_is_exhausted_and_its_neighbours_recover(make_lab, queue_type, fails_before):
    lab = make_lab(queue_type, tiers=["200ms", "300ms", "400ms"], max_crashes=MAX_CRASHES)
    kills = kills_until_exhausted(lab, fails_before)
    # On quorum queues of RabbitMQ 4.0 the first kill after exactly one rejection goes unseen.
    assert MAX_CRASHES + 1 <= kills <= MAX_CRASHES + 2


def test_a_worker_killed_in_the_middle_of_a_task_leaves_it_to_the_next(lab):
    worker = lab.worker("prefork", 1)
    result = lab.task("sleeps").delay(1.0)
    wait_for(lambda: lab.attempts(result.id))

    worker.kill()
    worker.start()

    assert result.get(timeout=SECONDS) == "slept"
    wait_for(lambda: not any(lab.counts("shop", "shop.quarantine", "rmq_delay.exhausted").values()))


@pytest.mark.brokers
@pytest.mark.parametrize(
    ("queue_type", "pool"), [("quorum", "prefork"), *(slow("classic", pool) for pool in ("prefork", "threads"))]
)
def test_a_quarantined_task_that_waits_for_a_busy_pool_is_not_blamed_when_its_worker_is_killed(
    make_lab, queue_type, pool
):
    lab = make_lab(queue_type, max_crashes=MAX_CRASHES, queues={"zones": False})
    run(lab.app, "apply")
    with a_quarantined_task(lab) as (result, hand_over, put_back):
        for kill in range(MAX_CRASHES + 2):
            before = len(lab.attempts())
            for _ in range(3):
                lab.task("gated").apply_async(queue="zones")
            worker = lab.worker(pool, 1, "--queues", "shop,zones")
            wait_for(lambda before=before: len(lab.attempts()) > before, "a task at the gate")
            if not kill:
                hand_over()
            # It may come before the others when a worker starts; then it runs at once.
            wait_for(lambda: put_back() or result.ready(), "the quarantined task that is put back")
            worker.kill()

    lab.worker(pool, 1, "--queues", "shop,zones")
    lab.open_gate(30)
    assert result.get(timeout=SECONDS) == 1
    assert len(lab.attempts(result.id)) == 1
    wait_for(lambda: not any(lab.counts("shop", "shop.quarantine", "zones").values()))


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_a_quarantined_task_that_runs_is_not_blamed_for_connections_that_are_lost_meanwhile(make_lab, own_broker, pool):
    lab = make_lab("quorum", max_crashes=MAX_CRASHES)
    worker = lab.worker(pool, 1)
    result = lab.task("gated").delay()
    wait_for(lambda: lab.attempts(result.id), "the task at the gate")
    for cut in range(MAX_CRASHES + 2):
        close_connections(own_broker)
        wait_for(lambda cut=cut: worker.logs().count("it is not run again") > cut, "the message once more")
    lab.open_gate(20)
    assert result.get(timeout=SECONDS) == "passed"
    wait_for(lambda: not any(lab.counts("shop", "shop.quarantine").values()))
    assert lab.count("rmq_delay.exhausted") == 0
    assert len(lab.attempts(result.id)) == 1


@pytest.mark.parametrize("pool", ["prefork", slow("threads")])
def test_a_quarantined_task_runs_before_a_backlog_that_keeps_the_pool_busy(make_lab, pool):
    lab = make_lab()
    run(lab.app, "apply")
    with a_quarantined_task(lab) as (quarantined, hand_over, _):
        backlog = [lab.task("healthy").delay(number) for number in range(300)]
        lab.worker(pool, 1)
        wait_for(lambda: lab.attempts())
        hand_over()
        assert quarantined.get(timeout=SECONDS) == 1

    assert [result.get(timeout=SECONDS) for result in backlog] == list(range(300))
    order = [attempt["id"] for attempt in lab.attempts()]
    assert order.index(quarantined.id) < len(backlog)
    assert sorted(order) == sorted([quarantined.id, *(result.id for result in backlog)])


@pytest.mark.brokers
def test_tasks_behind_a_quarantined_one_are_returned_by_a_warm_shutdown_without_blame(make_lab, queue_type):
    lab = make_lab(queue_type)
    run(lab.app, "apply")
    with a_quarantined_task(lab) as (quarantined, hand_over, put_back):
        gate = lab.task("gated").delay()
        worker = lab.worker("prefork", 1)
        wait_for(lambda: lab.attempts(gate.id))
        hand_over()
        wait_for(put_back, "the quarantined task that is put back")
        others = [lab.task("healthy").delay(number) for number in range(3)]
        wait_for(lambda: lab.count("shop") == 0, "the messages in the worker")
    worker.begin_stop()
    lab.open_gate()
    worker.wait()

    after = lab.worker("prefork", 1)
    assert [result.get(timeout=SECONDS) for result in (gate, quarantined, *others)] == ["passed", 1, 0, 1, 2]
    assert len(lab.attempts()) == 5
    assert "the quarantine queue" not in worker.logs() + after.logs()


@pytest.mark.brokers
@pytest.mark.parametrize("pool", ["prefork", slow("threads")])
def test_a_worker_goes_on_where_the_queue_of_a_quarantined_task_that_waits_is_deleted(make_lab, pool):
    lab = make_lab()
    run(lab.app, "apply")
    with a_quarantined_task(lab) as (_, hand_over, put_back):
        gate = lab.task("gated").delay()
        worker = lab.worker(pool, 1)
        wait_for(lambda: lab.attempts(gate.id))
        hand_over()
        wait_for(put_back, "the quarantined task that is put back")
        lab.delete("shop.quarantine")
        lab.open_gate(2)  # the missing queue closes its connection, and it may run again

        wait_for(lambda: lab.counts("shop.quarantine")["shop.quarantine"] is not None, "the queue")
    assert lab.task("fails").delay(1).get(timeout=SECONDS) == 1
    assert not worker.exited


@pytest.mark.parametrize("queues", [slow(1), 2])
def test_quarantined_tasks_of_several_queues_and_a_backlog_take_turns(make_lab, queues):
    names = ["shop", "zones"][:queues]
    lab = make_lab()
    lab.worker("prefork", 1, "--queues", ",".join(names)).stop()  # applies the ladders
    gate = lab.task("gated").delay()
    worker = lab.worker("prefork", 1, "--queues", ",".join(names))
    wait_for(lambda: lab.attempts(gate.id))
    with lab.app.connection_for_write() as connection:
        channel: Any = connection.channel()
        quarantine = []
        for name in names * 5:
            message = task_message("sleeps", [0.5])
            channel.basic_publish(message, "", f"{name}.quarantine")
            quarantine.append(message.headers["id"])
    backlog = [lab.task("healthy").delay(number).id for number in range(400)]
    lab.open_gate()

    wait_for(lambda: {attempt["id"] for attempt in lab.attempts()} >= {*quarantine, *backlog})
    order = [attempt["id"] for attempt in lab.attempts()]
    assert sorted(order) == sorted([gate.id, *quarantine, *backlog])
    assert sorted(map(order.index, quarantine))[2] < max(map(order.index, backlog)), "the backlog came first"
    assert min(map(order.index, backlog)) < max(map(order.index, quarantine)), "the quarantined tasks came first"
    assert "the quarantine queue" not in worker.logs()


@pytest.mark.brokers
def test_a_queue_with_a_single_active_consumer_has_no_quarantined_tasks_that_others_could_run(make_lab, queue_type):
    arguments = {"x-queue-type": queue_type, "x-single-active-consumer": True}
    lab = make_lab(queue_type, {"task_queues": {"shop": {"exchange": "", "queue_arguments": arguments}}})
    first = lab.worker("prefork", 1)
    results = [lab.task("gated").delay() for _ in range(4)]
    wait_for(lambda: lab.attempts(), "the task at the gate")
    second = lab.worker("prefork", 1)

    first.kill()
    lab.open_gate(len(results) + 1)  # one is for the attempt that was killed
    assert [result.get(timeout=SECONDS) for result in results] == ["passed"] * 4
    assert "the quarantine queue" not in second.logs()


def test_quarantined_tasks_that_wait_for_a_worker_run_when_it_is_ready(lab):
    lab.worker("prefork", 1).stop()  # applies the ladder
    results = [lab.task("healthy").delay(number) for number in range(3)]
    with lab.app.connection_for_write() as connection:
        channel: Any = connection.channel()
        for _ in results:
            message = wait_for(lambda: channel.basic_get("shop", no_ack=True), "a message")
            channel.basic_publish_confirm(message, "", "shop.quarantine")
    # While it applies the second queue's ladder, a worker already receives the broker's answers about the first.
    lab.worker("prefork", 1, "--queues", "shop,zones")
    assert [result.get(timeout=SECONDS) for result in results] == [0, 1, 2]
    assert lab.count("rmq_delay.exhausted") == 0


@contextmanager
def a_quarantined_task(lab, *, redelivered=False, **options):
    """Send a task: (result, function that puts it into the quarantine queue, whether its worker has put it back).

    With ``redelivered`` it then looks as if a worker had died with it in the quarantine queue.
    """
    result = lab.task("healthy").apply_async((1,), **options)
    with lab.app.connection_for_write() as connection:
        channel: Any = connection.channel()
        message = wait_for(lambda: channel.basic_get("shop", no_ack=True), "the message")

        def hand_over():
            channel.basic_publish(message, "", "shop.quarantine")

        def put_back():
            return unconsumed(connection, "shop.quarantine")

        if not redelivered:
            yield result, hand_over, put_back
            return
        hand_over()
        again = wait_for(lambda: channel.basic_get("shop.quarantine"))
        yield result, lambda: channel.basic_reject(again.delivery_tag, requeue=True), put_back


@pytest.mark.brokers
@pytest.mark.parametrize("trouble", ["a result backend that raises OSError", "an errback that cannot be sent"])
def test_a_task_that_is_given_up_is_exhausted_once_and_its_worker_goes_on(make_lab, tmp_path, trouble):
    """Celery stores the failure and calls the errbacks in the main process, while it receives the message."""
    lab = make_lab(max_crashes=1, conf={"task_create_missing_queues": False})
    results = tmp_path / "results"
    results.mkdir()
    conf = {**lab.config.conf, **({"result_backend": f"file://{results}"} if "OSError" in trouble else {})}
    run(lab.app, "apply")
    errback = {} if "OSError" in trouble else {"link_error": lab.task("healthy").s().set(queue="missing")}
    with a_quarantined_task(lab, redelivered=True, **errback) as (result, hand_over, _):
        worker = lab.worker("prefork", 1, config=replace(lab.config, conf=conf))
        results.rmdir()
        hand_over()
        (message,) = wait_for(lambda: lab.take("rmq_delay.exhausted"))
        assert (message.headers["id"], message.headers["rmq-delay-reason"]) == (result.id, "crashed")

    neighbour = lab.task("healthy").apply_async((2,), ignore_result=True)
    wait_for(lambda: lab.attempts(neighbour.id))
    wait_for(lambda: not any(lab.counts("shop", "shop.quarantine").values()))
    assert "(crashed) could not be stored, or an errback not be called" in worker.logs()
    assert "Connection to broker lost" not in worker.logs()
    assert lab.count("rmq_delay.exhausted") == 0
    assert not lab.attempts(result.id)


@pytest.mark.parametrize("pool", ["solo", slow("threads")])
def test_a_task_that_leaves_at_its_last_attempt_is_exhausted_once_if_its_errback_fails(make_lab, pool):
    lab = make_lab(tiers=["100ms"], conf={"task_create_missing_queues": False})
    worker = lab.worker(pool, 1)
    result = lab.task("leaves").apply_async(link_error=lab.task("healthy").s().set(queue="missing"))

    (message,) = wait_for(lambda: lab.take("rmq_delay.exhausted"))
    assert lab.task("healthy").delay(1).get(timeout=SECONDS) == 1
    assert (message.headers["id"], message.headers["rmq-delay-reason"]) == (result.id, "retries_used")
    assert lab.count("rmq_delay.exhausted") == 0
    assert not worker.exited


def hand_over(lab, task, *worker, queue="shop"):
    """Start a worker and give it a message of ``task`` that came to another one before: (result, worker)."""
    result = lab.task(task).apply_async((1,), queue=queue)
    with lab.app.connection_for_write() as connection:
        channel: Any = connection.channel()
        message = wait_for(lambda: channel.basic_get(queue), "the message")
        started = lab.worker(*worker)
        channel.basic_reject(message.delivery_tag, requeue=True)
    return result, started


def test_a_redelivered_message_runs_at_once_in_a_queue_that_can_have_no_ladder(make_lab):
    lab = make_lab(conf={"task_queues": {"brief": {"auto_delete": True, "exchange": ""}}})
    result, worker = hand_over(lab, "healthy", "solo", 1, "--queues", "brief", queue="brief")

    assert result.get(timeout=SECONDS) == 1
    assert "quarantine" not in worker.logs()


@pytest.mark.parametrize("pool", ["prefork", slow("threads")])
def test_a_task_whose_copy_waits_when_its_worker_stops_is_not_quarantined(classic_lab, own_broker, pool):
    with policy(own_broker, "full", "^shop.retry.", TAKES_NOTHING, vhost=classic_lab.vhost):
        worker = classic_lab.worker(pool, 1)
        result = classic_lab.task("fails").apply_async((2,), retries=1)  # its first retry is a copy for the second tier
        worker.wait_for_log("waits in this worker for another try")
        worker.stop()

    after = classic_lab.worker(pool, 1)
    assert result.get(timeout=SECONDS) == 2
    assert "the quarantine queue" not in after.logs()
    assert [attempt["retries"] for attempt in classic_lab.attempts(result.id)] == [1, 1, 2]


def test_a_quarantined_task_that_the_broker_refuses_is_tried_again_each_second(classic_lab, own_broker):
    with policy(own_broker, "full", "^shop.quarantine$", TAKES_NOTHING, vhost=classic_lab.vhost):
        result, worker = hand_over(classic_lab, "healthy", "solo", 1)
        wait_for(lambda: worker.logs().count("waits in this worker for another try") >= 2)

    assert result.get(timeout=SECONDS) == 1


def test_a_task_that_requeues_itself_into_a_full_queue_is_tried_again_and_not_blamed(classic_lab, own_broker):
    worker = classic_lab.worker("solo", 1)
    result = classic_lab.task("asks_again").delay(1, gated=True)
    wait_for(lambda: classic_lab.attempts(result.id))
    with policy(own_broker, "full", "^shop$", TAKES_NOTHING, vhost=classic_lab.vhost):
        classic_lab.open_gate(2)
        wait_for(lambda: worker.logs().count("waits in this worker for another try") >= 2)

    assert result.get(timeout=SECONDS) == "asked"
    assert "quarantine" not in worker.logs()


def test_a_failed_attempt_whose_delay_queue_refuses_its_copy_is_not_repeated(classic_lab, own_broker):
    with policy(own_broker, "full", "^shop.retry.", TAKES_NOTHING, vhost=classic_lab.vhost):
        result, worker = hand_over(
            classic_lab, "fails", "solo", 1
        )  # a quarantined task, so that its retries are copies
        wait_for(lambda: worker.logs().count("waits in this worker for another try") >= 2)
        assert [attempt["retries"] for attempt in classic_lab.attempts(result.id)] == [0]

    assert result.get(timeout=SECONDS) == 1
    assert [attempt["retries"] for attempt in classic_lab.attempts(result.id)] == [0, 1]


@pytest.mark.brokers
def test_an_exhausted_task_that_the_broker_refuses_waits_for_it_and_runs_no_more(classic_lab, own_broker):
    lab = classic_lab
    worker = lab.worker("prefork", 1)
    with policy(own_broker, "full", "^rmq_delay.exhausted$", TAKES_NOTHING, vhost=lab.vhost):
        result = lab.task("gives_up").delay()
        wait_for(lambda: worker.logs().count("waits in this worker for another try") >= 2)

    [message] = wait_for(lambda: lab.take("rmq_delay.exhausted"), "the exhausted task")
    assert message.headers["id"] == result.id
    assert len(lab.attempts(result.id)) == 1
    wait_for(lambda: lab.counts("shop") == {"shop": 0} and not lab.parked())


def test_a_task_is_exhausted_once_if_the_connection_is_lost_during_its_last_attempt(make_lab, own_broker, queue_type):
    lab = make_lab(queue_type, tiers=["100ms"])
    worker = lab.worker("prefork", 1)
    result = lab.task("gated").delay(99)
    lab.open_gate()
    wait_for(lambda: len(lab.attempts(result.id)) == 2)

    close_connections(own_broker)
    worker.wait_for_log("it is not run again")
    lab.open_gate(2)

    wait_for(lambda: lab.count("rmq_delay.exhausted"))
    wait_for(lambda: not any(lab.counts("shop", "shop.quarantine").values()) and not lab.parked())
    assert len(lab.take("rmq_delay.exhausted")) == 1
    assert len(lab.attempts(result.id)) == 2


def test_a_warm_shutdown_settles_running_tasks(lab):
    worker = lab.worker("prefork", 2)
    parks, fails = lab.task("gated").delay(1), lab.task("limited").apply_async(countdown=0)
    wait_for(lambda: lab.attempts(parks.id))

    worker.begin_stop()
    lab.open_gate()
    worker.wait()

    assert parks.state == "RETRY"
    lab.worker()
    lab.open_gate()
    assert parks.get(timeout=SECONDS) == "passed"
    assert [attempt["retries"] for attempt in lab.attempts(parks.id)] == [0, 1]
    wait_for(lambda: fails.state == "FAILURE")
    assert len(wait_for(lambda: lab.take("rmq_delay.exhausted"))) == 1


@pytest.mark.parametrize(
    ("queue_type", "pool"),
    [
        pytest.param("classic", "prefork", marks=pytest.mark.brokers),
        pytest.param("quorum", "prefork", marks=[pytest.mark.brokers, pytest.mark.slow]),
        slow("classic", "solo"),
        slow("quorum", "gevent"),
        slow("classic", "threads"),
    ],
)
def test_a_warm_shutdown_blames_no_task_that_it_never_started(make_lab, queue_type, pool):
    lab = make_lab(queue_type)
    results = [lab.task("sleeps").delay(0.5) for _ in range(8)]
    while not all(result.ready() for result in results):
        finished = sum(result.ready() for result in results)
        worker = lab.worker(pool, 2)
        wait_for(lambda finished=finished: len(lab.attempts()) > finished)
        worker.stop()
        assert "quarantine" not in worker.logs()

    assert [result.get(timeout=SECONDS) for result in results] == ["slept"] * 8
    assert len(lab.attempts()) == 8
    assert lab.counts(*EMPTY) == EMPTY


@pytest.mark.slow
@pytest.mark.parametrize(("queue_type", "restarts"), [("quorum", 2), slow("quorum", 30), slow("classic", 30)])
def test_warm_shutdowns_under_load_run_no_task_twice(lab, restarts):
    dice = random.Random(20261123)
    results = []
    for _ in range(restarts):
        results += [lab.task("sleeps").delay(0.005) for _ in range(400)]
        finished = len(lab.attempts())
        worker = lab.worker("prefork", 4, "--prefetch-multiplier", "16")
        wait_for(lambda finished=finished: len(lab.attempts()) > finished)
        time.sleep(dice.uniform(0, 0.3))  # a random moment, not a wait
        worker.stop()
        assert "quarantine" not in worker.logs()

    lab.worker("prefork", 4)
    assert [result.get(timeout=SECONDS) for result in results] == ["slept"] * len(results)
    assert Counter(attempt["id"] for attempt in lab.attempts()) == Counter(result.id for result in results)


@pytest.mark.slow
@pytest.mark.parametrize("queue_type", ["quorum"])
def test_a_warm_shutdown_returns_many_messages_once(lab):
    gate = lab.task("gated").delay()
    worker = lab.worker("prefork", 1, "--prefetch-multiplier", "200")
    wait_for(lambda: lab.attempts(gate.id))
    results = [lab.task("healthy").delay(number) for number in range(150)]
    wait_for(lambda: worker.logs().count("Task healthy") == len(results))

    worker.send(signal.SIGTERM)
    lab.open_gate()
    worker.wait()

    second = lab.worker("prefork", 1)
    assert [result.get(timeout=SECONDS) for result in results] == list(range(150))
    assert Counter(attempt["id"] for attempt in lab.attempts()) == Counter([gate.id, *(each.id for each in results)])
    assert "quarantine" not in second.logs()


def suspend_until_it_is_asked(broker, lab, queue):
    """Suspend a quorum queue until a client waits for its answer; acks sent before wait until then."""
    broker.evaluate(
        f"Pid = whereis(element(1, {queue_process(lab.vhost, queue)})), sys:suspend(Pid), "
        "spawn(fun() -> (fun Look(0) -> sys:resume(Pid); Look(N) -> "
        "{messages, Found} = process_info(Pid, messages), "
        "case [Call || {'$gen_call', _, _} = Call <- Found] of "
        "[] -> timer:sleep(1), Look(N - 1); _ -> sys:resume(Pid) end end)(60000) end)"
    )


@pytest.mark.brokers
@pytest.mark.parametrize("first", ["stops", "cancels its consumer"])
def test_a_worker_blames_no_task_that_its_last_acks_let_come(make_lab, own_broker, first):
    """A quorum queue flags messages as redelivered that it delivered while it cancelled a consumer."""
    lab = make_lab("quorum")
    worker = lab.worker("prefork", 1, "--prefetch-multiplier", "2")
    gate = lab.task("gated").delay()
    wait_for(lambda: lab.attempts(gate.id), "the task at the gate")
    results = [lab.task("healthy").delay(number) for number in range(20)]
    wait_for(lambda: lab.count("shop") == 19, "a task behind the gate")
    suspend_until_it_is_asked(own_broker, lab, "shop")
    lab.open_gate()
    wait_for(lambda: results[0].ready(), "two tasks that are done")
    if first == "cancels its consumer":
        assert lab.app.control.cancel_consumer("shop", reply=True, timeout=SECONDS, limit=1)
    worker.stop()

    second = lab.worker("prefork", 1)
    assert [result.get(timeout=SECONDS) for result in results] == list(range(20))
    assert len(lab.attempts()) == 21
    assert "quarantine" not in second.logs()


def test_cold_shutdowns_blame_no_task_that_they_end(make_lab, queue_type):
    lab = make_lab(queue_type, max_crashes=0)
    long = lab.task("gated").delay()
    for turn in (1, 2):
        worker = lab.worker("prefork", 1)
        wait_for(lambda turn=turn: len(lab.attempts(long.id)) == turn)
        worker.stop(signal.SIGQUIT)
        assert "quarantine" not in worker.logs()

    last = lab.worker("prefork", 1)
    wait_for(lambda: len(lab.attempts(long.id)) == 3)
    lab.open_gate()
    assert long.get(timeout=SECONDS) == "passed"
    assert len(lab.attempts(long.id)) == 3
    assert "quarantine" not in last.logs()


@pytest.mark.slow
def test_a_task_that_a_cold_shutdown_ends_on_gevent_runs_again(lab):
    worker = lab.worker("gevent", 4)
    result = lab.task("sleeps").delay(5.0, fail=1)
    wait_for(lambda: len(lab.attempts()) == 2, "the attempt that is ended")
    time.sleep(1.0)  # the worker is idle, so that Celery carries the signal out at once
    worker.stop(signal.SIGQUIT)

    successor = lab.worker("gevent", 4)
    assert result.get(timeout=SECONDS) == "slept"
    assert [each["retries"] for each in lab.attempts()] == [0, 1, 1]
    assert "quarantine" not in successor.logs()


def test_a_warm_shutdown_blames_no_quarantined_task_that_it_never_started(make_lab, queue_type):
    lab = make_lab(queue_type, max_crashes=0)
    lab.worker("prefork", 1).stop()  # applies the ladder
    with a_quarantined_task(lab) as (quarantined, hand_over, _):
        hand_over()
    busy = lab.task("sleeps").delay(1.0)
    worker = lab.worker("prefork", 1, "--prefetch-multiplier", "1")
    wait_for(lambda: lab.attempts(busy.id))
    worker.stop()

    lab.worker("prefork", 1)
    assert quarantined.get(timeout=SECONDS) == 1
    assert lab.count("rmq_delay.exhausted") == 0


@pytest.mark.parametrize("stalls", [0, slow(8)])
def test_a_warm_shutdown_waits_for_the_confirm_of_an_exhausted_message(make_lab, queue_type, stalls):
    lab = make_lab(queue_type, tiers=["100ms"])
    with proxied(lab) as (proxy, config):
        worker = lab.worker("prefork", 1, config=config)
        # Its only retry is still running when the worker has to stop.
        result = lab.task("sleeps").delay(1.0, 99)
        wait_for(lambda: len(lab.attempts(result.id)) == 2)

        worker.send(signal.SIGTERM)
        if stalls:
            wait_for(lambda: result.state == "FAILURE")
            proxy.hold()
            time.sleep(stalls)  # how long the broker does not answer: not a wait
            proxy.resume()
        worker.wait()

    assert result.state == "FAILURE"
    assert len(lab.take("rmq_delay.exhausted")) == 1, worker.logs()
    assert lab.counts("shop", "shop.quarantine") == {"shop": 0, "shop.quarantine": 0}


@pytest.mark.slow
@pytest.mark.parametrize(("queue_type", "tasks"), [("quorum", 100), slow("quorum", 2_000), slow("classic", 2_000)])
def test_failing_tasks_survive_kills_at_random_moments_and_a_restart_of_the_broker(
    make_lab, queue_type, tasks, own_broker
):
    dice = random.Random(20261120)
    lab = make_lab(queue_type, tiers=["200ms", "400ms", "800ms"], max_crashes=100, conf={"result_backend": None})
    workers = [lab.worker("prefork", 2, "--loglevel", "ERROR") for _ in range(2)]
    fates = [dice.choice([1, 2, 3, 99]) for _ in range(tasks)]
    sent: dict[str, int] = {}
    coin = lab.task("coin")
    with Supervisor(workers) as supervisor:
        for number, fate in enumerate(fates):
            sent[coin.delay(fate).id] = fate
            if number % (tasks // 10) == tasks // 20:
                supervisor.kill(dice.choice(workers))
            if number == tasks // 2:
                own_broker.restart()
        for _ in range(5):
            time.sleep(dice.uniform(0.1, 0.6))  # a random moment, not a wait
            supervisor.kill(dice.choice(workers))
        ends_of_coins(lab, sent)

    assert supervisor.restarts >= 15
