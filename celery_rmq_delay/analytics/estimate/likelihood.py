"""The most likely shares of failures that ended in each step between knots. Pure NumPy, for many histories at once.

This is the self-consistent estimate of interval-censored data (Turnbull, B. W. (1976): The empirical distribution
function with arbitrarily grouped, censored and truncated data. JRSS B 38), for steps in which failures end evenly: an
interval that covers a part of a step has that part of its probability. The likelihood is concave; EM maximises it, with
the extrapolation of Varadhan and Roland (2008, SQUAREM) as it is slow near the maximum.
"""

from __future__ import annotations

import numpy as np

from .intervals import Floats

_MOST_STEPS = 400
#: Nothing is less likely than this, so that no logarithm and no quotient is infinite.
_LEAST = 1e-300


def maximise(overlaps: Floats, counts: Floats, start: Floats | None = None, tolerance: float = 1e-5) -> Floats:
    """Return (history, step) the probability of each step. ``overlaps``: (interval, step), from 0 to 1.

    ``counts``: (history, interval), how many failures of a history have this interval. ``start``: (history, step).
    It is found when a step changes less than ``tolerance`` of the failures of any history.
    """
    weights = counts / counts.sum(axis=1, keepdims=True)
    steps = overlaps.shape[1]
    mass = np.full((len(counts), steps), 1.0 / steps) if start is None else 0.99 * start + 0.01 / steps

    def renewed(old: Floats) -> Floats:
        found = old * ((weights / np.maximum(old @ overlaps.T, _LEAST)) @ overlaps)
        whole: Floats = found / found.sum(axis=1, keepdims=True)
        return whole

    for _ in range(_MOST_STEPS):
        first = renewed(mass)
        second = renewed(first)
        change, bend = first - mass, second - 2 * first + mass
        if np.abs(change).sum(axis=1).max() < tolerance:
            return second
        length = -np.sqrt((change**2).sum(axis=1) / np.maximum((bend**2).sum(axis=1), _LEAST))[:, None]
        ahead = mass - 2 * length * change + length**2 * bend
        # An extrapolation that leaves the simplex is not used.
        is_valid = (ahead > 0).all(axis=1, keepdims=True) & (length < -1)
        mass = renewed(np.where(is_valid, ahead, second))
    return mass
