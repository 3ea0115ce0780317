"""Recoveries that the history counts: how many of them a ladder that ends earlier may lose. Pure NumPy.

The estimate is uncertain where few attempts ended, such as after today's last tiers. The count is not: it decides how
early a ladder may end.
"""

from __future__ import annotations

import numpy as np

from .intervals import Intervals
from .shares import Shares


def lost_recoveries(intervals: Intervals, estimate: Shares, reach: int, last: int) -> float:
    """Return how many counted recoveries a ladder may lose that ends in the cell ``reach`` and not in ``last``.

    A recovery after the reach is lost if its task failed at the reach or after it. If no attempt of the task ended in
    between, a part of it is lost: the share of such failures that, by ``estimate`` (of the same ``intervals``), ended
    after the reach, and by the cell ``last`` of today's last retry. Where the history has few attempts they are taken
    to end as late as possible. With bootstrap rounds the result is the number that 97.5 % of them do not exceed, if
    that is more than the number by the estimate.
    """
    later = intervals.is_over & (intervals.high > reach)
    pairs, of = np.unique(np.stack([intervals.low, intervals.high])[:, later], axis=1, return_inverse=True)
    low, high = pairs
    likely = estimate.likely
    known = estimate.sound[np.searchsorted(estimate.sound, reach, side="right") - 1]
    ended = likely[:, np.minimum(high, last)] - np.maximum(likely[:, [known]], likely[:, low])
    whole = likely[:, np.minimum(high, estimate.horizon)] - likely[:, low]
    # After the horizon nothing is known: such a recovery is lost.
    is_known = (high <= estimate.horizon) & (whole > 0)
    part = np.divide(ended, whole, out=np.ones_like(whole), where=is_known).clip(0.0, 1.0)
    lost = part @ np.bincount(of.ravel(), intervals.count[later], len(low))
    return round(float(max(lost[0], np.quantile(lost, 0.975))), 6)


def lost_by_number(intervals: Intervals, retries: int, today: int, weight: float) -> float:
    """Return how many counted recoveries may be lost with fewer retries: ``retries`` instead of ``today``.

    They are those after more retries, if the number of attempts counts: in the part ``weight`` of the failures.
    """
    later = intervals.is_over & (intervals.retries > retries) & (intervals.retries <= today)
    return weight * float(intervals.count[later].sum())


def least_reach(intervals: Intervals, estimate: Shares, last: int, most: float) -> int:
    """Return the first cell in which a ladder may end without losing more than ``most`` recoveries.

    It is ``last``, the cell in which today's ladder ends, if no earlier one is possible.
    """
    first, end = 0, last
    while first < last:
        middle = (first + last) // 2
        if lost_recoveries(intervals, estimate, middle, end) <= most:
            last = middle
        else:
            first = middle + 1
    return first
