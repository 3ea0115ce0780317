"""Recoveries that were counted, and how many of them a ladder that ends earlier may lose. Pure numpy.

The estimate leaves out what too few attempts looked at (`shares`): it can miss the recoveries of today's last tiers.
The count does not, so it has the last word on an advised ladder.
"""

from __future__ import annotations

import numpy as np

from .shares import Intervals, Shares


def lost_recoveries(intervals: Intervals, estimate: Shares, reach: int) -> float:
    """Return how many counted recoveries a ladder may lose whose last retry ends in the cell ``reach`` of the grid.

    A recovery that came later is lost if its task was seen to fail at the reach or after it. If no attempt of the task
    looked between, it is lost in part: as far as ``estimate``, made of the same ``intervals``, does not have such
    failures over by the reach. That is the expectation in a step of EM (Turnbull 1976), for recoveries alone. Where the
    estimate leaves a recovery out, it is lost. With bootstrap rounds it is the number that 97.5 % of them do not
    exceed, if this is more than that of the estimate.
    """
    later = (intervals.high < Intervals.OPEN) & (intervals.high > reach)
    found, of = np.unique(np.stack([intervals.low[later], estimate.ends[later]]), axis=1, return_inverse=True)
    low, end = found
    is_known = (low < reach) & (end < Intervals.OPEN)
    # Where nothing is known of it, the failure is taken to end where it began: nothing of it is over by the reach.
    until = estimate.least[:, np.where(is_known, end, low)] - estimate.least[:, low]
    by_reach = estimate.least[:, np.where(is_known, np.minimum(end, reach), low)] - estimate.least[:, low]
    kept = np.divide(by_reach, until, out=np.zeros_like(until), where=until > 0)
    lost = (1.0 - kept) @ np.bincount(of.ravel(), intervals.count[later], len(low))
    return round(float(max(lost[0], np.quantile(lost, 0.975))), 6)
