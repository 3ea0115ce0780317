"""Where success depends on the number of attempts and not on time, no advice loses recoveries."""

from dataclasses import fields, replace

import numpy as np
import pytest

from celery_rmq_delay.analytics.estimate.by_attempt import ByAttempt, by_attempt
from celery_rmq_delay.analytics.estimate.intervals import Intervals
from celery_rmq_delay.analytics.estimate.options import Options
from celery_rmq_delay.analytics.estimate.shares import shares
from celery_rmq_delay.analytics.tables.ladder_advice import _advice, _rows
from tests.support.corpus import corpus
from tests.support.recoveries import Seen, exponential, inspected, ms, needed, rows, todays

OPTIONS = Options(bootstrap_rounds=30)
TEN = (30,) * 10
FIVE = (5, 30, 120, 600, 3600)
#: Other ladders of a queue, with other numbers of retries until the same time.
OTHERS = [(30, 300, 3600), (10, 60, 600, 1800), (200, 1200, 7200)]


def falling(random, count):
    """Return attempts whose hazard falls with their number: 0.3, 0.15, 0.1, ..."""
    drawn = random.random((count, 40)) < 0.3 / np.arange(1, 41)
    return np.where(drawn.any(axis=1), drawn.argmax(axis=1) + 1, 10**6)


def half_by_time(random, count):
    return np.where(random.random(count) < 0.5, needed(0.1, count, random), 1)


#: The attempts that fail, and the seconds that failures last.
WORLDS = {
    "each attempt succeeds with 0.1": (lambda random, count: needed(0.1, count, random), 0.0),
    "later attempts succeed less often": (falling, 0.0),
    "half of the failures are permanent": (
        lambda random, count: needed(np.where(random.random(count) < 0.5, 0.2, 0.0), count, random),
        0.0,
    ),
    "half of the failures end with time": (half_by_time, 90.0),
}
HISTORIES = {
    "one ladder": ([TEN], 0.0),
    "one ladder of few tiers": ([FIVE], 0.0),
    "jitter": ([FIVE], 0.25),
    "two ladders": ([TEN, (60,) * 10], 0.0),
    "four ladders and jitter": ([FIVE, *OTHERS], 0.25),
}


def drawn(world, ladders, jitter, count, seed=1, own=None):
    """Return failures of a world; ``own``: all of them have this ladder instead."""
    random = np.random.default_rng(seed)
    failing, mean = WORLDS[world]
    failing = failing(random, count)
    lasts = np.where(failing == 1, random.exponential(mean, count), 0.0) if mean else np.zeros(count)
    clusters = random.integers(0, 24 * 30, count)
    return inspected(lasts, clusters, ladders if own is None else [own], random, jitter, failing)


def advice(found, ladder, options=OPTIONS):
    return _advice(("q", True, ""), rows(found, options), todays(ladder), options).iloc[0]


def lost(world, history, count, options=OPTIONS):
    """Return the share of failures that the advice from a history loses, and the advised ladder."""
    ladders, jitter = HISTORIES[history]
    row = advice(drawn(world, ladders, jitter, count), ladders[0], options)
    advised = ladders[0] if row["advised_ms"] is None else np.array(row["advised_ms"]) / 1000
    today, then = (
        (~np.isnan(drawn(world, ladders, 0.0, 30_000, 9, ladder).high)).mean() for ladder in (ladders[0], advised)
    )
    return today - then, advised


@corpus("world", WORLDS)
def test_no_advice_loses_recoveries_that_the_number_of_attempts_brings(world):
    loses, advised = lost(world, "one ladder", 3_000)
    assert loses < 0.01, advised


@pytest.mark.slow
@corpus("count", [2_000, 20_000])
@corpus("history", HISTORIES)
@corpus("world", WORLDS)
def test_no_history_gives_advice_that_loses_recoveries_if_attempts_count(world, history, count):
    loses, advised = lost(world, history, count, Options(bootstrap_rounds=100))
    assert loses < 0.01, advised


def test_a_history_with_one_ladder_does_not_show_whether_time_or_attempts_count():
    row = advice(drawn("each attempt succeeds with 0.1", [(5, 60, 600, 3600)], 0.0, 4_000), (5, 60, 600, 3600))
    assert row["model"] is None
    assert row["by_attempts_high"] == 1


