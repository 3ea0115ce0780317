"""The number of outages that can explain the failures: independent witnesses."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from celery_rmq_delay.analytics.estimate.decision import decide
from celery_rmq_delay.analytics.estimate.intervals import Intervals, by_outage
from celery_rmq_delay.analytics.estimate.ladders import Today
from celery_rmq_delay.analytics.estimate.options import Options
from celery_rmq_delay.analytics.estimate.shares import wilson
from celery_rmq_delay.analytics.tables.exception_advice import outages_of
from tests.support.corpus import corpus
from tests.support.recoveries import exponential, inspected, intervals, seen

OPTIONS = Options(bootstrap_rounds=50)
GRID = OPTIONS.grid
HOUR = 3600.0


def spans(*rows):
    """Return failures, one for each (hour of begin, hours until over: at least, at most; None: not seen over)."""
    began, low, high = zip(*rows, strict=True)
    ends = np.array([np.nan if each is None else each * HOUR for each in high])
    lows = GRID.cells(np.array(low) * HOUR)
    highs = np.where(np.isnan(ends), Intervals.OPEN, GRID.cells(np.nan_to_num(ends)))
    return by_outage(Intervals(lows, highs, np.array(began), np.ones(len(rows))), OPTIONS)


def outage(hours, tasks, seed, ladder=(60, 300, 900, 3600, 14_400, 28_800), starts_at=0):
    """Return the failures of one outage: tasks fail at random times of it, and all are over at its end."""
    random = np.random.default_rng(seed)
    began = random.uniform(0, hours * HOUR, tasks)
    lasts = hours * HOUR - began
    return inspected(lasts, starts_at + (began // HOUR).astype(np.int64), [ladder], random)


def test_failures_that_can_have_ended_together_are_one_outage_whenever_they_began():
    found = spans((0, 7.5, 9), (3, 4, 8), (7, 0.5, 1.2), (20, 0, 0.5))
    assert len(set(found.cluster[:3])) == 1
    assert found.clusters == 2


def test_a_failure_not_seen_over_joins_the_next_outage_and_is_no_witness():
    found = spans((0, 7.5, 9), (3, 1, None), (30, 1, None), (30, 2, None), (40, 1, None))
    assert found.cluster[0] == found.cluster[1]
    assert found.cluster[2] == found.cluster[3]
    assert len(set(found.cluster)) == 3
    assert found.clusters == 1


def test_failures_without_any_recovery_have_no_outage():
    assert spans((0, 1, None), (9, 1, None)).clusters == 0
    nothing = np.array([], dtype=np.int64)
    assert by_outage(Intervals(nothing, nothing, nothing, nothing.astype(float)), OPTIONS).clusters == 0


def test_outages_apart_are_different_clusters():
    found = spans(*[(10 * number, 0.5, 1.5) for number in range(50)])
    assert found.clusters == 50


def test_a_long_outage_beside_failures_every_hour_is_one_of_many():
    long = [(hour, 9.9 - hour - 0.5, 10.5 - hour) for hour in range(10)] * 100
    found = spans(*long, *[(hour, 0, 0.01) for hour in range(0, 100, 3)])
    assert len(set(found.cluster[: len(long)])) == 1
    assert found.clusters > 20


@corpus("hours", [0.5, 5.5, 8.0])
def test_one_outage_is_too_few_data_however_many_tasks_it_touched(hours):
    data = by_outage(intervals(outage(hours, 3000, seed=1), GRID), OPTIONS)
    assert data.clusters == 1
    decision = decide(data, Today((60_000, 300_000, 900_000, 3_600_000, 14_400_000, 28_800_000)), OPTIONS)
    assert not decision.enough_data
    assert decision.advised_ms is None
    assert decision.reason == "not enough data: one outage may have caused all failures, at least 5 are needed"


def uneven(most, seed):
    """Return the failures of an outage with this part of them, and of 300 short ones in the days after it."""
    random = np.random.default_rng(seed)
    count = 3_000
    of = np.where(random.random(count) < most, 0, random.integers(1, 301, count))
    lasts = np.where(of == 0, random.uniform(60, 1_200, count), random.exponential(200, count))
    return by_outage(intervals(inspected(lasts, 3 * of, [(5, 30, 120, 600, 3600)], random), GRID), OPTIONS)


@corpus("most, is_enough", [(0.9, False), (0.6, False), (0.3, True)])
def test_an_outage_with_most_of_the_failures_gives_no_advice_however_many_others_there_are(most, is_enough):
    data = uneven(most, seed=1)
    assert data.clusters > 100
    decision = decide(data, Today((5_000, 30_000, 120_000, 600_000, 3_600_000)), OPTIONS)
    assert decision.enough_data == is_enough
    if not is_enough:
        assert decision.reason.startswith("not enough data: few outages may have caused most failures")


def test_the_effective_number_of_outages_is_that_of_equal_ones():
    assert spans(*[(10 * number, 0.5, 1.5) for number in range(20)]).effective_clusters == pytest.approx(20)
    assert spans(*[(0, 0.5, 1.5)] * 30, *[(20, 0.5, 1.5)] * 10).effective_clusters == pytest.approx(1.6)
    assert spans((0, 1, None)).effective_clusters == 0


def test_outages_of_100_000_failures_keep_all_of_them():
    found = seen(exponential(900), 100_000, [(5, 30, 120, 600, 3600)], seed=1, clusters=24 * 90)
    data = intervals(found, GRID)
    apart = by_outage(data, OPTIONS)
    assert apart.count.sum() == data.count.sum()
    assert 400 < apart.clusters <= 24 * 90


@corpus("outages, most", [(4, 4.0), (10, 10.0), (800, 800.0)])
def test_advice_about_an_exception_counts_outages_and_not_failures(outages, most):
    # 800 failures that recover at the first retry, in outages an hour apart: 765 of them show that 99.5 % recover.
    of = np.arange(800) % outages
    frame = pd.DataFrame({"low": 0, "high": 50, "cluster": 6 * of + 3_000_000, "count": 1})
    found = outages_of(frame, replace(OPTIONS, cluster_s=600))
    assert found == pytest.approx(most)
    assert (wilson(1.0, found)[0] >= 0.995) == (outages == 800)
