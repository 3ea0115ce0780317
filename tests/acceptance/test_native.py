"""Retries held by a quorum queue itself: RabbitMQ's native retry, 4.3.1 and newer."""

import random
import time
from dataclasses import replace

import kombu
import pytest
from celery import chain, chord

from celery_rmq_delay.amqp.capabilities import Capabilities, broker_version
from tests.support.corpus import slow
from tests.support.waiting import BUSY, SECONDS, wait_for
from tests.support.workers.lab import stored_states
from tests.support.workers.supervisor import MAX_CRASHES, Supervisor, ends_of_coins, kills_until_exhausted

pytestmark = pytest.mark.brokers

#: Tiers by the kind of message that a retry is to the broker.
TIERS = {"returned": ["300ms"] * 3, "failed": ["300ms", "600ms", "700ms"]}
WAITS = {"returned": [0.3, 0.3, 0.3], "failed": [0.3, 0.6, 0.7]}


POOLS = ("prefork", "gevent", *(slow(pool) for pool in ("threads", "solo")))
#: A task with tiers of its own has to be routed to a queue with a ladder.
NATIVE_RETRY = {"retry": "native", "queues": {"tiered": {"retry": "ladder"}}}
ROUTES = {"task_routes": {"own_tiers": {"queue": "tiered"}}}


@pytest.fixture
def broker(rmq_vhost):
    with kombu.Connection(rmq_vhost) as connection:
        return Capabilities(broker_version(connection))


@pytest.fixture
def make_native_retry(make_lab, broker):
    if not broker.delays_retries:
        pytest.skip("RabbitMQ before 4.3.1 has no delayed retry")

    def make(conf=None, **settings):
        return make_lab(
            "quorum", conf={**ROUTES, **(conf or {})}, **{**NATIVE_RETRY, "max_crashes": MAX_CRASHES, **settings}
        )

    return make


@pytest.fixture(params=["returned", "failed"])
def kind(request):
    return str(request.param)


@pytest.fixture
def native_retry(running_labs, make_native_retry, kind, pool):
    return running_labs("quorum", pool, conf=ROUTES, **NATIVE_RETRY, tiers=TIERS[kind], max_crashes=10)


def assert_waited(found, wanted):
    assert len(found) == len(wanted)
    for wait, seconds in zip(found, wanted, strict=True):
        assert seconds - 0.002 <= wait < seconds + BUSY


# -- retries -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pool", POOLS)
def test_a_task_that_fails_k_times_succeeds_at_attempt_k_after_the_right_waits(native_retry, kind):
    with stored_states(native_retry) as seen:
        results = {k: native_retry.task("fails").delay(k) for k in range(4)}
        states = seen(results)

    for k, result in results.items():
        assert result.result == k
        assert [attempt["retries"] for attempt in native_retry.attempts(result.id)] == list(range(k + 1))
        assert {tuple(attempt["route"]) for attempt in native_retry.attempts(result.id)} == {("", "shop")}
        assert_waited(native_retry.waits(result.id), WAITS[kind][:k])
        assert ("RETRY" in states[k]) is (k > 0)
    wait_for(native_retry.nothing_left)


def test_a_retry_leaves_no_message_in_any_delay_queue(native_retry, kind):
    with stored_states(native_retry) as seen:
        result = native_retry.task("fails").delay(2)
        while not result.ready():
            assert native_retry.parked() == 0
        assert "RETRY" in seen({2: result})[2]
    assert_waited(native_retry.waits(result.id), WAITS[kind][:2])


@pytest.mark.parametrize("pool", POOLS)
def test_a_task_that_has_used_all_its_retries_fails_and_its_message_is_kept(native_retry, kind):
    result = native_retry.task("fails").delay(99)

    wait_for(result.ready)
    (message,) = wait_for(lambda: native_retry.take("rmq_delay.exhausted"))

    assert result.state == "FAILURE"
    assert message.headers["id"] == result.id
    assert message.headers["rmq-delay-reason"] == "retries_used"
    assert message.headers["rmq-delay-attempts"] == 4
    assert not {"x-death", "x-acquired-count", "x-delivery-count"} & set(message.headers)
    assert [hook[0] for hook in native_retry.noted("hooks")] == ["on_retry"] * 3 + ["on_failure"]
    assert_waited(native_retry.waits(result.id), WAITS[kind])


