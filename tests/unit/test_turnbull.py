"""Turnbull's estimate: compared with another implementation, its invariances, and invalid input."""

from __future__ import annotations

import numpy as np
import pytest

from celery_rmq_delay.analytics.estimate.turnbull import turnbull
from celery_rmq_delay.exceptions import IntervalError


def small_data(seed):
    """Return some tens of failures with known ends, seen at a few random times."""
    rng = np.random.default_rng(seed)
    failures = int(rng.integers(15, 60))
    ends = rng.exponential(60, failures)
    looks = np.sort(rng.lognormal(3.5, 1.2, (failures, 3)).round(1), axis=1)
    looks = np.column_stack([np.zeros(failures), looks, np.full(failures, np.inf)])
    at = (looks < ends[:, None]).sum(axis=1)
    low, high = looks[np.arange(failures), at - 1], looks[np.arange(failures), at]
    return low, np.where(high == low, high + 0.1, high)


@pytest.mark.filterwarnings("ignore::lifelines.exceptions.ApproximationWarning")
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 20))])
def test_the_estimate_agrees_with_lifelines(seed):
    from lifelines import KaplanMeierFitter

    low, high = small_data(seed)
    estimate = turnbull(low, high, np.ones_like(low))
    times = np.unique(np.concatenate([low, high[np.isfinite(high)]]))
    # lifelines has closed intervals only; its value at a time holds until the next end of an interval.
    fitter = KaplanMeierFitter().fit_interval_censoring(low + 1e-6, high, timeline=times + 5e-7, tol=1e-10)
    theirs = 1 - fitter.survival_function_["NPMLE_estimate_upper"].loc[times + 5e-7].to_numpy()
    assert estimate.converged
    np.testing.assert_allclose(estimate.least(times), theirs, atol=1e-3)


def estimated(low, high, count=None):
    return turnbull(low, high, np.ones(len(low)) if count is None else count)


def test_order_and_scale_of_the_counts_do_not_matter():
    low, high = small_data(3)
    times = np.unique(low)
    plain = estimated(low, high)
    order = np.random.default_rng(0).permutation(len(low))
    np.testing.assert_allclose(estimated(low[order], high[order]).least(times), plain.least(times), atol=1e-9)
    many = estimated(low, high, np.full(len(low), 1e9))
    np.testing.assert_allclose(many.least(times), plain.least(times), atol=1e-6)


def test_other_units_of_time_do_not_matter():
    low, high = small_data(4)
    in_ms = estimated(low * 1000, high * 1000)
    np.testing.assert_allclose(in_ms.least(low * 1000), estimated(low, high).least(low), atol=1e-6)


def test_an_interval_is_open_at_its_low_and_closed_at_its_high():
    estimate = estimated([10.0], [20.0])
    assert estimate.least([10, 15, 20]).tolist() == [0, 0, 1]
    assert estimate.most([10, 15, 20]).tolist() == [0, 1, 1]


def test_exact_inspections_give_the_plain_shares():
    estimate = turnbull([0, 10, 100, 1000], [10, 100, 1000, np.inf], [50, 30, 10, 10])
    np.testing.assert_allclose(estimate.least([10, 100, 1000]), [0.5, 0.8, 0.9], atol=1e-6)


def test_failures_never_seen_over_add_nothing_after_the_last_inspection():
    estimate = estimated([0.0, 30.0, 330.0], [np.inf] * 3)
    assert estimate.least([30, 330, 1e9]).tolist() == [0, 0, 0]
    assert estimate.most([330, 331]).tolist() == [0, 1]


def test_counts_that_differ_by_much_converge():
    estimate = turnbull([0, 0, 5, 7, 9], [6, 8, 10, 12, np.inf], [1, 1e12, 3, 1e-3, 1e6])
    assert estimate.converged


def test_too_few_steps_are_reported():
    low, high = small_data(5)
    assert not turnbull(low, high, np.ones(len(low)), most_steps=1).converged


@pytest.mark.parametrize(
    ("low", "high", "count", "error"),
    [
        ([], [], [], "at least one observation"),
        ([1.0], [2.0], [0], "at least one observation"),
        ([1.0], [1.0], [1], "a high above its low"),
        ([2.0], [1.0], [1], "a high above its low"),
        ([1.0], [np.nan], [1], "a high above its low"),
        ([-1.0], [1.0], [1], "finite times"),
        ([np.nan], [1.0], [1], "finite times"),
        ([np.inf], [np.inf], [1], "finite times"),
        ([0.0], [1.0], [np.inf], "finite counts"),
        ([0.0], [1.0], [-1], "finite counts"),
        ([0.0], [1.0, 2.0], [1], "a low, a high and a count each"),
    ],
)
def test_an_invalid_interval_is_refused(low, high, count, error):
    with pytest.raises(IntervalError, match=error):
        turnbull(low, high, count)
