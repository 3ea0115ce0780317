"""Recoveries that were counted, and how many of them a ladder that ends earlier would lose. Pure numpy.

The estimate leaves out what too few attempts looked at (`shares`): it can miss the recoveries of today's last tiers.
The count does not, so it has the last word on an advised ladder.
"""

from __future__ import annotations

import numpy as np

from .shares import Intervals, Shares


def lost_recoveries(intervals: Intervals, estimate: Shares, reach: int) -> float:
    """Return how many counted recoveries a ladder would lose whose last retry ends in the cell ``reach`` of the grid.

    A recovery that came later is lost if its task was seen to fail at the reach or after it. If no attempt of the task
    looked between, it is lost in part: as far as ``estimate``, made of the same ``intervals``, does not have such
    failures over by the reach. That is the expectation in a step of EM (Turnbull 1976), for recoveries alone. Where the
    estimate leaves a recovery out, it is lost.
    """
    later = (intervals.high < Intervals.OPEN) & (intervals.high > reach)
    low, end = intervals.low[later], estimate.ends[later]
    share = estimate.least[0]
    is_known = (low < reach) & (end < Intervals.OPEN)
    before = share[low]
    until = share[np.where(is_known, end, 0)] - before
    by_reach = share[np.minimum(reach, np.where(is_known, end, reach))] - before
    kept = np.divide(by_reach, until, out=np.zeros_like(until), where=is_known & (until > 0))
    return round(float(intervals.count[later] @ (1.0 - kept)), 6)
