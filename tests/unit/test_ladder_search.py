"""A ladder's figures, and the search: compared with brute force, and with too few data."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from celery_rmq_delay.analytics.estimate import search
from celery_rmq_delay.analytics.estimate.decision import decide
from celery_rmq_delay.analytics.estimate.grid import Grid
from celery_rmq_delay.analytics.estimate.ladders import Today, figures, retry_times, summarise
from celery_rmq_delay.analytics.estimate.options import Options
from celery_rmq_delay.analytics.estimate.search import Limits, best_ladder
from celery_rmq_delay.analytics.estimate.shares import Intervals, shares
from celery_rmq_delay.exceptions import SettingsError
from tests.support.recoveries import TRUTHS, intervals, ms, seen

OPTIONS = Options(bootstrap_rounds=50)
GRID = OPTIONS.grid
TODAY = (5, 30, 120, 600, 3600)
#: Earlier ladders of the queue: with them, the history has attempts between today's tiers.
PAST = [TODAY, (30, 300, 3600), (10, 60, 600, 1800), (15, 1200, 2400)]
LATE_S = 0.3


def on_truth(ladder_ms, share):
    """Return figures of one ladder over a known share, as plain numbers."""
    times = retry_times(np.array(ladder_ms), LATE_S)
    return figures(share(times), times)


def test_figures_of_a_ladder_by_hand():
    share, times = np.array([0.5, 0.9, 0.96]), np.array([10.0, 70.0, 370.0])
    found = figures(share, times)
    assert found.recovery == 0.96
    assert found.exhausted == pytest.approx(0.04)
    assert found.attempts == pytest.approx(1 + 0.5 + 0.1)
    assert found.median_s == 10
    assert found.p95_s == 370


def test_a_ladder_that_recovers_nothing_has_no_time_to_recovery():
    found = figures(np.zeros(3), np.array([1.0, 2.0, 3.0]))
    assert found.attempts == 3
    assert found.exhausted == 1
    assert np.isnan(found.median_s)
    assert np.isnan(found.p95_s)


@pytest.mark.parametrize(
    ("max_retries", "retries", "ladder", "is_endless"),
    [
        (3, 3, (1, 2, 3), False),
        (2, 2, (1, 2), False),
        (0, 0, (), False),
        (5, 1, (1, 2, 3, 3, 3), False),
        (101, 3, (1, 2, 3), True),
        (None, 3, (1, 2, 3), False),
        (None, 4, (1, 2, 3), True),
    ],
)
def test_the_ladder_in_force_ends_with_the_retries_that_a_task_has(max_retries, retries, ladder, is_endless):
    today = Today.of((1, 2, 3), max_retries, retries, 0.5)
    assert (today.ladder_ms, today.is_endless, today.overhead_s) == (ladder, is_endless, 0.5)


def test_a_ladder_that_never_ends_is_not_advised_away():
    data = intervals(seen(TRUTHS["exponential"], 20_000, PAST, seed=1), GRID)
    decision = decide(data, Today(ms(TODAY), LATE_S, is_endless=True), OPTIONS)
    assert decision.advised_ms is None
    assert "repeats without a limit" in decision.reason


def test_the_time_of_a_retry_is_the_sum_of_delays_and_lateness():
    assert retry_times(np.array([[1000, 2000]]), 0.5).tolist() == [[1.5, 4.0]]


def brute_force(share, limits, options):
    """Return the least retries of all ladders within the limits, by trying them one after the other."""
    best = None
    for tiers in range(1, options.max_tiers + 1):
        for ladder in itertools.combinations_with_replacement(options.delays_ms, tiers):
            found = on_truth(ladder, share)
            if limits.kept_by(found) and (best is None or found.attempts < best[0]):
                best = found.attempts, ladder
    return best


@pytest.mark.parametrize("truth", TRUTHS)
def test_the_search_finds_the_result_of_brute_force(truth):
    options = Options(max_tiers=3, delays_ms=[1000, 5000, 10_000, 60_000, 300_000, 1_800_000], min_recovery=0.2)
    share = TRUTHS[truth].share(GRID.times)
    limits = Limits(0.2, 600, 4000)
    found = best_ladder(share, GRID, LATE_S, limits, options)
    attempts, _ = brute_force(lambda times: share[GRID.cells(times)], limits, options)
    assert on_truth(found, lambda times: share[GRID.cells(times)]).attempts == pytest.approx(attempts)


def test_a_ladder_gets_no_credit_for_times_without_an_attempt():
    data = intervals(seen(TRUTHS["exponential"], 50_000, [(30, 300, 3600)], seed=1, jitter=0), GRID)
    found = shares(data, OPTIONS)
    between = summarise((60_000, 60_000), found, GRID, LATE_S)
    recovery, low, high = between.figures["recovery"]
    assert recovery == pytest.approx(TRUTHS["exponential"].share(30.3), abs=0.02)
    assert low <= recovery
    assert high > TRUTHS["exponential"].share(120.6)


def test_the_same_history_gives_the_same_advice_in_any_order_and_number():
    data = intervals(seen(TRUTHS["bimodal"], 20_000, PAST, seed=1), GRID)
    order = np.random.default_rng(0).permutation(len(data.low))
    other = Intervals(data.low[order], data.high[order], data.cluster[order], data.count[order])
    one, two = (decide(each, Today(ms(TODAY), LATE_S), OPTIONS) for each in (data, other))
    assert one.advised_ms == two.advised_ms
    for name, figure in one.advised.figures.items():
        assert two.advised.figures[name] == pytest.approx(figure, abs=1e-3)


def test_limits_that_the_user_sets_are_kept():
    data = intervals(seen(TRUTHS["exponential"], 50_000, PAST, seed=1), GRID)
    options = Options(bootstrap_rounds=20, min_recovery=0.8, max_p95_s=400.0, max_median_s=200.0)
    advised = decide(data, Today(ms(TODAY), LATE_S), options).advised
    assert advised.value("recovery") >= 0.8
    assert advised.value("p95_s") <= 400
    assert advised.value("median_s") <= 200


def test_limits_that_no_ladder_keeps_give_no_advice_and_a_reason():
    data = intervals(seen(TRUTHS["half hard"], 20_000, PAST, seed=1), GRID)
    decision = decide(data, Today(ms(TODAY), LATE_S), Options(bootstrap_rounds=20, min_recovery=0.9))
    assert decision.enough_data
    assert decision.advised_ms is None
    assert "no ladder meets the limits" in decision.reason
    assert "90.0%" in decision.reason


def test_a_ladder_that_cannot_be_improved_stays():
    # There were no attempts between the tiers, and the first one recovers most: no other ladder is known to be better.
    data = intervals(seen(TRUTHS["exponential"], 20_000, [(300,)], seed=1, jitter=0), GRID)
    decision = decide(data, Today((300_000,), LATE_S), OPTIONS)
    assert decision.enough_data
    assert decision.advised_ms == (300_000,)
    assert "today's ladder is" in decision.reason


@pytest.mark.parametrize(
    ("data", "ladder", "error"),
    [
        (lambda: seen(TRUTHS["exponential"], 100, PAST, seed=1), TODAY, "retried failures, at least 200"),
        (lambda: seen(TRUTHS["exponential"], 2000, [(1,)], seed=1), TODAY, "recoveries, at least 50"),
        (lambda: seen(TRUTHS["exponential"], 5000, PAST, seed=1, clusters=2), TODAY, "as few as 2 outages"),
        (lambda: seen(TRUTHS["exponential"], 5000, PAST, seed=1), (), "today's ladder is not known"),
        (lambda: seen(TRUTHS["exponential"], 5000, [(5, 30)], seed=1), TODAY, "too few failures reached the last"),
    ],
)
def test_too_few_data_give_no_advice_and_a_reason(data, ladder, error):
    decision = decide(intervals(data(), GRID), Today(ms(ladder), LATE_S), OPTIONS)
    assert not decision.enough_data
    assert decision.advised_ms is None
    assert decision.advised is None
    assert error in decision.reason


@pytest.mark.parametrize("count", [0, 1, 1000])
def test_failures_that_never_end_advise_nothing(count):
    never = np.full(count, 100)
    data = Intervals(never, np.full(count, Intervals.OPEN), np.arange(count), np.ones(count))
    decision = decide(data, Today(ms(TODAY), LATE_S), OPTIONS)
    assert not decision.enough_data
    assert "not enough data" in decision.reason


def test_the_search_judges_all_ladders_of_a_length_at_once(monkeypatch):
    judged = []

    def noted(share, times):
        judged.append(times.shape)
        return figures(share, times)

    monkeypatch.setattr(search, "figures", noted)
    assert best_ladder(TRUTHS["bimodal"].share(GRID.times), GRID, LATE_S, Limits(0.9, 100, 5000), OPTIONS)
    delays = len(OPTIONS.delays_ms)
    assert judged == [(math.comb(delays + tiers - 1, tiers), tiers) for tiers in range(1, OPTIONS.max_tiers + 1)]


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"points_per_decade": 0}, "points_per_decade: found 0"),
        ({"bootstrap_rounds": -1}, "bootstrap_rounds: found -1"),
        ({"bootstrap_rounds": 2.5}, "bootstrap_rounds: found 2.5"),
        ({"grid_last_s": 0.5}, "grid_last_s: found 0.5"),
        ({"grid_first_s": float("nan")}, "grid_first_s: found nan"),
        ({"min_recovery": 1.1}, "min_recovery: found 1.1"),
        ({"max_p95_s": -3}, "max_p95_s: found -3"),
        ({"min_episodes": "many"}, "min_episodes: found 'many'"),
        ({"delays_ms": []}, "Give at least one delay"),
        ({"delays_ms": [0]}, "delays_ms: found 0"),
        ({"max_tiers": 12}, "Use fewer tiers or fewer delays_ms"),
    ],
)
def test_options_that_cannot_be_used_are_refused_when_they_are_made(given, error):
    with pytest.raises(SettingsError, match=error):
        Options(**given)


def test_a_grid_of_other_bounds_keeps_its_ends():
    grid = Grid(1.0, 100.0, 10)
    assert grid.times[1] == 1
    assert grid.times[-1] == pytest.approx(100)
