"""How many of the counted recoveries a ladder that ends earlier may lose. Pure numpy.

The estimate ignores times at which too few attempts ended (`shares`): it can miss the recoveries of today's last tiers.
The count does not, so it decides whether a ladder is advised.
"""

from __future__ import annotations

import numpy as np

from .shares import Intervals, Shares


def lost_recoveries(intervals: Intervals, estimate: Shares, reach: int) -> float:
    """Return how many counted recoveries a ladder may lose whose last retry ends in the cell ``reach`` of the grid.

    A later recovery is lost if its task failed at the reach or after it. If no attempt of the task ended in between, a
    part of it is lost: the share of such failures that, by ``estimate`` (of the same ``intervals``), have not ended by
    the reach. That is the expectation in a step of EM (Turnbull 1976), for recoveries alone. A recovery that the
    estimate leaves out is lost. With bootstrap rounds the result is the number that 97.5 % of them do not exceed, if
    that is more than the number by the estimate.
    """
    later = (intervals.high < Intervals.OPEN) & (intervals.high > reach)
    found, of = np.unique(np.stack([intervals.low[later], estimate.ends[later]]), axis=1, return_inverse=True)
    low, end = found
    is_known = (low < reach) & (end < Intervals.OPEN)
    # If its end is not known, the failure is taken to end where it began: no share of it has ended by the reach.
    until = estimate.least[:, np.where(is_known, end, low)] - estimate.least[:, low]
    by_reach = estimate.least[:, np.where(is_known, np.minimum(end, reach), low)] - estimate.least[:, low]
    kept = np.divide(by_reach, until, out=np.zeros_like(until), where=until > 0)
    lost = (1.0 - kept) @ np.bincount(of.ravel(), intervals.count[later], len(low))
    return round(float(max(lost[0], np.quantile(lost, 0.975))), 6)
