"""Advice keeps counted recoveries, also those that the estimate leaves out."""

from __future__ import annotations

import numpy as np
import pytest

from celery_rmq_delay.analytics.estimate.counted import lost_recoveries
from celery_rmq_delay.analytics.estimate.decision import decide
from celery_rmq_delay.analytics.estimate.ladders import Today, retry_times
from celery_rmq_delay.analytics.estimate.options import Options
from celery_rmq_delay.analytics.estimate.shares import Intervals, shares
from tests.support.recoveries import TRUTHS, Truth, exponential, inspected, intervals, ms

OPTIONS = Options(bootstrap_rounds=20)
GRID = OPTIONS.grid
TODAY = (10, 60, 600, 3600)
OTHERS = [(30, 300, 3600), (5, 30, 120, 600, 3600)]
LATE_S = 0.2


def with_tail(count, tail, ladders=(TODAY,), jitter=0.0):
    """Return failures that are over within 7 s, but for a tail that is over within the hour."""
    random = np.random.default_rng(1)
    short, long = random.uniform(0.1, 7, count - tail), np.exp(random.uniform(np.log(20), np.log(3000), tail))
    return inspected(np.concatenate([short, long]), random.integers(0, 200, count), ladders, random, jitter)


def advice(found, options=OPTIONS, ladder=TODAY):
    return decide(intervals(found, GRID), Today(ms(ladder), LATE_S), options)


@pytest.mark.parametrize("jitter", [0.0, 0.1, 0.25])
@pytest.mark.parametrize(("count", "tail"), [(300, 13), (400, 18), (1000, 19), (2000, 19)])
def test_a_ladder_that_ends_before_counted_recoveries_is_refused_with_their_number(count, tail, jitter):
    decision = advice(with_tail(count, tail, jitter=jitter))
    assert (decision.enough_data, decision.advised_ms, decision.advised) == (False, None, None)
    assert (decision.refused_ms, decision.lost) == ((10_000,), tail)
    assert decision.current is not None
    assert decision.reason == (
        "keep today's tiers: the best ladder found, 10s, ends after 10.2 s and may lose "
        f"{tail} of the {count:,} recoveries that were counted ({tail / count:.2%}); at most 0.50% is tolerated"
    )


def test_a_ladder_that_loses_no_more_than_the_tolerance_is_advised():
    assert advice(with_tail(10_000, 19)).advised_ms == (10_000,)


def test_the_tolerance_of_the_limits_is_that_of_the_counted_recoveries():
    found = with_tail(400, 18)
    assert advice(found, Options(bootstrap_rounds=20, recovery_tolerance=0.0449)).advised_ms is None
    decision = advice(found, Options(bootstrap_rounds=20, recovery_tolerance=0.046))
    assert (decision.advised_ms, decision.refused_ms, decision.lost) == ((10_000,), None, None)


def test_with_min_recovery_set_no_recoveries_are_counted():
    assert advice(with_tail(400, 18), Options(bootstrap_rounds=20, min_recovery=0.9)).advised_ms == (10_000,)


def rows(*seen):
    low, high, count = (np.array(each) for each in zip(*seen, strict=True))
    return Intervals(low, high, np.arange(len(low)), count.astype(float))


def lost(data, reach, rounds=0):
    return lost_recoveries(data, shares(data, Options(bootstrap_rounds=rounds, min_clusters=1)), reach)


def test_a_recovery_whose_task_was_seen_to_fail_at_the_reach_or_later_is_lost():
    data = rows((0, 50, 300), (50, 100, 100), (100, 150, 40), (150, Intervals.OPEN, 60))
    assert [lost(data, reach) for reach in (50, 99, 100, 149, 150, 200)] == pytest.approx([140, 140, 40, 40, 0, 0])


def test_a_recovery_that_the_estimate_leaves_out_is_lost():
    data = rows((0, 50, 1000), (50, 200, 19))
    assert shares(data, Options(bootstrap_rounds=0)).ends.tolist() == [50, Intervals.OPEN]
    assert [lost(data, reach) for reach in (50, 100, 199, 200)] == [19, 19, 19, 0]


def test_attempts_of_other_tasks_show_which_part_of_recoveries_between_two_attempts_is_lost():
    # Of those that failed at 50, three of four were over at 80: so are three of four whose next attempt was at 100.
    data = rows((50, 80, 750), (80, 100, 250), (50, 100, 200))
    assert lost(data, 80) == pytest.approx(250 + 200 / 4, rel=1e-2)
    assert lost(data, 79) == pytest.approx(1200, rel=1e-2)


def test_evidence_of_other_attempts_has_to_hold_in_the_resampled_histories_too():
    data = rows(*[(50, 80, 30)] * 25, *[(80, 100, 10)] * 25, (50, 100, 200))
    assert lost(data, 80, rounds=100) > lost(data, 80) + 5


def test_a_history_without_recoveries_loses_none():
    assert lost(rows((50, Intervals.OPEN, 1000)), 10) == 0


def tailed(share):
    """Return failures that last for seconds, but for a share that is over within the hour."""

    def draw(random, count):
        long = np.exp(random.uniform(np.log(12), np.log(3500), count))
        return np.where(random.random(count) < share, long, random.uniform(0.1, 7, count))

    return Truth(draw, lambda t: t)


HISTORIES = {
    **TRUTHS,
    "seconds": exponential(4),
    "pareto": Truth(lambda random, count: 3 * random.pareto(0.8, count), lambda t: t),
    "tail of 1 %": tailed(0.01),
    "tail of 3 %": tailed(0.03),
}


@pytest.mark.parametrize("truth", HISTORIES)
def test_no_advice_from_random_histories_loses_more_counted_recoveries_than_tolerated(truth):
    given = 0
    for seed in range(12):
        random = np.random.default_rng([seed, 26])
        count, jitter = int(random.choice([300, 400, 1000, 2000, 10_000])), float(random.choice([0, 0.1, 0.25]))
        ladder = (TODAY, *OTHERS)[random.integers(3)]
        lasts = HISTORIES[truth].draw(random, count)
        data = intervals(inspected(lasts, random.integers(0, 200, count), [ladder], random, jitter), GRID)
        decision = decide(data, Today(ms(ladder), LATE_S), OPTIONS)
        if decision.advised_ms in (None, ms(ladder)):
            continue
        given += 1
        reach, todays = (
            GRID.cells(retry_times(np.array(each), LATE_S))[-1] for each in (decision.advised_ms, ms(ladder))
        )
        failed_then = (data.low >= reach) & (data.high < Intervals.OPEN) & (reach < todays)
        assert data.count[failed_then].sum() <= 0.005 * data.recoveries, (seed, decision.advised_ms)
    print(f"{truth}: {given} ladders advised")


def test_attempts_of_other_ladders_allow_advice_that_ends_between_todays_retries():
    random = np.random.default_rng(3)
    lasts = TRUTHS["exponential"].draw(random, 20_000)
    today = (5, 30, 120, 600, 3600)
    ladders = [today, (30, 300, 3600), (10, 60, 600, 1800), (15, 1200, 2400)]
    found = inspected(lasts, random.integers(0, 200, 20_000), ladders, random)
    decision = advice(found, ladder=today)
    assert decision.advised_ms is not None
    ends_s = retry_times(np.array(decision.advised_ms), LATE_S)[-1]
    recovered = ~np.isnan(found.high)
    assert (recovered & (found.high > ends_s)).mean() > 0.05
    assert (recovered & (lasts > ends_s)).sum() <= 0.005 * recovered.sum()
