"""Turnbull's estimate of when failures end: the maximum-likelihood distribution of interval data. Pure numpy.

Turnbull, B. W. (1976): The empirical distribution function with arbitrarily grouped, censored and truncated data.
JRSS B 38.
The likelihood is maximised by alternating EM steps and steps of the iterative convex minorant (Wellner, J. A. and Zhan,
Y. (1997): A hybrid algorithm for computation of the nonparametric MLE from censored data. JASA 92): EM alone needs
thousands of steps, the combination some tens.

An interval ``(low, high]`` is open on the left and closed on the right: the failure still lasted at ``low`` and had
ended at ``high``. ``high`` is infinite if its end was not observed (right-censored).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ...exceptions import IntervalError

_Floats = NDArray[np.float64]
_Ints = NDArray[np.int64]

#: How often a step of the convex minorant is halved before it is abandoned.
_HALVINGS = 12


@dataclass(frozen=True)
class Estimate:
    """Probability ``mass`` in each of the innermost intervals ``(left, right]``.

    The position of a mass within its interval does not change the likelihood: the data contains no information between
    ``left`` and ``right``. `least` puts the mass at the right end, `most` at the left; the truth is between the two. A
    last interval that ends in infinity holds the failures whose end was not observed.

    ``gap``: upper bound, per observation, by which the log-likelihood can still increase (Kuhn-Tucker conditions).
    ``converged``: whether that is within the tolerance; if not, the bounded number of steps was not sufficient.
    """

    left: _Floats
    right: _Floats
    mass: _Floats
    gap: float
    steps: int
    converged: bool

    def least(self, times: ArrayLike) -> _Floats:
        """Return the least share that has ended by each time."""
        return self._sum()[np.searchsorted(self.right, np.asarray(times, dtype=np.float64), side="right")]

    def most(self, times: ArrayLike) -> _Floats:
        """Return the largest share that has ended by each time."""
        return self._sum()[np.searchsorted(self.left, np.asarray(times, dtype=np.float64), side="left")]

    def _sum(self) -> _Floats:
        return np.minimum(np.concatenate(([0.0], np.cumsum(self.mass))), 1.0)


def turnbull(
    low: ArrayLike, high: ArrayLike, count: ArrayLike, *, tolerance: float = 1e-7, most_steps: int = 1000
) -> Estimate:
    """Return the maximum-likelihood estimate for ``count`` observations of each interval ``(low, high]``.

    Times are in any unit, not negative; equal intervals may be in several rows. ``tolerance``: of `Estimate.gap`.
    Raises `IntervalError` if there is no interval, one is empty, or a value is not a number.
    """
    lows, highs, counts = _checked(low, high, count)
    left, right = _innermost(lows, highs)
    first = np.searchsorted(left, lows, side="left")
    past = np.searchsorted(right, highs, side="right")
    # The cost depends on the distinct stretches of innermost intervals, not on the rows.
    stretches, of = np.unique(first * (len(left) + 1) + past, return_inverse=True)
    weights = _sums(of.ravel(), counts, len(stretches))
    first, past = np.divmod(stretches, len(left) + 1)
    share, gap, steps = _maximise(first, past, weights / weights.sum(), len(left), tolerance, most_steps)
    return Estimate(left, right, np.diff(share), gap, steps, gap <= tolerance)


def _checked(low: ArrayLike, high: ArrayLike, count: ArrayLike) -> tuple[_Floats, _Floats, _Floats]:
    lows, highs, counts = (np.asarray(each, dtype=np.float64).ravel() for each in (low, high, count))
    if not len(lows) == len(highs) == len(counts):
        raise IntervalError("lengths", (len(lows), len(highs), len(counts)), "Give a low, a high and a count each.")
    if not (np.isfinite(counts) & (counts >= 0)).all():
        raise IntervalError("count", counts[~(np.isfinite(counts) & (counts >= 0))][0], "Give finite counts from 0 on.")
    lows, highs, counts = (each[counts > 0] for each in (lows, highs, counts))
    if not len(lows):
        raise IntervalError("count", 0, "Give at least one observation.")
    if not (np.isfinite(lows) & (lows >= 0)).all():
        raise IntervalError("low", lows[~(np.isfinite(lows) & (lows >= 0))][0], "Give finite times from 0 on.")
    if not (highs > lows).all():
        at = np.flatnonzero(~(highs > lows))[0]
        raise IntervalError("interval", (lows[at], highs[at]), "An interval (low, high] needs a high above its low.")
    return lows, highs, counts


def _innermost(lows: _Floats, highs: _Floats) -> tuple[_Floats, _Floats]:
    """Return the intervals from a low to the next high without another end inside: only these can have mass."""
    starts, ends = np.unique(lows), np.unique(highs)
    left = starts[np.searchsorted(starts, ends, side="left") - 1]
    previous = np.concatenate(([-np.inf], ends[:-1]))
    kept = left >= previous
    return left[kept], ends[kept]


def _maximise(
    first: _Ints, past: _Ints, weights: _Floats, size: int, tolerance: float, most_steps: int
) -> tuple[_Floats, float, int]:
    """Return the cumulative shares (from 0 to 1, ``size + 1`` of them), the gap, and the number of steps.

    An observation's probability is ``share[past] - share[first]``; ``weights`` have the sum 1.
    """
    share = np.linspace(0.0, 1.0, size + 1)
    gap = np.inf
    for step in range(most_steps + 1):
        rates = weights / (share[past] - share[first])
        # The derivative of the log-likelihood by each mass: 1 where there is mass, at most 1 elsewhere, at the maximum.
        slopes = np.cumsum(_sums(first, rates, size + 1) - _sums(past, rates, size + 1))[:-1]
        gap = float(slopes.max()) - 1.0
        if gap <= tolerance or step == most_steps:
            return share, gap, step
        share = np.concatenate(([0.0], np.cumsum(np.diff(share) * slopes)))
        share = _minorant_step(share / share[-1], first, past, weights)
    raise AssertionError("unreachable")


def _minorant_step(share: _Floats, first: _Ints, past: _Ints, weights: _Floats) -> _Floats:
    """Return shares of higher likelihood: a Newton step with the Hessian's diagonal, constrained not to decrease.

    The step is halved until the likelihood does not fall; the same shares are returned if that does not help.
    """
    chance = share[past] - share[first]
    rates, curves = weights / chance, weights / chance**2
    size = len(share)
    slope = _sums(past, rates, size) - _sums(first, rates, size)
    curve = _sums(past, curves, size) + _sums(first, curves, size)
    target = share.copy()
    target[1:-1] = np.clip(_isotonic(share[1:-1] + slope[1:-1] / curve[1:-1], curve[1:-1]), 0.0, 1.0)
    likely = weights @ np.log(chance)
    way = target - share
    for _ in range(_HALVINGS):
        tried = share + way
        chance = tried[past] - tried[first]
        if chance.min() > 0 and weights @ np.log(chance) >= likely:
            return tried
        way = way / 2
    return share


def _sums(at: _Ints, weights: _Floats, size: int) -> _Floats:
    return np.bincount(at, weights, size).astype(np.float64)


def _isotonic(values: _Floats, weights: _Floats) -> _Floats:
    """Return the non-decreasing values nearest to these in weighted squares (pool adjacent violators)."""
    levels: list[float] = []
    masses: list[float] = []
    lengths: list[int] = []
    for value, weight in zip(values.tolist(), weights.tolist(), strict=True):
        level, mass, length = value, weight, 1
        while levels and levels[-1] >= level:
            other = masses.pop()
            level = (level * mass + levels.pop() * other) / (mass + other)
            mass, length = mass + other, length + lengths.pop()
        levels.append(level)
        masses.append(mass)
        lengths.append(length)
    return np.repeat(levels, lengths)
