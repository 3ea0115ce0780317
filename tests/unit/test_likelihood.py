"""The most likely shares: compared with another implementation, with plain counts, and for odd counts."""

import numpy as np
import pytest

from celery_rmq_delay.analytics.estimate.intervals import Intervals
from celery_rmq_delay.analytics.estimate.likelihood import Knots, maximise
from celery_rmq_delay.analytics.estimate.options import Grid
from tests.support.corpus import corpus

GRID = Grid(0.1, 1e6, 50)
#: Cells of attempts that are far from each other, so that each of them is a knot.
LOOKS = np.array([40, 70, 100, 130, 160, 190])


def small_data(seed):
    """Return some hundred failures that are seen at some of the times of `LOOKS`."""
    random = np.random.default_rng(seed)
    lasts = GRID.times[LOOKS[0]] * random.lognormal(3, 2.5, 200)
    seen = random.random((200, len(LOOKS))) < 0.7
    seen[:, -1] = True
    over = lasts[:, None] <= GRID.times[LOOKS]
    low = np.where(seen & ~over, LOOKS, 0).max(axis=1)
    high = np.where(seen & over, LOOKS, Intervals.OPEN).min(axis=1)
    return Intervals(low, high, np.arange(200), np.ones(200))


def estimated(data):
    """Return the share that has ended at each of `LOOKS`."""
    knots = Knots.of(data, GRID)
    mass = maximise(knots.overlaps(data.low, data.high), data.count[None, :], tolerance=1e-9)[0]
    assert knots.cells.tolist() == [0, *LOOKS]
    return np.cumsum(mass)[:-1]


@pytest.mark.filterwarnings("ignore::lifelines.exceptions.ApproximationWarning")
@corpus("seed", range(8))
def test_the_estimate_agrees_with_lifelines(seed):
    from lifelines import KaplanMeierFitter

    data = small_data(seed)
    high = np.where(data.is_over, data.high, np.inf)
    # lifelines has closed intervals only; its value at a time holds until the next end of an interval.
    times = LOOKS + 0.5
    fitter = KaplanMeierFitter().fit_interval_censoring(data.low + 1e-6, high, timeline=times, tol=1e-10)
    theirs = 1 - fitter.survival_function_["NPMLE_estimate_upper"].loc[times].to_numpy()
    np.testing.assert_allclose(estimated(data), theirs, atol=1e-3)


def test_attempts_at_all_times_give_the_plain_shares():
    low, high = np.array([0, *LOOKS[:-1], LOOKS[-1]]), np.array([*LOOKS, Intervals.OPEN])
    data = Intervals(low, high, np.arange(7), np.array([50.0, 20, 10, 8, 6, 4, 2]))
    np.testing.assert_allclose(estimated(data), np.cumsum([0.5, 0.2, 0.1, 0.08, 0.06, 0.04]), atol=1e-6)


def test_order_and_scale_of_the_counts_do_not_matter():
    data = small_data(3)
    order = np.random.default_rng(0).permutation(len(data.low))
    np.testing.assert_allclose(estimated(data.chosen(order)), estimated(data), atol=1e-7)
    many = Intervals(data.low, data.high, data.cluster, data.count * 1e9)
    np.testing.assert_allclose(estimated(many), estimated(data), atol=1e-7)


def test_several_histories_at_once_have_the_estimates_of_each():
    data = small_data(4)
    overlaps = Knots.of(data, GRID).overlaps(data.low, data.high)
    counts = np.random.default_rng(5).poisson(1.0, (6, len(data.low))).astype(float)
    together = maximise(overlaps, counts, tolerance=1e-9)
    alone = np.concatenate([maximise(overlaps, each[None, :], tolerance=1e-9) for each in counts])
    np.testing.assert_allclose(together, alone, atol=1e-4)


def test_counts_that_differ_by_much_give_shares():
    low, high = np.array([0, 0, 40, 70, 100]), np.array([70, 100, 130, 160, Intervals.OPEN])
    data = Intervals(low, high, np.arange(5), np.array([1, 1e12, 3, 1e-3, 1e6]))
    knots = Knots.of(data, GRID)
    mass = maximise(knots.overlaps(low, high), data.count[None, :])
    assert np.isfinite(mass).all()
    assert mass.sum() == pytest.approx(1)
