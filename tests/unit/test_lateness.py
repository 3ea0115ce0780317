"""Retries that end much later than planned: seconds or minutes, from one retry to the next."""

import numpy as np
import pytest

from celery_rmq_delay.analytics.estimate.counted import Observed
from celery_rmq_delay.analytics.estimate.decision import decide
from celery_rmq_delay.analytics.estimate.intervals import Intervals, by_outage
from celery_rmq_delay.analytics.estimate.ladders import Today
from celery_rmq_delay.analytics.estimate.lateness import ON_TIME, PARTS, Lateness, lateness_of
from celery_rmq_delay.analytics.estimate.options import Options
from celery_rmq_delay.analytics.estimate.shares import shares
from tests.support.corpus import corpus
from tests.support.recoveries import ms

OPTIONS = Options(bootstrap_rounds=50)
GRID = OPTIONS.grid
FAILURES = 3_000
LASTING = {
    "exponential": lambda random, count: random.exponential(100, count),
    "lognormal": lambda random, count: random.lognormal(np.log(60), 1.2, count),
    "bimodal": lambda random, count: np.where(
        random.random(count) < 0.6, random.exponential(8, count), random.lognormal(np.log(300), 0.6, count)
    ),
}
LADDERS = [(5,) * 6, (1, 2, 5, 10, 30, 60), (10, 10, 10, 10, 20, 20)]


def late(random, shape, is_same):
    """Return the lateness of retries: three of four by seconds, the others by minutes; or tasks instead of retries."""
    drawn = (shape[0], 1) if is_same else shape
    busy = random.random(drawn) < 0.25
    return np.where(busy, random.exponential(180, drawn), random.exponential(2, drawn)) * np.ones(shape)


def ends(ladder, random, count, is_same):
    """Return (task, retry) when retries end: as planned, and really."""
    planned = np.tile(np.cumsum(ladder), (count, 1)).astype(float)
    return planned, planned + np.cumsum(late(random, planned.shape, is_same), axis=1)


def history(draw, ladder, seed, is_same=False):
    """Return the intervals of failures with one ladder, what they show of lateness, and who recovered."""
    random = np.random.default_rng([seed, 77])
    began, lasts = random.uniform(0, 30 * 24, FAILURES).astype(np.int64), draw(random, FAILURES)
    planned, ended = ends(ladder, random, FAILURES, is_same)
    every, at = np.arange(FAILURES), (ended < lasts[:, None]).sum(axis=1)
    over = at < len(ladder)
    looks = np.column_stack([np.zeros(FAILURES), ended])
    low, high = GRID.cells(looks[every, at]), np.where(over, at + 1, at)
    highs = np.where(over, GRID.cells(looks[every, high]), Intervals.OPEN)
    seconds = looks[every, high] - np.column_stack([np.zeros(FAILURES), planned])[every, high]
    data = by_outage(Intervals(np.minimum(low, highs - 1), highs, began, np.ones(FAILURES), began, high), OPTIONS)
    return data, seconds, over


def counted(data, over):
    return Observed(data.high, ~over, data.retries.astype(float), data.count, data.cluster).summary(OPTIONS)


def recovery(draw, ladder, is_same):
    """Return the share of many failures that a ladder recovers."""
    random = np.random.default_rng(9)
    lasts = draw(random, 200_000)
    return (lasts <= ends(ladder, random, 200_000, is_same)[1][:, -1]).mean()


@pytest.mark.slow
@corpus("is_same", [False, True])
@corpus("lasting", LASTING)
def test_no_advice_loses_recoveries_that_todays_ladder_owes_to_its_lateness(lasting, is_same):
    draw = LASTING[lasting]
    for ladder in LADDERS:
        data, late_s, over = history(draw, ladder, 0, is_same)
        decision = decide(data, Today(ms(ladder)), OPTIONS, late_s=late_s, counted=counted(data, over))
        advised = decision.advised_ms or ms(ladder)
        lost = recovery(draw, ladder, is_same) - recovery(draw, np.array(advised) / 1000, is_same)
        print(ladder, advised, f"{lost:.4f}")
        assert lost < 0.015


@corpus("lasting", LASTING)
def test_the_lateness_of_retries_is_known_though_late_ones_recover_more_often(lasting):
    ladder = (30, 60, 120)
    data, late_s, _ = history(LASTING[lasting], ladder, 1)
    found = lateness_of(late_s, data, shares(data, Options(bootstrap_rounds=0))).after(3)
    planned, ended = ends(ladder, np.random.default_rng(5), 200_000, False)
    true = np.quantile(ended - planned, PARTS, axis=0)
    np.testing.assert_allclose(np.log(found[2:-1] + 1), np.log(true[2:-1] + 1), atol=0.75)


def test_lateness_grows_evenly_after_the_last_retry_that_is_known():
    assert Lateness(((0.5,),)).after(3).tolist() == [[0.5, 1.0, 1.5]]
    assert Lateness(((1.0, 2.0), (3.0, 6.0))).after(3).tolist() == [[1.0, 3.0, 4.5], [2.0, 6.0, 9.0]]
    assert Lateness(((1.0, 2.0), (3.0, 6.0))).median(1).tolist() == [1.5]


def test_without_known_delays_every_retry_is_on_time():
    data, _, _ = history(LASTING["exponential"], (5, 30), 1)
    unknown = np.full(FAILURES, np.nan)
    assert lateness_of(unknown, data, shares(data, Options(bootstrap_rounds=0))) == ON_TIME


def contradictory():
    """Return a history in which half of the failures lasted until their late retry, and what it counts."""
    data, late_s, over = history(LASTING["exponential"], (5, 30, 120), 2)
    many = np.where(over, 1.0, 4.0)
    observed = Observed(data.high, ~over, data.retries.astype(float), many, data.cluster)
    return data, late_s, observed.summary(OPTIONS)


def test_a_count_that_contradicts_the_estimate_is_shown_and_nothing_is_advised():
    data, late_s, count = contradictory()
    decision = decide(data, Today(ms((5, 30, 120))), OPTIONS, late_s=late_s, counted=count, is_only_ladder=True)
    assert not decision.enough_data
    assert decision.advised_ms is None
    assert decision.is_counted
    assert decision.current is count
    assert decision.reason.startswith(f"with today's ladder {count['recovery'][0]:.1%} of the failures recovered")


def test_a_contradiction_that_earlier_ladders_explain_hides_the_count():
    data, late_s, count = contradictory()
    decision = decide(data, Today(ms((5, 30, 120))), OPTIONS, late_s=late_s, counted=count)
    assert decision.enough_data
    assert not decision.is_counted
    assert decision.current is not count
