"""Retries behave as Celery users expect on every pool and queue type."""

from dataclasses import replace
from datetime import datetime

import pytest
from celery import chain, chord, group

from celery_rmq_delay.operations.doctor import examine
from celery_rmq_delay.worker.settle import LOOP
from tests.support.corpus import slow
from tests.support.waiting import BUSY, SECONDS, wait_for
from tests.support.workers.lab import EMPTY, SETUPS, TIERS, stored_states

PREFORK = [
    pytest.param("quorum", "prefork", marks=pytest.mark.brokers),
    pytest.param("classic", "prefork", marks=[pytest.mark.brokers, pytest.mark.slow]),
]
WAITS = [0.3, 0.6, 0.9]


@pytest.mark.parametrize(("queue_type", "pool"), SETUPS)
def test_a_task_that_fails_k_times_succeeds_at_attempt_k_after_the_right_waits(running):
    lab = running
    with stored_states(lab) as seen:
        results = {k: lab.task("fails").delay(k) for k in range(len(TIERS) + 1)}
        states = seen(results)

    for k, result in results.items():
        assert result.result == k
        attempts = lab.attempts(result.id)
        assert [attempt["retries"] for attempt in attempts] == list(range(k + 1))
        assert {tuple(attempt["route"]) for attempt in attempts} == {("", "shop")}
        for wait, tier in zip(lab.waits(result.id), WAITS, strict=False):
            assert tier <= wait < tier + BUSY
        assert ("RETRY" in states[k]) is (k > 0)
    assert lab.counts(*EMPTY) == EMPTY


@pytest.mark.parametrize(("queue_type", "pool"), SETUPS)
def test_a_task_that_requeues_itself_comes_back_at_once_and_is_not_blamed(running):
    lab, asks_again = running, running.task("asks_again")
    few, many = asks_again.delay(5), asks_again.delay(LOOP)

    assert few.get(timeout=SECONDS) == many.get(timeout=SECONDS) == "asked"
    seen = [(attempt["retries"], attempt["redelivered"]) for attempt in lab.attempts(few.id)]
    assert seen == [(0, False), *[(0, True)] * 5]
    assert len(lab.attempts(many.id)) == LOOP + 1
    assert f"asks_again has requeued a message in queue shop {LOOP} times in a row" in lab.workers[-1].logs()
    assert "quarantine" not in lab.workers[-1].logs()
    assert lab.counts("rmq_delay.exhausted", "shop.quarantine") == {"rmq_delay.exhausted": 0, "shop.quarantine": 0}

    (finding,) = [each for each in examine(lab.app, use_management=False) if each.code == "requeues"]
    assert f"asks_again has requeued a message {LOOP} times in a row" in finding.found


@pytest.mark.parametrize(("queue_type", "pool"), SETUPS)
def test_a_task_that_has_used_all_its_retries_fails_and_its_message_is_kept(running):
    lab = running
    result = lab.task("fails").apply_async((99,), link_error=lab.task("collect_error").s())

    wait_for(result.ready)
    (message,) = wait_for(lambda: lab.take("rmq_delay.exhausted"))

    assert result.state == "FAILURE"
    assert repr(result.result) == "Boom('attempt 3')"
    headers = message.headers
    assert headers["id"] == result.id
    assert headers["rmq-delay-queue"] == "shop"
    assert headers["rmq-delay-reason"] == "retries_used"
    assert headers["rmq-delay-exception"] == "tests.support.workers.project.Boom"
    assert headers["rmq-delay-message"] == "attempt 3"
    assert headers["rmq-delay-attempts"] == 4
    first_failed = datetime.fromisoformat(headers["rmq-delay-first-failed-at"]).timestamp()
    assert first_failed <= lab.attempts(result.id)[1]["at"]
    assert "in fails" in headers["rmq-delay-traceback"]
    assert "x-death" not in headers
    assert [hook[0] for hook in lab.noted("hooks")] == ["on_retry"] * 3 + ["on_failure"]
    wait_for(lambda: lab.noted("errbacks"), what="the errback")
    assert lab.noted("errbacks") == [[result.id, "Boom('attempt 3')"]]


@pytest.mark.brokers
def test_one_tier_that_repeats_retries_without_a_limit(make_lab, queue_type):
    """50 failures: on quorum queues also over the delivery limit, before which copies restart the count."""
    lab = make_lab(queue_type, tiers=["100ms"], repeat_last=True)
    lab.worker()
    result = lab.task("fails").delay(50)

    assert result.get(timeout=SECONDS) == 50

    attempts = lab.attempts(result.id)
    assert [attempt["retries"] for attempt in attempts] == list(range(51))
    assert all(wait >= 0.098 for wait in lab.waits(result.id))
    hooks = lab.noted("hooks")
    assert [hook[0] for hook in hooks] == ["on_retry"] * 50
    assert all("Retry in 0.1s: " in hook[3] for hook in hooks)
    assert lab.nothing_left()


