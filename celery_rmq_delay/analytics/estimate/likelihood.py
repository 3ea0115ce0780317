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

#: No step may begin without any mass: EM never gives it some.
_MIXED = 0.01

#: The part of a mass that remains when an extrapolation would make it negative.
_VANISHING = 0.1

#: Nothing is less likely than this, so that no logarithm and no quotient is infinite.
_LEAST = 1e-300


def maximise(overlaps: Floats, counts: Floats, start: Floats | None = None, tolerance: float = 1e-5) -> Floats:
    """Return (history, step) the probability of each step. ``overlaps``: (interval, step), from 0 to 1.

    ``counts``: (history, interval), how many failures of a history have this interval. ``start``: (1, step).
    It is found when a step changes less than ``tolerance`` of the failures of any history.
    """
    weights = counts / counts.sum(axis=1, keepdims=True)
    steps = overlaps.shape[1]
    found = np.full((len(counts), steps), 1.0 / steps) if start is None else np.repeat(start, len(counts), axis=0)
    found = (1 - _MIXED) * found + _MIXED / steps
    active = np.arange(len(counts))
    for _ in range(_MOST_STEPS):
        mass = found[active]
        first = _renewed(mass, overlaps, weights[active])
        second = _renewed(first, overlaps, weights[active])
        change, bend = first - mass, second - 2 * first + mass
        length = np.sqrt((change**2).sum(axis=1) / np.maximum((bend**2).sum(axis=1), _LEAST))[:, None]
        ahead = mass + 2 * length * change + length**2 * bend
        # Where the extrapolation leaves the simplex, the mass is about to vanish.
        ahead = np.where(ahead > 0, ahead, _VANISHING * second)
        found[active] = _renewed(np.where(length > 1, ahead, second), overlaps, weights[active])
        active = active[np.abs(change).sum(axis=1) >= tolerance]
        if not len(active):
            break
    return np.asarray(found)


def _renewed(mass: Floats, overlaps: Floats, weights: Floats) -> Floats:
    """Return the masses after a step of EM."""
    found = mass * ((weights / np.maximum(mass @ overlaps.T, _LEAST)) @ overlaps)
    return np.asarray(found / found.sum(axis=1, keepdims=True))
