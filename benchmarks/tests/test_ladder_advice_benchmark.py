"""Advice on failures that it does not know: within its limits, near the best ladder, and without losing recoveries."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.advice_histories import LATE_S, TRUTHS, Failures, seen
from benchmarks.ladder_advice import (
    HISTORIES,
    LATE,
    OPTIONS,
    TODAY,
    Truth,
    advice_table,
    coverage,
    intervals,
    table,
    tried,
    truth_of,
)
from celery_rmq_delay.analytics.estimate.decision import decide
from celery_rmq_delay.analytics.estimate.ladders import Today, retry_times
from celery_rmq_delay.analytics.estimate.shares import shares
from celery_rmq_delay.history.tables import TIMES

#: Ladders of random histories.
LADDERS = (TODAY, (10_000, 60_000, 600_000, 3_600_000), (1_000, 10_000, 60_000, 600_000), (30_000, 300_000, 1_800_000))
RANDOM = [(name, seed) for seed in range(125) for name in TRUTHS]


def random_history(name, seed):
    """Return the advice from a history of a random size, with a random ladder and jitter."""
    random = np.random.default_rng([seed, 16])
    count, jitter = int(random.choice([300, 400, 1_000, 2_000, 5_000])), float(random.choice([0.0, 0.1, 0.25]))
    return tried(name, seed, count, (LADDERS[random.integers(len(LADDERS))],), jitter)


@pytest.mark.parametrize("histories", [40, pytest.param(1_000, marks=pytest.mark.slow)])
def test_advice_loses_no_recoveries_and_holds_its_limits_on_other_failures(histories):
    found = {each: random_history(*each) for each in RANDOM[:histories]}
    advised = {each: result for each, result in found.items() if result.is_changed}
    broken = {each: result.broken for each, result in advised.items() if result.broken}
    print(f"{len(advised)} of {histories} histories with other tiers; limits broken: {broken}")
    assert len(advised) > histories / 4
    assert [each for each, result in advised.items() if result.loses_too_much] == []
    assert len(broken) <= 0.03 * histories


#: The most that advice costs, as a multiple of the best ladder: in the median, and of the worst truth. One ladder does
#: not show whether the number of attempts counts, and advice from it has nearly as many retries as today's ladder.
MOST = {"one ladder, jitter 0.1": (1.4, 2.0), "six ladders, jitter 0.25": (1.15, 2.1)}


@pytest.mark.parametrize(
    "names", [["lognormal", "bimodal"], pytest.param(list(TRUTHS), marks=pytest.mark.slow)], ids=["two truths", "all"]
)
@pytest.mark.parametrize("history", MOST)
def test_advice_costs_little_more_than_the_best_ladder(names, history):
    rows = advice_table(6, *HISTORIES[history], names)
    print(table([row.cells() for row in rows]))
    median, worst = MOST[history]
    assert np.median([each.cost for row in rows for each in row.found]) <= median
    assert max(np.median([each.cost for each in row.found]) for row in rows) <= worst


@pytest.mark.slow
@pytest.mark.parametrize("jitter", [0.0, 0.1])
@pytest.mark.parametrize("count", [300, 2_000])
@pytest.mark.parametrize("name", ["exponential", "bimodal", "Pareto", "bugs", "outages"])
def test_intervals_contain_the_true_share_as_often_as_they_should(name, count, jitter):
    held = coverage(name, count, jitter, histories=60)
    print(f"{name}, {count}, {jitter}: {held.round(2)}")
    assert 0.90 <= held.mean() <= 1.0


def uneven_outages(random, outages, spread, count):
    """Return failures of few outages, of very different lengths and numbers of failures."""
    starts, lasting = random.uniform(0, 30 * 86_400, outages), random.lognormal(np.log(400), 1.5, outages)
    sizes = random.lognormal(0, spread, outages)
    of = random.choice(outages, count, p=sizes / sizes.sum())
    passed = random.random(count) * lasting[of]
    return Failures(starts[of] + passed, lasting[of] - passed)


@pytest.mark.slow
@pytest.mark.parametrize(("outages", "spread"), [(25, 0.7), (25, 1.2), (50, 0.7), (50, 1.2)])
def test_advice_from_few_outages_rarely_makes_recoveries_later_than_allowed(outages, spread):
    truth = Truth(np.sort(uneven_outages(np.random.default_rng(5), 20_000, spread, 400_000).lasts))
    advised, later = 0, []
    for seed in range(40):
        random = np.random.default_rng([seed, outages, int(spread * 10)])
        failures = uneven_outages(random, outages, spread, 700)
        decision = decide(intervals(failures, seen(failures.lasts, random, (TODAY,), 0.1)), Today(TODAY, LATE), OPTIONS)
        if decision.advised is None or decision.advised is decision.current:
            continue
        advised += 1
        found, today = (truth.figures([ladder]) for ladder in (decision.advised_ms, TODAY))
        later += [name for name in TIMES if getattr(found, name)[0] > 1.2 * getattr(today, name)[0] + 1e-6]
    print(f"{outages} outages, {spread}: advised in {advised} of 40, later {later}")
    assert len(later) <= 4


def with_background(random, outages):
    """Return 300 failures: half of them of outages, and the others unrelated and short."""
    starts, lasting = random.uniform(0, 30 * 86_400, outages), random.lognormal(np.log(900), 1.2, outages)
    of = random.choice(outages, 300, p=lasting / lasting.sum())
    passed, is_alone = random.random(300) * lasting[of], random.random(300) < 0.5
    began = np.where(is_alone, random.uniform(0, 30 * 86_400, 300), starts[of] + passed)
    return Failures(began, np.where(is_alone, random.exponential(30, 300), lasting[of] - passed))


@pytest.mark.parametrize("outages", [10, 30])
def test_intervals_of_outages_with_unrelated_failures_contain_the_true_share(outages):
    many = [with_background(np.random.default_rng([seed, 9]), outages).lasts for seed in range(3_000)]
    cells = OPTIONS.grid.cells(retry_times(np.array(TODAY), LATE))
    true = np.mean(np.concatenate(many)[:, None] <= OPTIONS.grid.times[cells], axis=0)
    held = []
    for seed in range(60):
        random = np.random.default_rng([seed, 300, 4])
        failures = with_background(random, outages)
        low, high = shares(intervals(failures, seen(failures.lasts, random, (TODAY,), 0.1)), OPTIONS).band()
        held.append((low[cells] <= true) & (true <= high[cells]))
    print(f"{outages} outages: {np.mean(held, axis=0).round(2)}")
    assert np.mean(held, axis=0).min() >= 0.85


def test_a_history_shows_between_which_attempts_a_failure_ended():
    random = np.random.default_rng(1)
    lasts = TRUTHS["half never"](random, 1_000).lasts
    found = seen(lasts, random, (TODAY,), 0.1)
    over = ~np.isnan(found.high)
    assert (found.low[over] < lasts[over]).all()
    assert (lasts[over] <= found.high[over]).all()
    assert (lasts[~over] > found.low[~over]).all()
    assert found.low.max() < 1.2 * sum(TODAY) / 1000


def test_the_best_ladder_keeps_the_limits_of_todays_and_costs_less():
    truth = truth_of("lognormal")
    limits = truth.limits()
    best = truth.best(limits)
    found = truth.figures([best])
    assert limits.kept_by(found).all()
    assert truth.cost(found) < truth.cost(truth.figures([TODAY]))
    assert sum(best) / 1000 + len(best) * LATE_S >= 0.99 * (sum(TODAY) / 1000 + len(TODAY) * LATE_S)