@pytest.mark.slow
@pytest.mark.parametrize("queue_type", ["classic", "quorum"])
def test_threads_without_an_event_loop_settle_each_message_once(make_lab, queue_type):
    lab = make_lab(queue_type)
    given_up = [lab.task("gives_up").delay() for _ in range(100)]
    parked = [lab.task("fails").delay(1) for _ in range(100)]
    copied = [lab.task("own_tiers").delay() for _ in range(100)]
    worker = lab.worker("threads", 8, config=replace(lab.config, event_loop=False))

    assert [result.get(timeout=SECONDS) for result in parked] == [1] * 100
    exhausted = [*given_up, *copied]
    wait_for(lambda: lab.count("rmq_delay.exhausted") >= len(exhausted), "exhausted tasks")
    found = [message.headers["id"] for message in lab.take("rmq_delay.exhausted")]
    assert sorted(found) == sorted(result.id for result in exhausted)
    assert {len(lab.attempts(result.id)) for result in parked} == {2}
    assert "Connection to broker lost" not in worker.logs()


def test_the_log_names_the_queue_of_an_exhausted_task_and_the_command_that_shows_it(make_lab):
    lab = make_lab("classic", exhausted_queue="dead")
    worker = lab.worker()
    result = lab.task("gives_up").delay()
    wait_for(lambda: lab.count("dead"), "the exhausted task")
    show = f"celery -A tests.support.workers.project rmq-delay exhausted show {result.id}"
    line = f"{lab.task('gives_up').name}[{result.id}] is exhausted (gave_up): it waits in the queue dead, see `{show}`"
    wait_for(lambda: line in worker.logs(), "the line in the log")
    assert "rmq_delay.exhausted" not in worker.logs()


def test_a_task_ends_sooner_where_it_gives_up_or_has_fewer_retries(running_classic):
    lab = running_classic
    ends = {lab.task("gives_up").delay(): ("gave_up", [0]), lab.task("limited").delay(): ("retries_used", [0, 1])}

    wait_for(lambda: lab.count("rmq_delay.exhausted") == len(ends))
    reasons = {each.headers["id"]: each.headers["rmq-delay-reason"] for each in lab.take("rmq_delay.exhausted")}
    for result, (reason, retries) in ends.items():
        assert (result.state, reasons[result.id]) == ("FAILURE", reason)
        assert [attempt["retries"] for attempt in lab.attempts(result.id)] == retries


def test_retries_of_every_kind_run_with_what_the_task_asked_for(running_classic):
    lab = running_classic
    soft, killed, watched = lab.task("soft").delay(), lab.task("kills_child").delay(2), lab.task("watched").delay()
    counts_up, moved = lab.task("counts_up").delay(0), lab.task("explicit").delay(queue="other")
    results = {soft: "in time", killed: "survived", watched: 1, counts_up: 2, moved: None}

    assert {result: result.get(timeout=SECONDS) for result in results} == results
    assert ["Request.on_retry", watched.id] in lab.noted("hooks")
    assert [attempt["retries"] for attempt in lab.attempts(soft.id)] == [0, 1]
    assert [attempt["retries"] for attempt in lab.attempts(killed.id)] == [0, 1, 2]
    assert [attempt["queue"] for attempt in lab.attempts(moved.id)] == ["shop", "other"]
    assert [(attempt["n"], attempt["retries"]) for attempt in lab.attempts(counts_up.id)] == [(0, 0), (1, 1), (2, 2)]
    assert {tuple(attempt["route"]) for attempt in lab.attempts(counts_up.id)} == {("", "shop")}


def test_a_task_with_its_own_tiers_advances_through_its_own_ladder(running):
    result = running.task("own_tiers").delay()

    wait_for(lambda: running.take("rmq_delay.exhausted"))

    waits = running.waits(result.id)
    assert len(waits) == 2
    assert all(wait >= 0.15 for wait in waits)
    announced = [hook[3] for hook in running.noted("hooks") if hook[:2] == ["on_retry", result.id]]
    assert ["Retry in 0.15s: " in text for text in announced] == [True, True]