def test_growing_tiers_are_copied_where_the_brokers_count_has_to_start_again(make_native_retry):
    lab = make_native_retry(tiers=["200ms", "400ms", "500ms", "500ms", "500ms"], max_crashes=2)
    lab.worker()
    result = lab.task("fails").delay(5)

    assert result.get(timeout=SECONDS) == 5

    assert [attempt["retries"] for attempt in lab.attempts(result.id)] == list(range(6))
    assert_waited(lab.waits(result.id), [0.2, 0.4, 0.5, 0.5, 0.5])


def test_the_last_tier_repeats_without_a_limit(make_native_retry, kind):
    tiers = {"returned": ["50ms"], "failed": ["50ms", "80ms"]}[kind]
    lab = make_native_retry(tiers=tiers, repeat_last=True)
    lab.worker()
    result = lab.task("fails").delay(30)

    assert result.get(timeout=SECONDS) == 30

    assert [attempt["retries"] for attempt in lab.attempts(result.id)] == list(range(31))
    assert all(wait >= 0.048 for wait in lab.waits(result.id))


def test_other_retries_and_failed_attempts_are_those_of_a_ladder(native_retry):
    lab = native_retry
    explicit, changes, late = (
        lab.task("explicit").delay(1.5),
        lab.task("counts_up").delay(0),
        lab.task("overruns").delay(),
    )
    lab.app.send_task("unknown.task")
    add, total = lab.task("add"), lab.task("total")
    assert chain(add.s(1, 1, 2), add.s(10, 1), add.s(100)).delay().get(timeout=SECONDS) == 112
    assert chord([add.s(n, n, n % 3) for n in range(6)], total.s()).delay().get(timeout=SECONDS) == 30

    (unknown,) = wait_for(lambda: lab.take("rmq_delay.exhausted"))
    assert unknown.headers["task"] == "unknown.task"
    assert (changes.get(timeout=SECONDS), late.get(timeout=SECONDS)) == (2, "in time")
    assert [(attempt["n"], attempt["retries"]) for attempt in lab.attempts(changes.id)] == [(0, 0), (1, 1), (2, 2)]
    assert [attempt["retries"] for attempt in lab.attempts(late.id)] == [0, 1]
    wait_for(lambda: explicit.state == "SUCCESS")
    assert [attempt["retries"] for attempt in lab.attempts(explicit.id)] == [0, 1]
    assert_waited(lab.waits(explicit.id), [1.5])


# -- crashes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fails_before", [0, slow(1), 2])
def test_a_task_that_kills_its_worker_is_exhausted_and_its_neighbours_recover(make_native_retry, kind, fails_before):
    lab = make_native_retry(tiers={"returned": ["200ms"] * 3, "failed": ["200ms", "300ms", "300ms"]}[kind])
    kills = kills_until_exhausted(lab, fails_before)
    # With growing tiers the first kills look like retries: as many as were requeued.
    unseen = 0 if kind == "returned" else MAX_CRASHES - fails_before
    assert kills == MAX_CRASHES + 1 + unseen


def test_failing_tasks_survive_workers_that_are_killed_at_random_moments(make_native_retry, kind):
    dice = random.Random(20261120)
    tiers = {"returned": ["200ms"] * 3, "failed": ["200ms", "400ms", "600ms"]}[kind]
    lab = make_native_retry(tiers=tiers, max_crashes=100, conf={"result_backend": None})
    workers = [lab.worker("prefork", 2, "--loglevel", "ERROR") for _ in range(2)]
    sent: dict[str, int] = {}
    with Supervisor(workers) as supervisor:
        for number in range(400):
            fate = dice.choice([1, 2, 99])
            sent[lab.task("coin").delay(fate).id] = fate
            if number % 100 == 50:
                supervisor.kill(dice.choice(workers))
        for _ in range(4):
            time.sleep(dice.uniform(0.1, 0.6))  # a random moment, not a wait
            supervisor.kill(dice.choice(workers))

        exhausted = ends_of_coins(lab, sent)
    if kind == "returned":  # a lost worker costs no retry
        assert not exhausted & {task_id for task_id, fate in sent.items() if fate != 99}
    assert supervisor.restarts >= 8