@corpus("world, model", [("each attempt succeeds with 0.1", "attempts"), (None, "time")])
def test_several_ladders_show_whether_time_or_attempts_count(world, model):
    ladders, random = [FIVE, *OTHERS], np.random.default_rng(2)
    lasts = exponential(120).draw(random, 4_000)
    found = drawn(world, ladders, 0.25, 4_000) if world else inspected(lasts, np.arange(4_000) % 700, ladders, random)
    assert advice(found, FIVE)["model"] == model


def together(*parts):
    """Return failures of several histories as one; the ladders of each are its own, and the clusters follow."""
    first = np.cumsum([0, *(each.cluster.max() + 1 for each in parts)])
    numbered = [
        replace(each, cluster=each.cluster + begins, ladder=each.ladder + number)
        for number, (each, begins) in enumerate(zip(parts, first, strict=False))
    ]
    return Seen(*(np.concatenate([getattr(each, field.name) for each in numbered]) for field in fields(Seen)))


def of_time(seconds, ladder, count=3_000):
    """Return failures that end with time, by a ladder without jitter."""
    random = np.random.default_rng(int(seconds))
    return inspected(exponential(seconds).draw(random, count), np.arange(count) % 300, [ladder], random, 0.0)


@corpus(
    "before, after",
    [
        ((300, (60, 600)), (20, (10,) * 6)),
        ((15, (5, 5, 10, 10, 30, 60)), (300, (10, 60, 600))),
    ],
)
def test_ladders_that_were_changed_because_failures_changed_do_not_show_that_attempts_count(before, after):
    found = together(of_time(*before), of_time(*after))
    decided = _advice(("q", True, ""), rows(found, OPTIONS), todays(after[1], 1), OPTIONS).iloc[0]
    assert decided["model"] is None
    assert decided["by_attempts_low"] == 0
    assert decided["by_attempts_high"] > 0.5


def test_tasks_with_ladders_of_their_own_do_not_show_that_attempts_count():
    one, other = of_time(20, (10,) * 6), of_time(300, (60, 600))
    both = together(one, other)
    kinds = np.repeat([0, 1], [len(one.low), len(other.low)])
    both = replace(both, cluster=both.cluster % 300)
    decided = _advice(("q", True, ""), rows(both, OPTIONS, kinds), todays((10,) * 6), OPTIONS).iloc[0]
    assert decided["model"] is None
    assert decided["by_attempts_high"] == 1


def test_todays_ladder_breaks_no_limits_that_only_another_model_sets():
    row = advice(drawn("each attempt succeeds with 0.1", [FIVE, *OTHERS], 0.25, 4_000), FIVE)
    assert row["model"] == "attempts"
    assert "limits:" not in row["reason"]


def test_several_ladders_that_show_that_time_counts_allow_fewer_retries():
    random = np.random.default_rng(3)
    lasts = np.where(random.random(6_000) < 0.7, random.uniform(3, 7, 6_000), random.normal(2400, 200, 6_000))
    found = inspected(lasts, np.arange(6_000) % 700, [FIVE, *OTHERS], random)
    row = advice(found, FIVE)
    assert len(row["advised_ms"]) < len(FIVE)
    assert row["by_attempts_high"] < 0.1


def test_the_interval_of_a_named_ladder_contains_what_it_recovers_if_attempts_count():
    found = drawn("each attempt succeeds with 0.1", [TEN], 0.0, 4_000)
    row = _rows("q", rows(found, OPTIONS), [ms((60, 60, 60, 60, 60))], OPTIONS).iloc[0]
    assert row["recovery_low"] < 1 - 0.9**5 < row["recovery_high"]
    assert row["recovery_low"] < 1 - 0.9**10 < row["recovery_high"]


def test_the_share_by_the_number_of_retries_is_that_of_kaplan_and_meier():
    low, high, retries = np.array([0, 10, 20, 20]), np.array([10, 20, 30, Intervals.OPEN]), np.array([1, 2, 3, 2])
    clusters = np.arange(4)
    data = Intervals(low, high, clusters, np.array([50.0, 30.0, 20.0, 25.0]), clusters, retries)
    found = by_attempt(data, shares(data, Options(bootstrap_rounds=0)), OPTIONS)
    assert found.share[0] == pytest.approx([0, 50 / 125, 80 / 125, 1])


def test_without_the_number_of_retries_only_time_counts():
    data = Intervals(np.array([0]), np.array([10]), np.array([1]), np.array([9.0]))
    assert by_attempt(data, shares(data, Options(bootstrap_rounds=0)), OPTIONS).part == ByAttempt().part
