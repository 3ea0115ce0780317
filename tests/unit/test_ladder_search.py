"""A ladder's figures, and the search: compared with brute force, and with too few data."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from celery_rmq_delay.analytics.estimate.decision import decide
from celery_rmq_delay.analytics.estimate.intervals import Intervals
from celery_rmq_delay.analytics.estimate.ladders import Today, figures, retry_times, summarise
from celery_rmq_delay.analytics.estimate.lateness import Lateness
from celery_rmq_delay.analytics.estimate.options import Grid, Options
from celery_rmq_delay.analytics.estimate.search import Search
from celery_rmq_delay.analytics.estimate.shares import shares
from celery_rmq_delay.exceptions import SettingsError
from celery_rmq_delay.history.tables import TIMES
from tests.support.corpus import corpus
from tests.support.recoveries import NEVER, TRUTHS, exponential, inspected, intervals, mixed, ms, seen

OPTIONS = Options(bootstrap_rounds=50)
GRID = OPTIONS.grid
TODAY = (5, 30, 120, 600, 3600)
#: Earlier ladders of the queue: with them, the history has attempts between today's tiers.
PAST = [TODAY, (30, 300, 3600), (10, 60, 600, 1800), (15, 1200, 2400)]
LATE = Lateness(((0.3,),))


def on_truth(ladder_ms, share):
    """Return figures of one ladder over a known share, as plain numbers."""
    times = retry_times(np.array(ladder_ms), LATE)
    return figures(share(times), times)


def test_figures_of_a_ladder_by_hand():
    share, times = np.array([0.5, 0.9, 0.96]), np.array([10.0, 70.0, 370.0])
    found = figures(share, times)
    assert found.recovery == 0.96
    assert found.exhausted == pytest.approx(0.04)
    assert found.attempts == pytest.approx(1 + 0.5 + 0.1)
    assert (found.p25_s, found.median_s, found.p75_s, found.p95_s, found.p99_s) == (10, 10, 70, 370, 370)
    assert found.mean_s == pytest.approx((0.5 * 10 + 0.4 * 70 + 0.06 * 370) / 0.96)


def test_a_ladder_that_recovers_nothing_has_no_time_to_recovery():
    found = figures(np.zeros(3), np.array([1.0, 2.0, 3.0]))
    assert found.attempts == 3
    assert found.exhausted == 1
    assert all(np.isnan(getattr(found, name)) for name in TIMES)


@corpus(
    "max_retries, retries, ladder, is_endless",
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
    today = Today.of((1, 2, 3), max_retries, retries)
    assert (today.ladder_ms, today.is_endless) == (ladder, is_endless)


def test_a_ladder_that_never_ends_is_not_advised_away():
    data = intervals(seen(TRUTHS["exponential"], 20_000, PAST, seed=1), GRID)
    decision = decide(data, Today(ms(TODAY), LATE, is_endless=True), OPTIONS)
    assert decision.advised_ms is None
    assert "repeats without a limit" in decision.reason


def test_the_time_of_a_retry_is_the_sum_of_delays_and_lateness():
    assert retry_times(np.array([[1000, 2000]]), Lateness(((0.5,),))).tolist() == [[1.5, 4.0]]


def brute_force(search):
    """Return the least cost of all ladders within the limits, by trying them one after the other."""
    best = None
    for tiers in range(1, search.options.max_tiers + 1):
        for ladder in itertools.combinations_with_replacement(search.options.delays_ms, tiers):
            found = search.figures(np.array([ladder]))
            ends_s = retry_times(np.array(ladder), LATE)[-1]
            longest = 1.2 * retry_times(np.array(search.today), LATE)[-1]
            if search.limits.kept_by(found).all() and search.least_s <= ends_s <= longest:
                cost = float(search.cost(found)[0, 0])
                best = cost if best is None else min(cost, best)
    return best


def known(truth, options, today=TODAY, least_s=0.0):
    """Return a search in a history that shows the truth at all times."""
    share = TRUTHS[truth].share(GRID.times)[None, :]
    ends_s = retry_times(np.array(ms(today)), LATE)[-1]
    return Search(share, share, ms(today), LATE, least_s, 1.2 * ends_s, options)


@corpus("least_s", [0.0, 600.0])
@corpus("truth", TRUTHS)
def test_the_search_finds_the_result_of_brute_force(truth, least_s):
    delays = (1000, 5000, 10_000, 60_000, 300_000, 1_800_000)
    search = known(truth, Options(max_tiers=3, delays_ms=delays, time_tolerance=1.0), (10, 60, 1800), least_s)
    search = replace(search, options=replace(search.options, time_tolerance=0.2))
    found = search.best()
    assert found is not None
    assert search.cost(search.figures(np.array([found])))[0, 0] == pytest.approx(brute_force(search))


def test_the_weight_of_delay_decides_between_fewer_retries_and_earlier_ones():
    found = []
    for weight in (5.0, 0.0):
        search = known("exponential", Options(delay_weight=weight))
        found.append(search.figures(np.array([search.best()])))
    early, few = found
    assert early.mean_s < few.mean_s
    assert early.attempts > few.attempts


@corpus("truth", TRUTHS)
def test_no_time_to_recovery_is_longer_than_todays_by_more_than_the_tolerance(truth):
    search = known(truth, Options())
    found, today = search.figures(np.array([search.best()])), search.current
    for name in TIMES:
        assert getattr(found, name) <= 1.2 * getattr(today, name) + 1e-6, name


def test_a_ladder_is_not_faster_for_losing_the_failures_that_last_longest():
    # Without today's last tier, all failures that still recover do so at the same time as today.
    search = known("bimodal", Options())
    shorter = np.array([ms(TODAY[:-1])])
    assert search.figures(shorter).mean_s < 0.5 * search.current.mean_s
    assert search.compared(shorter).mean_s == pytest.approx(search.current.mean_s)
    fewer = search.current.attempts - search.figures(shorter).attempts
    assert search.saving(ms(TODAY[:-1]))[0] == pytest.approx((fewer / search.cost(search.current))[0, 0])


def test_the_interval_of_a_ladder_reaches_over_all_that_the_history_allows():
    truth = TRUTHS["exponential"]
    data = intervals(seen(truth, 50_000, [(30, 300, 3600)], seed=1, jitter=0), GRID)
    recovery, low, high = summarise((60_000, 60_000), shares(data, OPTIONS), GRID, LATE)["recovery"]
    assert low <= truth.share(30.3) + 0.02
    assert high >= truth.share(330.6) - 0.02
    assert recovery == pytest.approx(truth.share(120.6), abs=0.1)


def test_the_same_history_gives_the_same_advice_in_any_order_and_number():
    data = intervals(seen(TRUTHS["bimodal"], 20_000, PAST, seed=1), GRID)
    order = np.random.default_rng(0).permutation(len(data.low))
    other = Intervals(data.low[order], data.high[order], data.cluster[order], data.count[order])
    one, two = (decide(each, Today(ms(TODAY), LATE), OPTIONS) for each in (data, other))
    assert one.advised_ms == two.advised_ms
    for name, figure in one.advised.items():
        assert two.advised[name] == pytest.approx(figure, abs=1e-3)


def test_limits_that_the_user_sets_are_kept():
    data = intervals(seen(TRUTHS["exponential"], 50_000, PAST, seed=1), GRID)
    options = Options(bootstrap_rounds=20, min_recovery=0.8, max_p95_s=400.0, max_median_s=200.0)
    advised = decide(data, Today(ms(TODAY), LATE), options).advised
    assert advised["recovery"][0] >= 0.8
    assert advised["p95_s"][0] <= 400
    assert advised["median_s"][0] <= 200


def test_a_ladder_that_costs_more_is_advised_if_todays_breaks_limits_that_the_user_sets():
    # Today's ladder is short; earlier ones had attempts for an hour.
    short = (5, 30)
    data = intervals(seen(exponential(240), 20_000, [short, *PAST], seed=1), GRID)
    options = Options(bootstrap_rounds=20, min_recovery=0.9, max_p95_s=4000.0)
    decision = decide(data, Today(ms(short), LATE), options)
    assert decision.reason.startswith("today's ladder breaks the limits: at least 90.0% recovered")
    assert decision.advised is not None
    assert decision.advised["recovery"][0] >= 0.9
    assert decision.advised["attempts"][0] > decision.current["attempts"][0]
    assert decision.backtest is not None
    assert decision.backtest.passed


def test_a_limit_of_no_recoveries_states_how_many_the_advised_ladder_loses():
    data = intervals(seen(TRUTHS["exponential"], 20_000, PAST, seed=1), GRID)
    decision = decide(data, Today(ms(TODAY), LATE), Options(bootstrap_rounds=20, min_recovery=0))
    recovery = decision.advised["recovery"][0]
    assert recovery < 0.9
    assert f"{recovery:.1%} of the failures recover instead of {decision.current['recovery'][0]:.1%}" in decision.reason
    assert decision.reason.endswith('which "min_recovery" allows')
    assert decision.lost == pytest.approx((1 - recovery) * data.recoveries, rel=0.05)


@corpus("never", [0.97, 0.5])
def test_a_ladder_that_recovers_hardly_anything_has_a_proposal_to_try_a_longer_one(never):
    truth = mixed(never, NEVER, exponential(120))
    data = intervals(seen(truth, 20_000, [TODAY], seed=1), GRID)
    decision = decide(data, Today(ms(TODAY), LATE), OPTIONS)
    share = data.recoveries / data.episodes
    assert (f"only {share:.1%} of the failures recover by their last attempt" in decision.reason) == (never == 0.97)
    assert ("use a longer ladder for a while" in (decision.learn or "")) == (never == 0.97)
    assert "give_up_on" not in decision.reason


@corpus("count", [3_000, 250])
def test_no_claim_is_made_about_times_after_the_last_attempt(count):
    # Outages of half an hour: the ladder ends after 70 s, and nearly all failures end within the hour.
    random = np.random.default_rng(4)
    lasts = random.lognormal(np.log(1800), 0.3, count)
    lasts[: count // 100] = 30.0
    data = intervals(inspected(lasts, random.integers(0, 700, count), [(10, 60)], random, 0.0), GRID)
    decision = decide(data, Today(ms((10, 60)), LATE), OPTIONS)
    assert "will not help" not in decision.reason
    assert "give_up_on" not in decision.reason
    assert decision.learn.startswith("the last attempt comes 1m10s after the first, and the history does not show")
    assert decision.learn.endswith("use a longer ladder for a while, such as 10s 1m 10m 1h")


def test_tasks_that_recovered_when_they_were_requeued_are_evidence_for_later_attempts():
    data = intervals(seen(TRUTHS["half hard"], 2_000, [TODAY], seed=1), GRID)
    assert "requeued" not in (decide(data, Today(ms(TODAY), LATE), OPTIONS, revived=3).learn or "")
    decision = decide(data, Today(ms(TODAY), LATE), OPTIONS, revived=600)
    assert "600 exhausted tasks recovered when they were requeued: use a longer ladder" in decision.learn


def test_limits_that_no_ladder_keeps_give_no_advice_and_a_reason():
    data = intervals(seen(TRUTHS["half hard"], 20_000, PAST, seed=1), GRID)
    decision = decide(data, Today(ms(TODAY), LATE), Options(bootstrap_rounds=20, min_recovery=0.9))
    assert decision.enough_data
    assert decision.advised_ms is None
    assert "no ladder meets the limits" in decision.reason
    assert "90.0%" in decision.reason


def test_a_ladder_that_cannot_be_improved_stays():
    # There were no attempts between the tiers, and the first one recovers most: no other ladder is known to be better.
    data = intervals(seen(TRUTHS["exponential"], 20_000, [(300,)], seed=1, jitter=0), GRID)
    decision = decide(data, Today((300_000,), LATE), OPTIONS)
    assert decision.enough_data
    assert decision.advised_ms == (300_000,)
    assert "today's ladder is" in decision.reason


@corpus(
    "data, ladder, error",
    [
        (lambda: seen(TRUTHS["exponential"], 100, PAST, seed=1), TODAY, "retried failures, at least 200"),
        (lambda: seen(TRUTHS["exponential"], 2000, [(1,)], seed=1), TODAY, "recoveries, at least 50"),
        (lambda: seen(TRUTHS["exponential"], 5000, PAST, seed=1, clusters=2), TODAY, "as few as 2 outages"),
        (lambda: seen(TRUTHS["exponential"], 5000, PAST, seed=1), (), "today's ladder is not known"),
        (lambda: seen(TRUTHS["exponential"], 5000, [(5, 30)], seed=1), TODAY, "too few failures reached the last"),
    ],
)
def test_too_few_data_give_no_advice_and_a_reason(data, ladder, error):
    decision = decide(intervals(data(), GRID), Today(ms(ladder), LATE), OPTIONS)
    assert not decision.enough_data
    assert decision.advised_ms is None
    assert decision.advised is None
    assert error in decision.reason


@corpus("count", [0, 1, 1000])
def test_failures_that_never_end_advise_nothing(count):
    never = np.full(count, 100)
    data = Intervals(never, np.full(count, Intervals.OPEN), np.arange(count), np.ones(count))
    decision = decide(data, Today(ms(TODAY), LATE), OPTIONS)
    assert not decision.enough_data
    assert "not enough data" in decision.reason


@corpus(
    "given, error",
    [
        ({"bootstrap_rounds": -1}, "bootstrap_rounds: found -1"),
        ({"delay_weight": float("nan")}, "delay_weight: found nan. Use a number from 0 to 100."),
        ({"min_recovery": 1.1}, "min_recovery: found 1.1"),
        ({"max_p95_s": -3}, "max_p95_s: found -3"),
        ({"max_tiers": 13}, "max_tiers: found 13. Use a whole number from 1 to 12."),
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