# -- unsupported settings ----------------------------------------------------------------------------------------------


def refused(lab):
    with pytest.raises(AssertionError, match="did not get ready") as caught:
        lab.worker()
    return str(caught.value)


def test_an_older_broker_is_refused_by_workers_and_taken_by_publishers(make_lab, broker):
    if broker.delays_retries:
        pytest.skip("this broker supports delayed retry")
    lab = make_lab("quorum", tiers=["300ms"], conf=ROUTES, **NATIVE_RETRY)
    lab.task("fails").delay(0)
    assert "needs RabbitMQ 4.3.1 or newer" in refused(lab)
    wait_for(lambda: lab.count("shop") == 1)
    # The hint of the error.
    lab.worker(config=replace(lab.config, rmq_delay={"tiers": ["300ms"]}))
    wait_for(lambda: len(lab.attempts()) == 1)


@pytest.mark.parametrize("exists", [False, True], ids=["new", "exists"])
def test_a_classic_queue_is_refused_by_workers_and_taken_by_publishers(make_lab, broker, exists):
    if not broker.delays_retries:
        pytest.skip("this broker itself is refused")
    lab = make_lab("quorum" if exists else "classic", tiers=["300ms"], conf=ROUTES, **NATIVE_RETRY)
    if exists:
        lab.declare()
    lab.task("fails").delay(0)
    assert "It is a classic one" in refused(lab)
    wait_for(lambda: lab.count("shop") == 1)


# -- older queues and workers --------------------------------------------------------------------------------------


def test_a_queue_that_exists_without_the_arguments_keeps_its_ladder(make_native_retry):
    lab = make_native_retry(tiers=["300ms", "600ms"])
    lab.declare({"x-queue-type": "quorum"})
    worker = lab.worker()
    result = lab.task("fails").delay(2)

    assert result.get(timeout=SECONDS) == 2

    assert_waited(lab.waits(result.id), [0.3, 0.6])
    warnings = [line for line in worker.logs().splitlines() if "exists with other arguments" in line]
    assert len(warnings) == 1
    assert "inequivalent arg" in warnings[0]
    assert "To have them wait in the queue itself instead, delete it with" in warnings[0]


@pytest.mark.parametrize("first", ["ladder", "native"])
def test_old_and_new_workers_side_by_side_lose_nothing(make_native_retry, kind, first):
    lab = make_native_retry(tiers=TIERS[kind], max_crashes=3)
    ladder = replace(lab.config, rmq_delay={"tiers": TIERS[kind], "max_crashes": 3})
    configs = [ladder, lab.config] if first == "ladder" else [lab.config, ladder]
    for config in configs:
        lab.worker("prefork", 1, config=config)
    healing = [lab.task("fails").delay(number % 3) for number in range(30)]
    hopeless = [lab.task("fails").delay(99) for _ in range(10)]

    wait_for(lambda: all(result.ready() for result in (*healing, *hopeless)))

    assert [result.result for result in healing] == [number % 3 for number in range(30)]
    assert {result.state for result in hopeless} == {"FAILURE"}
    wait_for(lambda: lab.count("rmq_delay.exhausted") == 10)
    exhausted = [message.headers for message in lab.take("rmq_delay.exhausted")]
    assert sorted(headers["id"] for headers in exhausted) == sorted(result.id for result in hopeless)
    assert {headers["rmq-delay-reason"] for headers in exhausted} == {"retries_used"}
    wait_for(lab.nothing_left)
