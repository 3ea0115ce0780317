"""Nothing is lost when processes die, and tasks that kill workers are found."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from celery_rmq_delay.amqp.apply import unconsumed
from celery_rmq_delay.testing import PrivateBroker
from tests.support.brokers.connections import close_connections
from tests.support.brokers.erlang import queue_process
from tests.support.brokers.policies import policy
from tests.support.brokers.proxy import Proxy, elsewhere
from tests.support.commands import run
from tests.support.waiting import SECONDS, wait_for
from tests.support.workers.lab import Lab
from tests.support.workers.nodes import Worker
from tests.support.workers.other_producer import task_message
from tests.support.workers.supervisor import MAX_CRASHES, Supervisor, kills_until_exhausted

#: The policy of a queue that refuses every message.
TAKES_NOTHING = {"max-length": 0, "overflow": "reject-publish"}


@pytest.mark.brokers
@pytest.mark.parametrize(
    ("queue_type", "fails_before"),
    [
        ("quorum", 1),
        pytest.param("classic", 0, marks=pytest.mark.slow),
        pytest.param("quorum", 0, marks=pytest.mark.slow),
        pytest.param("quorum", 2, marks=pytest.mark.slow),
        pytest.param("classic", 1, marks=pytest.mark.slow),
        pytest.param("classic", 2, marks=pytest.mark.slow),
    ],
)
def test_a_task_that_kills_its_worker_is_exhausted_and_its_neighbours_recover(
    make_lab: Callable[..., Lab], queue_type: str, fails_before: int
) -> None:
    lab = make_lab(queue_type, tiers=["200ms", "300ms", "400ms"], max_crashes=MAX_CRASHES)
    kills = kills_until_exhausted(lab, fails_before)
    # On quorum queues of RabbitMQ 4.0 the first kill after exactly one rejection goes unseen.
    assert MAX_CRASHES + 1 <= kills <= MAX_CRASHES + 2


def test_a_worker_killed_in_the_middle_of_a_task_leaves_it_to_the_next(lab: Lab) -> None:
    worker = lab.worker("prefork", 1)
    result = lab.task("sleeps").delay(1.0)
    wait_for(lambda: lab.attempts(result.id))

    worker.kill("SIGKILL")
    worker.container.start()

    assert result.get(timeout=SECONDS) == "slept"
    wait_for(lambda: not any(lab.counts("shop", "shop.quarantine", "rmq_delay.exhausted").values()))


@pytest.mark.brokers
@pytest.mark.parametrize(
    ("queue_type", "pool"),
    [
        ("quorum", "prefork"),
        *(pytest.param("classic", pool, marks=pytest.mark.slow) for pool in ("prefork", "threads")),
    ],
)
def test_a_quarantined_task_that_waits_for_a_busy_pool_is_not_blamed_when_its_worker_is_killed(
    make_lab: Callable[..., Lab], queue_type: str, pool: str
) -> None:
    lab = make_lab(queue_type, max_crashes=MAX_CRASHES, queues={"zones": False})
    run(lab.app, "apply")
    with ExitStack() as held:
        connection = held.enter_context(lab.app.connection_for_read())
        result, hand_over = put_in_quarantine(lab, held, redelivered=False)
        for kill in range(MAX_CRASHES + 2):
            before = len(lab.attempts())
            for _ in range(3):
                lab.task("gated").apply_async(queue="zones")
            worker = lab.worker(pool, 1, "--queues", "shop,zones")
            wait_for(lambda before=before: len(lab.attempts()) > before, "a task at the gate")
            if not kill:
                hand_over()
            # It may come before the others when a worker starts; then it runs at once.
            wait_for(
                lambda: unconsumed(connection, "shop.quarantine") or result.ready(),
                "the quarantined task that is put back",
            )
            worker.kill("SIGKILL")

    lab.worker(pool, 1, "--queues", "shop,zones")
    lab.open_gate(30)
    assert result.get(timeout=SECONDS) == 1
    assert len(lab.attempts(result.id)) == 1
    wait_for(lambda: not any(lab.counts("shop", "shop.quarantine", "zones").values()))


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_a_quarantined_task_that_runs_is_not_blamed_for_connections_that_are_lost_meanwhile(
    make_lab: Callable[..., Lab], own_broker: PrivateBroker, pool: str
) -> None:
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


@pytest.mark.parametrize("pool", ["prefork", pytest.param("threads", marks=pytest.mark.slow)])
def test_a_quarantined_task_runs_before_a_backlog_that_keeps_the_pool_busy(
    make_lab: Callable[..., Lab], pool: str
) -> None:
    lab = make_lab()
    run(lab.app, "apply")
    with ExitStack() as held:
        quarantined, hand_over = put_in_quarantine(lab, held, redelivered=False)
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
def test_tasks_behind_a_quarantined_one_are_returned_by_a_warm_shutdown_without_blame(
    make_lab: Callable[..., Lab], queue_type: str
) -> None:
    lab = make_lab(queue_type)
    run(lab.app, "apply")
    with ExitStack() as held:
        connection = held.enter_context(lab.app.connection_for_read())
        quarantined, hand_over = put_in_quarantine(lab, held, redelivered=False)
        gate = lab.task("gated").delay()
        worker = lab.worker("prefork", 1)
        wait_for(lambda: lab.attempts(gate.id))
        hand_over()
        wait_for(lambda: unconsumed(connection, "shop.quarantine"), "the quarantined task that is put back")
        others = [lab.task("healthy").delay(number) for number in range(3)]
        wait_for(lambda: lab.count("shop") == 0, "the messages in the worker")
    os.kill(worker.container.pid, signal.SIGTERM)
    wait_for(lambda: "Warm shutdown" in worker.logs())
    lab.open_gate()
    worker.container.wait(SECONDS)

    after = lab.worker("prefork", 1)
    assert [result.get(timeout=SECONDS) for result in (gate, quarantined, *others)] == ["passed", 1, 0, 1, 2]
    assert len(lab.attempts()) == 5
    assert "the quarantine queue" not in worker.logs() + after.logs()


@pytest.mark.brokers
@pytest.mark.parametrize("pool", ["prefork", pytest.param("threads", marks=pytest.mark.slow)])
def test_a_worker_goes_on_where_the_queue_of_a_quarantined_task_that_waits_is_deleted(
    make_lab: Callable[..., Lab], pool: str
) -> None:
    lab = make_lab()
    run(lab.app, "apply")
    with ExitStack() as held:
        connection = held.enter_context(lab.app.connection_for_write())
        _, hand_over = put_in_quarantine(lab, held, redelivered=False)
        gate = lab.task("gated").delay()
        worker = lab.worker(pool, 1)
        wait_for(lambda: lab.attempts(gate.id))
        hand_over()
        wait_for(lambda: unconsumed(connection, "shop.quarantine"), "the quarantined task that is put back")
        connection.channel().queue_delete("shop.quarantine")
        lab.open_gate(2)  # the missing queue closes its connection, and it may run again

        wait_for(lambda: lab.counts("shop.quarantine")["shop.quarantine"] is not None, "the queue")
    assert lab.task("fails").delay(1).get(timeout=SECONDS) == 1
    assert not worker.exited


@pytest.mark.parametrize("queues", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_quarantined_tasks_of_several_queues_and_a_backlog_take_turns(
    make_lab: Callable[..., Lab], queues: int
) -> None:
    names = ["shop", "zones"][:queues]
    lab = make_lab()
    lab.worker("prefork", 1, "--queues", ",".join(names)).kill("SIGTERM")  # applies the ladders
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
def test_a_queue_with_a_single_active_consumer_has_no_quarantined_tasks_that_others_could_run(
    make_lab: Callable[..., Lab], queue_type: str
) -> None:
    arguments = {"x-queue-type": queue_type, "x-single-active-consumer": True}
    lab = make_lab(queue_type, {"task_queues": {"shop": {"exchange": "", "queue_arguments": arguments}}})
    first = lab.worker("prefork", 1)
    results = [lab.task("gated").delay() for _ in range(4)]
    wait_for(lambda: lab.attempts(), "the task at the gate")
    second = lab.worker("prefork", 1)

    first.kill("SIGKILL")
    lab.open_gate(len(results) + 1)  # one is for the attempt that was killed
    assert [result.get(timeout=SECONDS) for result in results] == ["passed"] * 4
    assert "the quarantine queue" not in second.logs()


def test_quarantined_tasks_that_wait_for_a_worker_run_when_it_is_ready(lab: Lab) -> None:
    lab.worker("prefork", 1).kill("SIGTERM")  # applies the ladder
    results = [lab.task("healthy").delay(number) for number in range(3)]
    with lab.app.connection_for_write() as connection:
        channel: Any = connection.channel()
        for message in wait_for_messages(channel, "shop", len(results)):
            channel.basic_publish_confirm(message, "", "shop.quarantine")
    # While it applies the second queue's ladder, a worker already receives the broker's answers about the first.
    lab.worker("prefork", 1, "--queues", "shop,zones")
    assert [result.get(timeout=SECONDS) for result in results] == [0, 1, 2]
    assert lab.count("rmq_delay.exhausted") == 0


def put_in_quarantine(
    lab: Lab, held: ExitStack, *, redelivered: bool = True, **options: Any
) -> tuple[Any, Callable[[], object]]:
    """Send a task that gets into the quarantine queue: (result, function that delivers it).

    With ``redelivered`` it then looks as if a worker had died with it in the quarantine queue.
    """
    result = lab.task("healthy").apply_async((1,), **options)
    channel: Any = held.enter_context(lab.app.connection_for_write()).channel()
    (message,) = wait_for_messages(channel, "shop", 1)
    if not redelivered:
        return result, lambda: channel.basic_publish(message, "", "shop.quarantine")
    channel.basic_publish(message, "", "shop.quarantine")
    again = wait_for(lambda: channel.basic_get("shop.quarantine"))
    return result, lambda: channel.basic_reject(again.delivery_tag, requeue=True)


@pytest.mark.brokers
@pytest.mark.parametrize("trouble", ["a result backend that raises OSError", "an errback that cannot be sent"])
def test_a_task_that_is_given_up_is_exhausted_once_and_its_worker_goes_on(
    make_lab: Callable[..., Lab], tmp_path: Path, trouble: str
) -> None:
    """Celery stores the failure and calls the errbacks in the main process, while it receives the message."""
    lab = make_lab(max_crashes=1, conf={"task_create_missing_queues": False})
    results = tmp_path / "results"
    results.mkdir()
    conf = {**lab.config.conf, **({"result_backend": f"file://{results}"} if "OSError" in trouble else {})}
    run(lab.app, "apply")
    with ExitStack() as held:
        errback = {} if "OSError" in trouble else {"link_error": lab.task("healthy").s().set(queue="missing")}
        result, hand_over = put_in_quarantine(lab, held, **errback)
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


@pytest.mark.parametrize("pool", ["solo", pytest.param("threads", marks=pytest.mark.slow)])
def test_a_task_that_leaves_at_its_last_attempt_is_exhausted_once_if_its_errback_fails(
    make_lab: Callable[..., Lab], pool: str
) -> None:
    lab = make_lab(tiers=["100ms"], conf={"task_create_missing_queues": False})
    worker = lab.worker(pool, 1)
    result = lab.task("leaves").apply_async(link_error=lab.task("healthy").s().set(queue="missing"))

    (message,) = wait_for(lambda: lab.take("rmq_delay.exhausted"))
    assert lab.task("healthy").delay(1).get(timeout=SECONDS) == 1
    assert (message.headers["id"], message.headers["rmq-delay-reason"]) == (result.id, "retries_used")
    assert lab.count("rmq_delay.exhausted") == 0
    assert not worker.exited


def wait_for_messages(channel: Any, queue: str, count: int) -> list[Any]:
    """Take so many messages out of a queue."""
    return [wait_for(lambda: channel.basic_get(queue, no_ack=True), "a message") for _ in range(count)]


def hand_over(lab: Lab, task: str, *worker: Any, queue: str = "shop") -> tuple[Any, Worker]:
    """Start a worker and give it a message of ``task`` that came to another one before: (result, worker)."""
    result = lab.task(task).apply_async((1,), queue=queue)
    with lab.app.connection_for_write() as connection:
        channel: Any = connection.channel()
        message = wait_for(lambda: channel.basic_get(queue), "the message")
        started = lab.worker(*worker)
        channel.basic_reject(message.delivery_tag, requeue=True)
    return result, started


def test_a_redelivered_message_runs_at_once_in_a_queue_that_can_have_no_ladder(make_lab: Callable[..., Lab]) -> None:
    lab = make_lab(conf={"task_queues": {"brief": {"auto_delete": True, "exchange": ""}}})
    result, worker = hand_over(lab, "healthy", "solo", 1, "--queues", "brief", queue="brief")

    assert result.get(timeout=SECONDS) == 1
    assert "quarantine" not in worker.logs()


@pytest.mark.parametrize("pool", ["prefork", pytest.param("threads", marks=pytest.mark.slow)])
def test_a_task_whose_copy_waits_when_its_worker_stops_is_not_quarantined(
    classic_lab: Lab, own_broker: PrivateBroker, pool: str
) -> None:
    with policy(own_broker, "full", "^shop.retry.", TAKES_NOTHING, vhost=classic_lab.vhost):
        worker = classic_lab.worker(pool, 1)
        result = classic_lab.task("fails").apply_async((2,), retries=1)  # its first retry is a copy for the second tier
        wait_for(lambda: "waits in this worker for another try" in worker.logs())
        os.kill(worker.container.pid, signal.SIGTERM)
        worker.container.wait(SECONDS)

    after = classic_lab.worker(pool, 1)
    assert result.get(timeout=SECONDS) == 2
    assert "the quarantine queue" not in after.logs()
    assert [attempt["retries"] for attempt in classic_lab.attempts(result.id)] == [1, 1, 2]


def test_a_quarantined_task_that_the_broker_refuses_is_tried_again_each_second(
    classic_lab: Lab, own_broker: PrivateBroker
) -> None:
    with policy(own_broker, "full", "^shop.quarantine$", TAKES_NOTHING, vhost=classic_lab.vhost):
        result, worker = hand_over(classic_lab, "healthy", "solo", 1)
        wait_for(lambda: worker.logs().count("waits in this worker for another try") >= 2)

    assert result.get(timeout=SECONDS) == 1


def test_a_task_that_requeues_itself_into_a_full_queue_is_tried_again_and_not_blamed(
    classic_lab: Lab, own_broker: PrivateBroker
) -> None:
    worker = classic_lab.worker("solo", 1)
    result = classic_lab.task("asks_again").delay(1, gated=True)
    wait_for(lambda: classic_lab.attempts(result.id))
    with policy(own_broker, "full", "^shop$", TAKES_NOTHING, vhost=classic_lab.vhost):
        classic_lab.open_gate(2)
        wait_for(lambda: worker.logs().count("waits in this worker for another try") >= 2)

    assert result.get(timeout=SECONDS) == "asked"
    assert "quarantine" not in worker.logs()


def test_a_failed_attempt_whose_delay_queue_refuses_its_copy_is_not_repeated(
    classic_lab: Lab, own_broker: PrivateBroker
) -> None:
    with policy(own_broker, "full", "^shop.retry.", TAKES_NOTHING, vhost=classic_lab.vhost):
        result, worker = hand_over(
            classic_lab, "fails", "solo", 1
        )  # a quarantined task, so that its retries are copies
        wait_for(lambda: worker.logs().count("waits in this worker for another try") >= 2)
        assert [attempt["retries"] for attempt in classic_lab.attempts(result.id)] == [0]

    assert result.get(timeout=SECONDS) == 1
    assert [attempt["retries"] for attempt in classic_lab.attempts(result.id)] == [0, 1]


@pytest.mark.brokers
def test_an_exhausted_task_that_the_broker_refuses_waits_for_it_and_runs_no_more(
    classic_lab: Lab, own_broker: PrivateBroker
) -> None:
    lab = classic_lab
    worker = lab.worker("prefork", 1)
    with policy(own_broker, "full", "^rmq_delay.exhausted$", TAKES_NOTHING, vhost=lab.vhost):
        result = lab.task("gives_up").delay()
        wait_for(lambda: worker.logs().count("waits in this worker for another try") >= 2)

    [message] = wait_for(lambda: lab.take("rmq_delay.exhausted"), "the exhausted task")
    assert message.headers["id"] == result.id
    assert len(lab.attempts(result.id)) == 1
    wait_for(lambda: lab.counts("shop") == {"shop": 0} and not lab.parked())


def test_a_task_is_exhausted_once_if_the_connection_is_lost_during_its_last_attempt(
    make_lab: Callable[..., Lab], own_broker: PrivateBroker, queue_type: str
) -> None:
    lab = make_lab(queue_type, tiers=["100ms"])
    worker = lab.worker("prefork", 1)
    result = lab.task("gated").delay(99)
    lab.open_gate()
    wait_for(lambda: len(lab.attempts(result.id)) == 2)

    close_connections(own_broker)
    wait_for(lambda: "it is not run again" in worker.logs(), "the message once more")
    lab.open_gate(2)

    wait_for(lambda: lab.count("rmq_delay.exhausted"))
    wait_for(lambda: not any(lab.counts("shop", "shop.quarantine").values()) and not lab.parked())
    assert len(lab.take("rmq_delay.exhausted")) == 1
    assert len(lab.attempts(result.id)) == 2


def test_a_warm_shutdown_settles_running_tasks(lab: Lab) -> None:
    worker = lab.worker("prefork", 2)
    parks, fails = lab.task("gated").delay(1), lab.task("limited").apply_async(countdown=0)
    wait_for(lambda: lab.attempts(parks.id))

    os.kill(worker.container.pid, signal.SIGTERM)
    wait_for(lambda: "Warm shutdown" in worker.logs())
    lab.open_gate()
    worker.container.wait(SECONDS)

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
        pytest.param("classic", "solo", marks=pytest.mark.slow),
        pytest.param("quorum", "gevent", marks=pytest.mark.slow),
        pytest.param("classic", "threads", marks=pytest.mark.slow),
    ],
)
def test_a_warm_shutdown_blames_no_task_that_it_never_started(
    make_lab: Callable[..., Lab], queue_type: str, pool: str
) -> None:
    lab = make_lab(queue_type)
    results = [lab.task("sleeps").delay(0.5) for _ in range(8)]
    while not all(result.ready() for result in results):
        finished = sum(result.ready() for result in results)
        worker = lab.worker(pool, 2)
        wait_for(lambda finished=finished: len(lab.attempts()) > finished)
        worker.kill("SIGTERM")
        assert "quarantine" not in worker.logs()

    assert [result.get(timeout=SECONDS) for result in results] == ["slept"] * 8
    assert len(lab.attempts()) == 8
    assert lab.counts("shop", "shop.quarantine", "rmq_delay.exhausted") == {
        "shop": 0,
        "shop.quarantine": 0,
        "rmq_delay.exhausted": 0,
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("queue_type", "restarts"),
    [
        ("quorum", 2),
        pytest.param("quorum", 30, marks=pytest.mark.slow),
        pytest.param("classic", 30, marks=pytest.mark.slow),
    ],
)
def test_warm_shutdowns_under_load_run_no_task_twice(lab: Lab, restarts: int) -> None:
    dice = random.Random(20261123)
    results = []
    for _ in range(restarts):
        results += [lab.task("sleeps").delay(0.005) for _ in range(400)]
        finished = len(lab.attempts())
        worker = lab.worker("prefork", 4, "--prefetch-multiplier", "16")
        wait_for(lambda finished=finished: len(lab.attempts()) > finished)
        time.sleep(dice.uniform(0, 0.3))  # a random moment, not a wait
        worker.kill("SIGTERM")
        assert "quarantine" not in worker.logs()

    lab.worker("prefork", 4)
    assert [result.get(timeout=SECONDS) for result in results] == ["slept"] * len(results)
    assert Counter(attempt["id"] for attempt in lab.attempts()) == Counter(result.id for result in results)


@pytest.mark.slow
@pytest.mark.parametrize("queue_type", ["quorum"])
def test_a_warm_shutdown_returns_many_messages_once(lab: Lab) -> None:
    gate = lab.task("gated").delay()
    worker = lab.worker("prefork", 1, "--prefetch-multiplier", "200")
    wait_for(lambda: lab.attempts(gate.id))
    results = [lab.task("healthy").delay(number) for number in range(150)]
    wait_for(lambda: worker.logs().count("Task healthy") == len(results))

    os.kill(worker.container.pid, signal.SIGTERM)
    lab.open_gate()
    worker.container.wait(SECONDS)

    second = lab.worker("prefork", 1)
    assert [result.get(timeout=SECONDS) for result in results] == list(range(150))
    assert Counter(attempt["id"] for attempt in lab.attempts()) == Counter([gate.id, *(each.id for each in results)])
    assert "quarantine" not in second.logs()


def suspend_until_it_is_asked(broker: PrivateBroker, lab: Lab, queue: str) -> None:
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
def test_a_worker_blames_no_task_that_its_last_acks_let_come(
    make_lab: Callable[..., Lab], own_broker: PrivateBroker, first: str
) -> None:
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
    worker.kill("SIGTERM")

    second = lab.worker("prefork", 1)
    assert [result.get(timeout=SECONDS) for result in results] == list(range(20))
    assert len(lab.attempts()) == 21
    assert "quarantine" not in second.logs()


def test_cold_shutdowns_blame_no_task_that_they_end(make_lab: Callable[..., Lab], queue_type: str) -> None:
    lab = make_lab(queue_type, max_crashes=0)
    long = lab.task("gated").delay()
    for turn in (1, 2):
        worker = lab.worker("prefork", 1)
        wait_for(lambda turn=turn: len(lab.attempts(long.id)) == turn)
        os.kill(worker.container.pid, signal.SIGQUIT)
        worker.container.wait(SECONDS)
        assert "quarantine" not in worker.logs()

    last = lab.worker("prefork", 1)
    wait_for(lambda: len(lab.attempts(long.id)) == 3)
    lab.open_gate()
    assert long.get(timeout=SECONDS) == "passed"
    assert len(lab.attempts(long.id)) == 3
    assert "quarantine" not in last.logs()


@pytest.mark.slow
def test_a_task_that_a_cold_shutdown_ends_on_gevent_runs_again(lab: Lab) -> None:
    worker = lab.worker("gevent", 4)
    result = lab.task("sleeps").delay(5.0, fail=1)
    wait_for(lambda: len(lab.attempts()) == 2, "the attempt that is ended")
    time.sleep(1.0)  # the worker is idle, so that Celery carries the signal out at once
    os.kill(worker.container.pid, signal.SIGQUIT)
    worker.container.wait(SECONDS)

    successor = lab.worker("gevent", 4)
    assert result.get(timeout=SECONDS) == "slept"
    assert [each["retries"] for each in lab.attempts()] == [0, 1, 1]
    assert "quarantine" not in successor.logs()


def test_a_warm_shutdown_blames_no_quarantined_task_that_it_never_started(
    make_lab: Callable[..., Lab], queue_type: str
) -> None:
    lab = make_lab(queue_type, max_crashes=0)
    lab.worker("prefork", 1).kill("SIGTERM")  # applies the ladder
    quarantined = lab.task("healthy").delay(1)
    with lab.app.connection_for_write() as connection:
        channel: Any = connection.channel()
        [message] = wait_for_messages(channel, "shop", 1)
        channel.basic_publish(message, "", "shop.quarantine")
    busy = lab.task("sleeps").delay(1.0)
    worker = lab.worker("prefork", 1, "--prefetch-multiplier", "1")
    wait_for(lambda: lab.attempts(busy.id))
    worker.kill("SIGTERM")

    lab.worker("prefork", 1)
    assert quarantined.get(timeout=SECONDS) == 1
    assert lab.count("rmq_delay.exhausted") == 0


@pytest.mark.parametrize("stalls", [0, pytest.param(8, marks=pytest.mark.slow)])
def test_a_warm_shutdown_waits_for_the_confirm_of_an_exhausted_message(
    make_lab: Callable[..., Lab], queue_type: str, stalls: float
) -> None:
    lab = make_lab(queue_type, tiers=["100ms"])
    with Proxy(urlsplit(lab.config.broker).port or 5672) as proxy:
        config = replace(lab.config, broker=elsewhere(lab.config.broker, proxy.port))
        worker = lab.worker("prefork", 1, config=config)
        # Its only retry is still running when the worker has to stop.
        result = lab.task("sleeps").delay(1.0, 99)
        wait_for(lambda: len(lab.attempts(result.id)) == 2)

        os.kill(worker.container.pid, signal.SIGTERM)
        if stalls:
            wait_for(lambda: result.state == "FAILURE")
            proxy.hold()
            time.sleep(stalls)  # how long the broker does not answer: not a wait
            proxy.resume()
        worker.container.wait(SECONDS)

    assert result.state == "FAILURE"
    assert len(lab.take("rmq_delay.exhausted")) == 1, worker.logs()
    assert lab.counts("shop", "shop.quarantine") == {"shop": 0, "shop.quarantine": 0}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("queue_type", "tasks"),
    [
        ("quorum", 100),
        pytest.param("quorum", 2_000, marks=pytest.mark.slow),
        pytest.param("classic", 2_000, marks=pytest.mark.slow),
    ],
)
def test_failing_tasks_survive_kills_at_random_moments_and_a_restart_of_the_broker(
    make_lab: Callable[..., Lab], queue_type: str, tasks: int, own_broker: PrivateBroker
) -> None:
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

        def over() -> bool:
            queues = ["shop", "shop.quarantine"]
            return not any(lab.counts(*queues).values()) and not lab.parked() and done() >= len(sent)

        def done() -> int:
            return lab.count("rmq_delay.exhausted") + int(lab.redis.scard(f"{lab.config.attempts}:recovered"))

        wait_for(over, "every task recovered or exhausted")

    exhausted = {message.headers["id"] for message in lab.take("rmq_delay.exhausted")}
    recovered = {member.decode() for member in lab.redis.smembers(f"{lab.config.attempts}:recovered")}
    assert exhausted | recovered == set(sent)
    hopeless = {task_id for task_id, fate in sent.items() if fate == 99}
    assert hopeless <= exhausted
    assert supervisor.restarts >= 15
