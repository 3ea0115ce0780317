"""Deliveries that RabbitMQ takes back from a worker that lives: at its consumer time-out, or with a lost connection."""

from contextlib import suppress

import amqp
import pytest

from celery_rmq_delay.amqp.confirms import publisher_on
from celery_rmq_delay.amqp.route import Route
from celery_rmq_delay.exceptions import NackedError
from tests.support.brokers.connections import close_connections
from tests.support.brokers.limits import impatient_broker
from tests.support.brokers.policies import policy
from tests.support.corpus import slow
from tests.support.waiting import SECONDS, wait_for

pytestmark = pytest.mark.brokers

TAKES_NOTHING = {"max-length": 0, "overflow": "reject-publish"}
#: Seconds: RabbitMQ's time-out, and a task that takes longer.
TIME_OUT, LONG = 3, 8
TAKEN_BACK = "RabbitMQ has taken back the unacknowledged messages of this worker"
AGAIN = "it is not run again"
POOLS = pytest.mark.parametrize("pool", ["prefork", "gevent", *(slow(pool) for pool in ("threads", "solo"))])


@pytest.fixture(scope="module")
def impatient(rmq_installation):
    with impatient_broker(rmq_installation, TIME_OUT) as broker:
        yield broker


@pytest.fixture
def timed_lab(make_lab, impatient, queue_type, tmp_path):
    return make_lab(queue_type, broker=impatient.vhost(f"{queue_type}-{abs(hash(str(tmp_path))):x}"))


def fill(lab, queue):
    """Publish until the queue refuses a message; quorum queues take a few."""
    with lab.app.connection_for_write() as connection, suppress(NackedError):
        for _ in range(20):
            publisher_on(connection.default_channel).send(amqp.Message("filler"), Route("", queue))
        raise AssertionError("the queue takes everything")


def was_taken_back(worker, times=1):
    return lambda: worker.logs().count(AGAIN) >= times


@POOLS
def test_a_task_that_outlives_the_time_out_runs_once(timed_lab, pool):
    lab = timed_lab
    worker = lab.worker(pool, 2)
    result, short = lab.task("sleeps").delay(LONG), lab.task("fails").delay(1)

    assert result.get(timeout=SECONDS) == "slept"
    assert short.get(timeout=SECONDS) == 1
    wait_for(lab.nothing_left, "queues without a message")
    assert len(lab.attempts(result.id)) == 1
    assert [attempt["retries"] for attempt in lab.attempts(short.id)] == [0, 1]
    assert not worker.exited
    assert (AGAIN in worker.logs()) == (TAKEN_BACK in worker.logs())
    assert worker.logs().count("Connection to broker lost") == worker.logs().count(TAKEN_BACK)


def test_a_task_that_is_shown_under_another_name_and_outlives_the_time_out_runs_once(timed_lab):
    lab = timed_lab
    worker = lab.worker("prefork", 2)
    result = lab.task("sleeps").apply_async([LONG], shadow="nap")

    assert result.get(timeout=SECONDS) == "slept"
    wait_for(lab.nothing_left, "queues without a message")
    assert len(lab.attempts(result.id)) == 1
    assert (AGAIN in worker.logs()) == (TAKEN_BACK in worker.logs())


@POOLS
def test_a_retry_after_the_time_out_waits_in_its_tier_and_counts_once(timed_lab, pool):
    lab = timed_lab
    lab.worker(pool, 2)
    result = lab.task("sleeps").delay(LONG, fail=1)

    assert result.get(timeout=SECONDS) == "slept"
    wait_for(lab.nothing_left, "queues without a message")
    assert [attempt["retries"] for attempt in lab.attempts(result.id)] == [0, 1]


def test_an_exhausted_task_that_waits_for_a_full_queue_does_not_run_again(timed_lab, impatient):
    lab = timed_lab
    worker = lab.worker("prefork", 2)
    with policy(impatient, "full", r"^rmq_delay\.exhausted$", TAKES_NOTHING, vhost=lab.vhost):
        fill(lab, "rmq_delay.exhausted")
        result = lab.task("fails").delay(99)
        wait_for(lambda: len(lab.attempts(result.id)) == 4, "the last attempt")
        healthy = [lab.task("fails").delay(1) for _ in range(10)]
        if impatient.version < (4, 3) or lab.config.queue_type == "quorum":  # classic queues of 4.3 have no time-out
            wait_for(was_taken_back(worker, 2), "two time-outs")
        assert all(each.get(timeout=SECONDS) == 1 for each in healthy)

    (message,) = wait_for(
        lambda: [each for each in lab.take("rmq_delay.exhausted") if "id" in (each.headers or {})], "the task"
    )
    assert (message.headers["id"], message.headers["rmq-delay-reason"]) == (result.id, "retries_used")
    assert len(lab.attempts(result.id)) == 4
    assert not worker.exited
    wait_for(lab.nothing_left, "queues without a message")


@POOLS
def test_a_task_that_runs_when_the_connection_is_lost_runs_once(make_lab, own_broker, queue_type, pool):
    lab = make_lab(queue_type)
    worker = lab.worker(pool, 1)
    result = lab.task("gated").delay(1)
    wait_for(lambda: lab.attempts(result.id), "the first attempt")
    close_connections(own_broker)
    if pool != "solo":  # whose loop reads nothing meanwhile
        wait_for(was_taken_back(worker), "the message, delivered again")
    lab.open_gate(2)

    assert result.get(timeout=SECONDS) == "passed"
    wait_for(lab.nothing_left, "queues without a message")
    assert [attempt["retries"] for attempt in lab.attempts(result.id)] == [0, 1]


@pytest.mark.parametrize("pool", ["prefork", slow("threads")])
def test_a_message_like_that_of_an_ended_task_runs_if_the_connection_is_lost(make_lab, own_broker, queue_type, pool):
    lab = make_lab(queue_type)
    worker = lab.worker(pool, 1)
    first = lab.task("fails").apply_async((0,), task_id="the same")
    assert first.get(timeout=SECONDS) == 0
    first.forget()
    gated = lab.task("gated").delay(0)
    wait_for(lambda: lab.attempts(gated.id), "a task that runs")
    second = lab.task("fails").apply_async((0,), task_id="the same")
    wait_for(lambda: worker.logs().count("Task fails[the same] received") == 2, "the same message, prefetched")

    close_connections(own_broker)
    wait_for(was_taken_back(worker), "the messages, delivered again")
    lab.open_gate()

    # The result of the first, which has the same id, can arrive once more.
    wait_for(lambda: len(lab.attempts("the same")) == 2, "the second run")
    assert second.get(timeout=SECONDS) == 0
    wait_for(lab.nothing_left, "queues without a message")
    assert (len(lab.attempts("the same")), len(lab.attempts(gated.id))) == (2, 1)


@pytest.mark.slow
def test_threads_that_settle_after_a_time_out_do_not_wait_for_each_other(timed_lab):
    """Celery restores the prefetch count with an ack, and waits for a reply: in the loop only."""
    lab = timed_lab
    worker = lab.worker("threads", 2)
    results = [lab.task("sleeps").delay(LONG) for _ in range(7)]

    assert [each.get(timeout=SECONDS) for each in results] == ["slept"] * len(results)
    wait_for(lab.nothing_left, "queues without a message")
    assert [len(lab.attempts(each.id)) for each in results] == [1] * len(results)
    assert lab.task("fails").delay(0).get(timeout=SECONDS) == 0
    assert not worker.exited
