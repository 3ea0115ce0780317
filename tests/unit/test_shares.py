"""The share of failures that is over by t, compared with a known truth, and for hostile data."""

import numpy as np
import pytest

from celery_rmq_delay.analytics.estimate.intervals import Intervals
from celery_rmq_delay.analytics.estimate.options import Options
from celery_rmq_delay.analytics.estimate.shares import shares
from celery_rmq_delay.exceptions import IntervalError
from tests.support.corpus import corpus
from tests.support.recoveries import TRUTHS, exponential, inspected, intervals, seen, seen_outages

OPTIONS = Options(bootstrap_rounds=0)
GRID = OPTIONS.grid
LADDERS = {
    "one ladder, equal delays": (0.0, [(30, 300, 3600)]),
    "one ladder with jitter": (0.25, [(10, 60, 300, 1800, 7200)]),
    "three ladders": (0.25, [(5, 30, 120, 600, 3600), (30, 300, 3600), (1, 2, 4)]),
}
EPISODES = 100_000

#: A point of the grid counts as seen with attempts of at least so many of these failures.
LOOKS = EPISODES // 1000


@corpus("ladders", LADDERS)
@corpus("truth", TRUTHS)
def test_the_truth_is_recovered_within_3_percent_wherever_the_ladder_sees(truth, ladders):
    jitter, tiers = LADDERS[ladders]
    data = intervals(seen(TRUTHS[truth], EPISODES, tiers, seed=7, jitter=jitter), GRID)
    found = shares(data, OPTIONS)
    visible = data.looks(GRID.points + 1) >= LOOKS
    error = np.abs(found.likely[0] - TRUTHS[truth].share(GRID.times))[visible].max()
    print(f"{truth}, {ladders}: {visible.sum()} points, error {error:.4f}")
    assert visible.sum() >= 3
    assert error < 0.03


def test_between_two_attempts_the_share_is_bounded_from_below_and_above():
    truth = TRUTHS["exponential"]
    found = shares(intervals(seen(truth, EPISODES, [(30, 300)], seed=1, jitter=0), GRID), OPTIONS)
    at, before, after = GRID.cells([100.0, 30.2, 330.5])
    assert found.least[0, at] < truth.share(100.0) < found.most[0, at]
    assert found.least[0, at] == pytest.approx(truth.share(31.0), abs=0.02)
    assert found.most[0, at] == pytest.approx(truth.share(330.0), abs=0.02)
    assert found.least[0, before] == pytest.approx(found.likely[0, before])
    assert found.most[0, after] == pytest.approx(found.likely[0, after])


def test_between_two_attempts_failures_end_evenly_over_the_logarithm_of_time():
    found = shares(rows((0, 100, 400), (100, 200, 600)), OPTIONS)
    np.testing.assert_allclose(found.likely[0, [100, 125, 150, 200]], [0.4, 0.55, 0.7, 1.0], atol=1e-3)
    # Evenly over time, fewer of them have ended in the middle of the logarithm.
    middle = (GRID.times[150] - GRID.times[100]) / (GRID.times[200] - GRID.times[100])
    assert found.prudent[0, 150] == pytest.approx(0.4 + 0.6 * middle, abs=1e-3)


@corpus("length", [32.5, 31.0, 29.5, 28.0])
def test_the_band_beside_a_knot_contains_failures_of_one_exact_length(length):
    random = np.random.default_rng(1)
    found = inspected(np.full(2_000, length), random.integers(0, 200, 2_000), [(30, 300)], random, jitter=0.1)
    low, high = shares(intervals(found, GRID), Options(bootstrap_rounds=50)).band()
    # None has ended before the attempts at 27 to 33 s, and all have ended after them.
    before, after = GRID.cells([24.0, 40.0])
    assert low[before] <= 1e-9
    assert low[after] < high[after]
    assert high[after] == pytest.approx(1.0)


def test_few_attempts_of_a_last_tier_count_as_what_they_are():
    # 300 failures: 250 over by a minute, 32 by 11 minutes, 18 still failing then and over 4 hours later.
    at = GRID.cells([60, 660, 1500, 15_060])
    found = shares(rows((0, at[0], 250), (at[0], at[1], 32), (at[1], at[3], 18)), OPTIONS)
    np.testing.assert_allclose(found.likely[0, at[[0, 1, 3]]], [250 / 300, 0.94, 1.0], atol=1e-3)
    assert found.least[0, at[2]] == pytest.approx(0.94, abs=1e-3)
    assert found.most[0, at[2]] == pytest.approx(1.0)


def test_a_single_attempt_in_a_long_gap_does_not_determine_where_failures_ended():
    early, stray, late = GRID.cells([30, 100, 330])
    found = shares(rows((0, early, 400), (early, late, 600), (early, stray, 1)), OPTIONS)
    assert found.seen.tolist() == [0, early, late]
    assert found.likely[0, [early, late]] == pytest.approx([0.4, 1.0], abs=0.01)
    assert found.likely[0, stray] == pytest.approx(0.4 + 0.6 * (stray - early) / (late - early), abs=0.01)


def test_a_single_attempt_after_all_others_shows_nothing_about_the_others():
    early, last = GRID.cells([30, 86_400])
    found = shares(rows((0, early, 500), (early, Intervals.OPEN, 500), (early, last, 1)), OPTIONS)
    assert found.horizon == early
    # But the recovery that it saw is counted.
    assert found.likely[0, last] == pytest.approx(501 / 1001)