def test_a_retry_into_a_queue_without_a_ladder_comes_back_there_after_the_delay_of_the_tier(make_lab):
    lab = make_lab(queues={"zones": False})
    lab.worker("prefork", 1, "--queues", "shop,zones")
    result = lab.task("explicit").delay(queue="zones")

    assert result.get(timeout=SECONDS) is None
    (first, second) = lab.attempts(result.id)
    assert second["at"] - first["at"] >= 0.3
    assert (second["queue"], second["retries"]) == (None, 1)


def test_a_retry_waits_and_runs_once_although_its_class_publishes_with_a_producer_of_its_own(running_classic):
    lab = running_classic
    result = lab.task("publishes").delay(2)

    assert result.get(timeout=SECONDS) == 2
    assert [attempt["retries"] for attempt in lab.attempts(result.id)] == [0, 1, 2]
    assert all(wait >= tier for wait, tier in zip(lab.waits(result.id), WAITS, strict=False))
    wait_for(lab.nothing_left)


def test_retry_without_throw_publishes_the_retry_and_lets_the_task_go_on(running_classic):
    result = running_classic.task("goes_on").delay()

    wait_for(lambda: len(running_classic.attempts(result.id)) == 2)

    assert [attempt["retries"] for attempt in running_classic.attempts(result.id)] == [0, 1]
    assert result.get(timeout=SECONDS) == "went on"
    wait_for(running_classic.nothing_left)


@pytest.mark.parametrize(("queue_type", "pool"), SETUPS)
def test_chains_groups_and_chords_survive_retries_of_their_parts(running):
    add, total = running.task("add"), running.task("total")

    assert chain(add.s(1, 1, 2), add.s(10, 1), add.s(100)).delay().get(timeout=SECONDS) == 112
    assert group(add.s(n, n, n % 3) for n in range(6)).delay().get(timeout=SECONDS) == [0, 2, 4, 6, 8, 10]
    for rejects in (False, True):
        parts = [add.s(n, n, n % 3, rejects) for n in range(6)]
        assert chord(parts, total.s()).delay().get(timeout=SECONDS) == 30


@pytest.mark.parametrize(("queue_type", "pool"), [*PREFORK, slow("quorum", "gevent")])
def test_a_hard_time_limit_is_a_failed_attempt(running):
    lab = running
    always = lab.task("sleeps").apply_async((60,), time_limit=1)
    result = lab.task("overruns").delay()

    assert result.get(timeout=SECONDS) == "in time"
    assert [attempt["retries"] for attempt in lab.attempts(result.id)] == [0, 1]
    wait_for(lambda: "Hard time limit (1" in lab.workers[0].logs())
    (message,) = wait_for(lambda: lab.take("rmq_delay.exhausted"))
    assert message.headers["id"] == always.id
    assert message.headers["rmq-delay-reason"] == "retries_used"
    assert message.headers["rmq-delay-exception"].endswith(".TimeLimitExceeded")
    wait_for(lambda: always.state == "FAILURE", "the stored failure, which comes after")
    hooks = [(name, task_id) for name, task_id, *_ in lab.noted("hooks")]
    assert sorted(hooks) == sorted([("on_retry", result.id), *[("on_retry", always.id)] * len(TIERS)])


@pytest.mark.brokers
@pytest.mark.parametrize(
    "conf",
    [
        {
            "task_annotations": {"kills_child": {"tiers": ["200ms", "200ms"]}},
            "task_routes": {"kills_child": {"queue": "shop"}},
        },
        {"task_queues": {"shop": {"exchange": ""}, "other": {"exchange": "", "auto_delete": True}}},
    ],
    ids=["a task with its own tiers, away from its queue", "a queue that can have no ladder"],
)
def test_a_killed_child_is_a_failed_attempt_where_no_delay_queue_was_applied(make_lab, conf):
    lab = make_lab(conf=conf)
    lab.worker("prefork", 1, "--queues", "shop,other")
    result = lab.task("kills_child").apply_async((2,), queue="other")

    assert result.get(timeout=SECONDS) == "survived"
    assert [attempt["retries"] for attempt in lab.attempts(result.id)] == [0, 1, 2]


@pytest.mark.slow
def test_a_task_that_always_kills_its_child_is_exhausted(running):
    result = running.task("kills_child").delay(99)

    (message,) = wait_for(lambda: running.take("rmq_delay.exhausted"))

    # Celery stores the result of a lost process after its message is settled.
    wait_for(lambda: result.state == "FAILURE", "the stored failure")
    assert message.headers["rmq-delay-exception"].endswith("WorkerLostError")
    assert message.headers["rmq-delay-reason"] == "retries_used"
    assert message.headers["rmq-delay-attempts"] == 4
