"""Retries held by a quorum queue itself: RabbitMQ's native retry, 4.3.1 and newer."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import kombu
import pytest
from celery import chain, chord

from celery_rmq_delay.amqp.capabilities import Capabilities, broker_version
from tests.support.waiting import BUSY, SECONDS, wait_for
from tests.support.workers.lab import Lab, stored_states
from tests.support.workers.supervisor import MAX_CRASHES, Supervisor, kills_until_exhausted

pytestmark = pytest.mark.brokers

#: Tiers by the kind of message that a retry is to the broker.
TIERS = {"returned": ["300ms"] * 3, "failed": ["300ms", "600ms", "700ms"]}
WAITS = {"returned": [0.3, 0.3, 0.3], "failed": [0.3, 0.6, 0.7]}


POOLS = ("prefork", "gevent", *(pytest.param(pool, marks=pytest.mark.slow) for pool in ("threads", "solo")))
#: A task with tiers of its own has to be routed to a queue with a ladder.
NATIVE_RETRY = {"retry": "native", "queues": {"tiered": {"retry": "ladder"}}}
ROUTES = {"task_routes": {"own_tiers": {"queue": "tiered"}}}


@pytest.fixture
def broker(rmq_vhost: str) -> Capabilities:
    with kombu.Connection(rmq_vhost) as connection:
        return Capabilities(broker_version(connection))


@pytest.fixture
def make_native_retry(make_lab: Callable[..., Lab], broker: Capabilities) -> Callable[..., Lab]:
    if not broker.delays_retries:
        pytest.skip("RabbitMQ before 4.3.1 has no delayed retry")

    def make(conf: dict[str, Any] | None = None, **settings: Any) -> Lab:
        return make_lab(
            "quorum", conf={**ROUTES, **(conf or {})}, **{**NATIVE_RETRY, "max_crashes": MAX_CRASHES, **settings}
        )

    return make


@pytest.fixture(params=["returned", "failed"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def native_retry(running_labs: Callable[..., Lab], make_native_retry: object, kind: str, pool: str) -> Lab:
    """A shared lab with a running worker."""
    return running_labs("quorum", pool, conf=ROUTES, **NATIVE_RETRY, tiers=TIERS[kind], max_crashes=10)


def waits(lab: Lab, task_id: str) -> list[float]:
    times = [attempt["at"] for attempt in lab.attempts(task_id)]
    return [after - before for before, after in itertools.pairwise(times)]


def assert_waited(found: list[float], wanted: list[float]) -> None:
    assert len(found) == len(wanted)
    for wait, seconds in zip(found, wanted, strict=True):
        assert seconds - 0.002 <= wait < seconds + BUSY


def nothing_left(lab: Lab) -> bool:
    return not any(lab.counts("shop", "shop.quarantine").values()) and not lab.parked()


# -- retries -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pool", POOLS)
def test_a_task_that_fails_k_times_succeeds_at_attempt_k_after_the_right_waits(native_retry: Lab, kind: str) -> None:
    with stored_states(native_retry) as seen:
        results = {k: native_retry.task("fails").delay(k) for k in range(4)}
        states = seen(results)

    for k, result in results.items():
        assert result.result == k
        assert [attempt["retries"] for attempt in native_retry.attempts(result.id)] == list(range(k + 1))
        assert {tuple(attempt["route"]) for attempt in native_retry.attempts(result.id)} == {("", "shop")}
        assert_waited(waits(native_retry, result.id), WAITS[kind][:k])
        assert ("RETRY" in states[k]) is (k > 0)
    wait_for(lambda: nothing_left(native_retry))
    assert native_retry.count("rmq_delay.exhausted") == 0


def test_a_retry_leaves_no_message_in_any_delay_queue(native_retry: Lab, kind: str) -> None:
    with stored_states(native_retry) as seen:
        result = native_retry.task("fails").delay(2)
        while not result.ready():
            assert native_retry.parked() == 0
        assert "RETRY" in seen({2: result})[2]
    assert_waited(waits(native_retry, result.id), WAITS[kind][:2])


@pytest.mark.parametrize("pool", POOLS)
def test_a_task_that_has_used_all_its_retries_fails_and_its_message_is_kept(native_retry: Lab, kind: str) -> None:
    result = native_retry.task("fails").delay(99)

    wait_for(result.ready)
    (message,) = wait_for(lambda: native_retry.take("rmq_delay.exhausted"))

    assert result.state == "FAILURE"
    assert message.headers["id"] == result.id
    assert message.headers["rmq-delay-reason"] == "retries_used"
    assert message.headers["rmq-delay-attempts"] == 4
    assert not {"x-death", "x-acquired-count", "x-delivery-count"} & set(message.headers)
    assert [hook[0] for hook in native_retry.noted("hooks")] == ["on_retry"] * 3 + ["on_failure"]
    assert_waited(waits(native_retry, result.id), WAITS[kind])


def test_growing_tiers_are_copied_where_the_brokers_count_has_to_start_again(
    make_native_retry: Callable[..., Lab],
) -> None:
    lab = make_native_retry(tiers=["200ms", "400ms", "500ms", "500ms", "500ms"], max_crashes=2)
    lab.worker()
    result = lab.task("fails").delay(5)

    assert result.get(timeout=SECONDS) == 5

    assert [attempt["retries"] for attempt in lab.attempts(result.id)] == list(range(6))
    assert_waited(waits(lab, result.id), [0.2, 0.4, 0.5, 0.5, 0.5])


def test_the_last_tier_repeats_without_a_limit(make_native_retry: Callable[..., Lab], kind: str) -> None:
    tiers = {"returned": ["50ms"], "failed": ["50ms", "80ms"]}[kind]
    lab = make_native_retry(tiers=tiers, repeat_last=True)
    lab.worker()
    result = lab.task("fails").delay(30)

    assert result.get(timeout=SECONDS) == 30

    assert [attempt["retries"] for attempt in lab.attempts(result.id)] == list(range(31))
    assert all(wait >= 0.048 for wait in waits(lab, result.id))


def test_an_explicit_countdown_is_exact_here_too(native_retry: Lab) -> None:
    result = native_retry.task("explicit").delay(1.5)

    wait_for(lambda: result.state == "SUCCESS")
    assert [attempt["retries"] for attempt in native_retry.attempts(result.id)] == [0, 1]
    assert_waited(waits(native_retry, result.id), [1.5])


def test_a_retry_with_other_arguments_runs_with_them(native_retry: Lab) -> None:
    result = native_retry.task("counts_up").delay(0)

    assert result.get(timeout=SECONDS) == 2

    seen = [(attempt["n"], attempt["retries"]) for attempt in native_retry.attempts(result.id)]
    assert seen == [(0, 0), (1, 1), (2, 2)]


def test_chains_and_chords_survive_retries_of_their_parts(native_retry: Lab) -> None:
    add, total = native_retry.task("add"), native_retry.task("total")

    assert chain(add.s(1, 1, 2), add.s(10, 1), add.s(100)).delay().get(timeout=SECONDS) == 112
    assert chord([add.s(n, n, n % 3) for n in range(6)], total.s()).delay().get(timeout=SECONDS) == 30


def test_an_unknown_task_advances_through_the_ladder_and_is_exhausted(native_retry: Lab) -> None:
    native_retry.app.send_task("unknown.task")

    (message,) = wait_for(lambda: native_retry.take("rmq_delay.exhausted"))
    assert message.headers["task"] == "unknown.task"


def test_a_hard_time_limit_is_a_failed_attempt(native_retry: Lab, kind: str) -> None:
    result = native_retry.task("overruns").delay()

    assert result.get(timeout=SECONDS) == "in time"
    assert [attempt["retries"] for attempt in native_retry.attempts(result.id)] == [0, 1]


# -- crashes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fails_before", [0, pytest.param(1, marks=pytest.mark.slow), 2])
def test_a_task_that_kills_its_worker_is_exhausted_and_its_neighbours_recover(
    make_native_retry: Callable[..., Lab], kind: str, fails_before: int
) -> None:
    lab = make_native_retry(tiers={"returned": ["200ms"] * 3, "failed": ["200ms", "300ms", "300ms"]}[kind])
    kills = kills_until_exhausted(lab, fails_before)
    # With growing tiers the first kills look like retries: as many as were requeued.
    unseen = 0 if kind == "returned" else MAX_CRASHES - fails_before
    assert kills == MAX_CRASHES + 1 + unseen


def test_failing_tasks_survive_workers_that_are_killed_at_random_moments(
    make_native_retry: Callable[..., Lab], kind: str
) -> None:
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

        def done() -> int:
            return lab.count("rmq_delay.exhausted") + int(lab.redis.scard(f"{lab.config.attempts}:recovered"))

        wait_for(lambda: nothing_left(lab) and done() >= len(sent), "every task recovered or exhausted")

    exhausted = {message.headers["id"] for message in lab.take("rmq_delay.exhausted")}
    recovered = {member.decode() for member in lab.redis.smembers(f"{lab.config.attempts}:recovered")}
    assert exhausted | recovered == set(sent)
    assert {task_id for task_id, fate in sent.items() if fate == 99} <= exhausted
    if kind == "returned":  # a lost worker costs no retry
        assert not exhausted & {task_id for task_id, fate in sent.items() if fate != 99}
    assert supervisor.restarts >= 8


# -- unsupported settings ----------------------------------------------------------------------------------------------


def refused(lab: Lab) -> str:
    """Return the error of a worker that does not start."""
    with pytest.raises(AssertionError, match="did not get ready") as caught:
        lab.worker()
    return str(caught.value)


def test_an_older_broker_is_refused_by_workers_and_taken_by_publishers(
    make_lab: Callable[..., Lab], broker: Capabilities
) -> None:
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
def test_a_classic_queue_is_refused_by_workers_and_taken_by_publishers(
    make_lab: Callable[..., Lab], broker: Capabilities, exists: bool
) -> None:
    if not broker.delays_retries:
        pytest.skip("this broker itself is refused")
    lab = make_lab("quorum" if exists else "classic", tiers=["300ms"], conf=ROUTES, **NATIVE_RETRY)
    if exists:
        with lab.app.connection_for_write() as connection:
            connection.default_channel.queue_declare("shop", durable=True, auto_delete=False)
    lab.task("fails").delay(0)
    assert "It is a classic one" in refused(lab)
    wait_for(lambda: lab.count("shop") == 1)


# -- older queues and workers --------------------------------------------------------------------------------------


def test_a_queue_that_exists_without_the_arguments_keeps_its_ladder(make_native_retry: Callable[..., Lab]) -> None:
    lab = make_native_retry(tiers=["300ms", "600ms"])
    with lab.app.connection_for_write() as connection:
        connection.default_channel.queue_declare(
            "shop", durable=True, auto_delete=False, arguments={"x-queue-type": "quorum"}
        )
    worker = lab.worker()
    result = lab.task("fails").delay(2)

    assert result.get(timeout=SECONDS) == 2

    assert_waited(waits(lab, result.id), [0.3, 0.6])
    warnings = [line for line in worker.logs().splitlines() if "exists with other arguments" in line]
    assert len(warnings) == 1
    assert "inequivalent arg" in warnings[0]
    assert "To have them wait in the queue itself instead, delete it with" in warnings[0]


@pytest.mark.parametrize("first", ["ladder", "native"])
def test_old_and_new_workers_side_by_side_lose_nothing(
    make_native_retry: Callable[..., Lab], kind: str, first: str
) -> None:
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
    wait_for(lambda: nothing_left(lab))