def test_no_share_is_below_the_failures_that_were_seen_to_end_or_above_those_not_seen_to_last():
    data = intervals(seen(TRUTHS["bimodal"], 500, [(10, 60, 600)], seed=3), GRID)
    found, cells = shares(data, OPTIONS), np.arange(GRID.points + 1)
    ended = [(data.count[data.high <= cell]).sum() / data.episodes for cell in cells]
    lasting = [(data.count[data.low >= cell]).sum() / data.episodes for cell in cells[1:]]
    for each in (found.likely, found.least, found.most):
        assert (each[0] >= np.array(ended) - 1e-9).all()
        assert (each[0, 1:] <= 1 - np.array(lasting) + 1e-9).all()


@corpus("share, count", [(1.0, 300), (0.02, 300), (0.997, 300)])
def test_an_interval_of_a_share_near_0_or_1_is_not_empty(share, count):
    over = round(share * count)
    random = np.random.default_rng(1)
    data = Intervals(
        np.repeat([0, 100], [over, count - over]),
        np.repeat([100, Intervals.OPEN], [over, count - over]),
        random.permutation(count),
        np.ones(count),
    )
    low, high = (each[100] for each in shares(data, Options()).band())
    assert low <= share <= high
    assert 0.005 < high - low < 0.1


def test_the_band_of_a_large_history_with_jitter_contains_the_truth():
    truth, cells = exponential(20), GRID.cells(np.cumsum((10, 60, 600)) + 0.5)
    for seed in range(3):
        found = seen(truth, 20_000, [(10, 60, 600, 3600)], seed, jitter=0.1, clusters=5_000)
        low, high = shares(intervals(found, GRID), Options(bootstrap_rounds=50)).band()
        true = truth.share(GRID.times[cells])
        assert (low[cells] <= true).all()
        assert (true <= high[cells]).all()
        assert (high[cells] - low[cells] < 0.05).all()


def test_after_the_last_attempt_nothing_is_claimed():
    found = shares(intervals(seen(TRUTHS["exponential"], EPISODES, [(10, 60)], seed=1), GRID), OPTIONS)
    assert GRID.times[found.horizon] < 100
    assert (found.least[0, found.horizon :] == found.least[0, found.horizon]).all()
    assert (found.most[0, found.horizon + 1 :] == 1).all()


def test_intervals_do_not_count_failures_of_one_outage_as_independent():
    options, truth, ladders = Options(bootstrap_rounds=60), exponential(120), [(30, 120, 600)]
    at = GRID.cells([150.0])[0]

    def interval(data):
        found = shares(intervals(data, GRID), options)
        return tuple(each[at] for each in found.band())

    low, high = interval(seen(truth, 5000, ladders, seed=2, clusters=5000))
    shared = [interval(seen_outages(truth, 5000, ladders, seed=seed, outages=150)) for seed in range(10)]
    assert all(end - start > 2 * (high - low) for start, end in shared)
    held = [start <= truth.share(150.0) <= end for start, end in shared]
    assert sum(held) >= 8


def test_one_cluster_gives_no_interval():
    found = shares(intervals(seen(exponential(60), 1000, [(30, 60)], seed=1, clusters=1), GRID), Options())
    low, high = found.band()
    assert np.isnan(low).all()
    assert np.isnan(high).all()


def test_the_same_seed_gives_the_same_rounds():
    data = intervals(seen(exponential(60), 2000, [(30, 60)], seed=1), GRID)
    one, other = (shares(data, Options(bootstrap_rounds=20, seed=5)) for _ in range(2))
    assert (one.likely == other.likely).all()
    assert (one.likely[1:] != shares(data, Options(bootstrap_rounds=20, seed=6)).likely[1:]).any()


def rows(*intervals_seen):
    low, high, count = (np.array(each) for each in zip(*intervals_seen, strict=True))
    return Intervals(low, high, np.arange(len(low)), count.astype(float))


@corpus(
    "data, last",
    [
        (rows((50, Intervals.OPEN, 1000)), 0.0),
        (rows((50, Intervals.OPEN, 1), (80, Intervals.OPEN, 1)), 0.0),
        (rows((0, 50, 1)), 1.0),
        (rows((0, 1, 5), (0, 340, 5)), 1.0),
        (rows((340, Intervals.OPEN, 3), (0, 2, 3)), 0.5),
        (rows((0, 50, 1e15), (50, Intervals.OPEN, 1e15)), 0.5),
    ],
)
def test_odd_data_give_shares_from_0_to_1_that_never_fall(data, last):
    found = shares(data, Options(bootstrap_rounds=10, min_clusters=1))
    for each in (found.likely, found.prudent, found.least, found.most):
        assert (np.diff(each, axis=1) >= 0).all()
        assert (each >= 0).all()
        assert (each <= 1).all()
    assert found.least[0, -1] == pytest.approx(last, abs=1e-5)


def test_no_failures_at_all_are_an_error():
    nothing = np.array([], dtype=np.int64)
    with pytest.raises(IntervalError, match="at least one observation"):
        shares(Intervals(nothing, nothing, nothing, nothing.astype(float)), OPTIONS)


def test_a_time_goes_to_the_nearest_point_of_the_grid():
    assert GRID.cells([-1, 0, 1e-9, 0.1, 0.102, 0.103, 1e12]).tolist() == [0, 0, 1, 1, 1, 2, GRID.points]
    assert GRID.times[0] == 0
    assert GRID.times[-1] >= 7 * 24 * 3600
    assert (GRID.cells(GRID.times) == np.arange(GRID.points + 1)).all()
