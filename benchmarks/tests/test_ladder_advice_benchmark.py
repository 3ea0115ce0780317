"""Advice on outages unknown to it: near the best ladder, better than Celery's backoff and today's ladder."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.ladder_advice import WORLDS, best_on_truth, celerys_backoff, history, markdown, on_truth, summary, tried
from celery_rmq_delay.analytics.estimate.search import Limits
from tests.support.recoveries import exponential


@pytest.mark.parametrize(
    "world",
    [WORLDS[0], *(pytest.param(world, marks=pytest.mark.slow) for world in WORLDS[1:])],
    ids=lambda world: world.name,
)
def test_advice_on_held_out_failures_is_near_the_best_and_beats_todays_and_celerys(world):
    found = tried(world, seed=1)
    print(markdown([found]), summary([found]))
    advised = found.found["advised"]
    assert found.ratio <= 1.05
    # It meets the limits, and is not near the best by breaking them.
    assert advised.recovery >= found.limits.recovery - 0.005
    assert found.limits.kept_by(found.found["best"])
    assert advised.attempts < found.found["today"].attempts
    # Celery's three retries recover too little, and with more of them it needs more than the advice.
    assert not found.limits.kept_by(found.found["Celery, 3 retries"])
    assert advised.attempts < found.found["Celery"].attempts


def test_a_history_of_today_s_ladder_alone_advises_nothing_that_is_worse():
    found = tried(WORLDS[0], seed=2, ladders=[(5_000, 30_000, 120_000, 600_000, 3_600_000)], jitter=0.0)
    assert found.found["advised"].attempts <= found.found["today"].attempts
    assert found.found["advised"].recovery >= found.limits.recovery - 0.005


def test_a_history_sees_failures_between_their_attempts():
    failures = WORLDS[0].failures(1)
    seen = history(failures, 1)
    lasting = failures.lasts > 0
    assert seen.episodes == lasting.sum()
    assert seen.clusters > 100


def test_the_best_ladder_on_a_truth_keeps_the_limits():
    lasts = np.sort(exponential(60).draw(np.random.default_rng(1), 10_000))
    best = best_on_truth(lasts, Limits(0.9, 60, 400))
    found = on_truth(best, lasts)
    assert found.recovery >= 0.9
    assert found.p95_s <= 400
    assert best_on_truth(lasts, Limits(1.1, 60, 400)) is None


def test_celerys_backoff_doubles_up_to_ten_minutes_until_enough_is_recovered():
    lasts = np.array([100.0, 3000.0])
    assert celerys_backoff(lasts, Limits(0.5, 1e9, 1e9)).attempts == 7
    assert celerys_backoff(lasts, Limits(1.0, 1e9, 1e9)).attempts == pytest.approx(7 + 0.5 * 7, abs=1)
