"""Advice is tried on the failures of the last days, which it does not know."""

import numpy as np

from celery_rmq_delay.analytics.estimate.backtest import split
from celery_rmq_delay.analytics.estimate.decision import decide
from celery_rmq_delay.analytics.estimate.intervals import Intervals, by_outage
from celery_rmq_delay.analytics.estimate.ladders import Today
from celery_rmq_delay.analytics.estimate.lateness import Lateness
from celery_rmq_delay.analytics.estimate.options import Options
from tests.support.corpus import corpus
from tests.support.recoveries import inspected, intervals, ms

OPTIONS = Options(bootstrap_rounds=40)
TODAY = (5, 30, 120, 600, 3600)
HOURS = 30 * 24
LATE = Lateness(((0.3,),))


def history(early, late=None, count=4_000):
    """Return failures of 30 days: their mean seconds, and other ones in the last week."""
    random = np.random.default_rng(4)
    began = np.sort(random.integers(0, HOURS, count))
    means = np.where(began >= HOURS - 7 * 24, early if late is None else late, early)
    return by_outage(
        intervals(inspected(random.exponential(means), began, [TODAY], random, 0.1), OPTIONS.grid), OPTIONS
    )


def advice(data, options=OPTIONS):
    return decide(data, Today(ms(TODAY), LATE), options)


def test_advice_that_holds_in_the_last_week_is_given_with_its_backtest():
    decision = advice(history(200))
    assert decision.advised_ms not in (None, ms(TODAY))
    trial = decision.backtest
    assert trial is not None
    assert trial.passed
    assert 700 < trial.failures < 1_200
    assert trial.advised.attempts < trial.today.attempts
    assert trial.advised.recovery >= trial.today.recovery - 0.005


def test_advice_that_fails_in_the_last_week_is_not_given_and_states_why():
    # Failures lasted for minutes, and now for seconds: the first retry recovers most, and the advice has none so early.
    decision = advice(history(240, late=2))
    assert decision.advised_ms is None
    assert decision.advised is None
    assert decision.refused_ms is not None
    assert decision.backtest is not None
    assert not decision.backtest.passed
    assert "failed its backtest: on the last" in decision.reason
    assert decision.reason.endswith(("it breaks the limits", "it saves nothing"))


def test_if_the_best_ladder_fails_its_backtest_a_runner_up_that_passes_is_advised():
    # Failures became shorter: a first retry after two minutes is too late for them, one after 30 s is not.
    decision = advice(history(240, late=40))
    assert decision.refused_ms is not None
    assert decision.advised_ms not in (None, ms(TODAY), decision.refused_ms)
    assert decision.advised_ms[0] < decision.refused_ms[0]
    assert decision.advised["attempts"][0] < decision.current["attempts"][0]
    assert decision.lost is not None
    assert decision.backtest.passed
    assert decision.backtest.advised.attempts < decision.backtest.today.attempts
    assert decision.reason.endswith("costs less, but failed its backtest")


def test_the_last_seven_days_are_held_out_and_of_a_short_history_the_last_quarter():
    for days, held in ((30, 7), (60, 7), (8, 2)):
        began = np.repeat(np.arange(days * 24), 60)
        number = np.arange(len(began))
        low, high = np.zeros(len(began), dtype=np.int64), np.full(len(began), 50)
        data = Intervals(low, high, number, np.ones(len(began)), began)
        known, later = split(data, OPTIONS)
        assert later.episodes == held * 24 * 60
        assert known.began.max() < later.began.min()
        assert known.episodes + later.episodes == data.episodes


@corpus("count", [230, 90])
def test_a_history_that_is_too_small_for_both_has_no_backtest(count):
    data = history(200, count=count)
    known, later = split(data, OPTIONS)
    assert later is None
    assert known is data


def test_the_same_advice_is_given_without_a_backtest_if_the_history_is_too_small_for_one():
    data = history(200)
    assert advice(data, Options(bootstrap_rounds=40, backtest_days=0)).backtest is None
