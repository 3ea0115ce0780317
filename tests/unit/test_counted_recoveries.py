"""No advice loses recoveries that the history counts."""

import numpy as np
import pytest

from celery_rmq_delay.analytics.estimate.counted import least_reach, lost_recoveries
from celery_rmq_delay.analytics.estimate.decision import decide
from celery_rmq_delay.analytics.estimate.intervals import Intervals
from celery_rmq_delay.analytics.estimate.ladders import Today, retry_times
from celery_rmq_delay.analytics.estimate.lateness import Lateness
from celery_rmq_delay.analytics.estimate.options import Options
from celery_rmq_delay.analytics.estimate.shares import shares
from tests.support.corpus import corpus
from tests.support.recoveries import TRUTHS, inspected, intervals, ms

OPTIONS = Options(bootstrap_rounds=20)
GRID = OPTIONS.grid
TODAY = (10, 60, 600, 3600)
OTHERS = [(30, 300, 3600), (5, 30, 120, 600, 3600)]
LATE = Lateness(((0.2,),))


def with_tail(count, tail, ladders=(TODAY,), jitter=0.0):
    """Return failures that are over within 7 s, but for a tail that is over within the hour."""
    random = np.random.default_rng(1)
    short, long = random.uniform(0.1, 7, count - tail), np.exp(random.uniform(np.log(20), np.log(3000), tail))
    return inspected(np.concatenate([short, long]), random.integers(0, 200, count), ladders, random, jitter)


def advice(found, options=OPTIONS, ladder=TODAY):
    return decide(intervals(found, GRID), Today(ms(ladder), LATE), options)


@corpus("jitter", [0.0, 0.1, 0.25])
@corpus("count, tail", [(300, 13), (400, 18), (1000, 19), (2000, 19), (10_000, 19)])
def test_a_short_ladder_that_would_lose_the_tail_is_never_advised(count, tail, jitter):
    found = with_tail(count, tail, jitter=jitter)
    decision = advice(found)
    assert decision.enough_data
    advised = decision.advised_ms or ms(TODAY)
    lost = (found.high > retry_times(np.array(advised), LATE)[-1] * (1.01 + jitter)).sum()
    assert lost <= 0.005 * count
    # One retry recovers nearly all: no other ladder saves a tenth of the cost.
    assert len(advised) > 1


def test_the_ladder_that_ends_before_the_tail_is_advised_if_the_user_accepts_its_losses():
    limits = {"min_recovery": 0.9, "max_p95_s": 60.0, "time_tolerance": 10}
    options = Options(bootstrap_rounds=20, least_saving=0.0, delay_weight=0.0, **limits)
    assert len(advice(with_tail(400, 18), options).advised_ms) == 1


def test_the_advice_states_how_many_counted_recoveries_it_may_lose():
    random, today = np.random.default_rng(1), (5, 30, 120, 600, 3600)
    lasts = random.exponential(240, 20_000)
    decision = advice(inspected(lasts, np.arange(20_000) % 200, [today, *OTHERS], random), ladder=today)
    assert decision.advised_ms != ms(today)
    assert 0 <= decision.lost <= 0.005 * 20_000


def rows(*seen):
    low, high, count = (np.array(each) for each in zip(*seen, strict=True))
    return Intervals(low, high, np.arange(len(low)), count.astype(float))


def lost(data, reach, last=200, rounds=0):
    return lost_recoveries(data, shares(data, Options(bootstrap_rounds=rounds, min_clusters=1)), reach, last)


def test_a_recovery_whose_task_was_seen_to_fail_at_the_reach_or_later_is_lost():
    data = rows((0, 50, 300), (50, 100, 100), (100, 150, 40), (150, Intervals.OPEN, 60))
    assert [lost(data, reach) for reach in (50, 99, 100, 149, 150, 200)] == pytest.approx([140, 140, 40, 40, 0, 0])


def test_recoveries_after_todays_last_retry_are_not_lost_by_a_ladder_that_ends_with_it():
    data = rows((0, 50, 300), (50, 100, 100), (100, 104, 30), (100, Intervals.OPEN, 60))
    assert lost(data, 100, last=100) == pytest.approx(0, abs=0.5)


def test_few_attempts_do_not_show_that_recoveries_had_ended_before_the_reach():
    # 20 tasks failed at 50 and recovered at 150; of the 7 attempts at 100, all were successful.
    data = rows((0, 50, 1000), (50, 150, 20), (50, 100, 7))
    assert lost(data, 100) == pytest.approx(20)


def test_attempts_of_other_tasks_show_which_part_of_recoveries_between_two_attempts_is_lost():
    # Of those that failed at 50, three of four were over at 80: so are three of four whose next attempt was at 100.
    data = rows((50, 80, 750), (80, 100, 250), (50, 100, 200))
    assert lost(data, 80) == pytest.approx(250 + 200 / 4, rel=1e-2)
    assert lost(data, 79) == pytest.approx(1200, rel=1e-2)


def test_evidence_of_other_attempts_has_to_hold_in_the_resampled_histories_too():
    data = rows(*[(50, 80, 30)] * 25, *[(80, 100, 10)] * 25, (50, 100, 200))
    assert lost(data, 80, rounds=100) > lost(data, 80) + 5


@corpus("most", [0, 10, 40, 139, 140, 1000])
def test_a_ladder_may_end_as_soon_as_it_loses_no_more_than_is_tolerated(most):
    data = rows((0, 50, 300), (50, 100, 100), (100, 150, 40), (150, Intervals.OPEN, 60))
    estimate = shares(data, Options(bootstrap_rounds=0))
    found = least_reach(data, estimate, 150, most)
    assert lost_recoveries(data, estimate, found, 150) <= most
    assert found == 0 or lost_recoveries(data, estimate, found - 1, 150) > most


def test_a_history_without_recoveries_loses_none():
    assert lost(rows((50, Intervals.OPEN, 1000)), 10) == 0


def test_attempts_of_other_ladders_allow_advice_that_ends_between_todays_retries():
    random = np.random.default_rng(3)
    lasts = TRUTHS["exponential"].draw(random, 20_000)
    today = (5, 30, 120, 600, 3600)
    ladders = [today, (30, 300, 3600), (10, 60, 600, 1800), (15, 1200, 2400)]
    found = inspected(lasts, random.integers(0, 200, 20_000), ladders, random)
    decision = advice(found, ladder=today)
    assert decision.advised_ms is not None
    ends_s = retry_times(np.array(decision.advised_ms), LATE)[-1]
    recovered = ~np.isnan(found.high)
    assert (recovered & (lasts > ends_s)).sum() <= 0.005 * recovered.sum()
