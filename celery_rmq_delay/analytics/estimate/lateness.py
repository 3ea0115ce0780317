"""How late the retries of a task end, as a distribution. Pure NumPy.

A task recovers at a retry the more often the later it ends: failures have ended by then. So the lateness of those that
recovered is too long. Each of them counts as the inverse of the probability that it recovered at this retry, by the
estimate, between its attempt before it and this one (Horvitz, D. G., and Thompson, D. J. (1952). JASA 47).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .clocks import error_s
from .intervals import Floats, Intervals
from .shares import Shares

#: The points of a distribution of lateness: each stands for a tenth of the tasks.
PARTS = tuple((2 * at + 1) / 20 for at in range(10))

#: The lateness after a number of retries is known if at least this many tasks have had that number.
_ENOUGH = 30

#: No recovery is less probable than this, so that no task has most of the weight.
_LEAST = 0.01

#: Retries whose lateness is distinguished.
_MOST_RETRIES = 12


@dataclass(frozen=True)
class Lateness:
    """``points``: for the first, second, ... retry, the seconds by which it ends after all its planned delays.

    They include the lateness of all retries before it, and are equally frequent: the `PARTS` of tasks. After the last
    retry that is known, lateness grows evenly.
    """

    points: tuple[tuple[float, ...], ...] = ((0.0,),)

    @classmethod
    def always(cls, seconds: float) -> Lateness:
        """Return the lateness of tasks whose every retry is as late."""
        return cls(((seconds,),))

    def after(self, retries: int) -> Floats:
        """Return (point, retry) the seconds of each of the retries."""
        known = np.array(self.points[:retries])
        further = np.arange(len(known) + 1, retries + 1)[:, None] / len(known) * known[-1]
        return np.concatenate([known, further]).T

    def median(self, retries: int) -> Floats:
        """Return (retry) the median seconds of each of the retries."""
        return np.asarray(np.median(self.after(retries), axis=0))


#: Every retry ends when its delay does.
ON_TIME = Lateness()


@dataclass(frozen=True)
class LateRetries:
    """What the rows of `Intervals` show of lateness: the seconds after all delays at which the last attempt ended.

    ``seconds`` is NaN where a planned delay is not known.
    """

    seconds: Floats

    def early(self, intervals: Intervals) -> str | None:
        """Return a sentence if too many retries ended before their delay can have passed; None: hardly any did.

        A worker's clock is then behind or ahead: where no retry contradicts it, other times of the history are wrong,
        too. ``intervals``: those of the same rows.
        """
        seconds = error_s(self.seconds, intervals.count)
        if not seconds:
            return None
        return (
            f"the clocks of the workers differ, by about {seconds:,.0f} s: retries ended before their delay can have "
            'passed. Synchronise the clocks; the report of the run names the workers under "clocks"'
        )

    def lateness(self, intervals: Intervals, estimate: Shares) -> Lateness:
        """Return the lateness of all tasks; ``intervals``, ``estimate``: those of the same rows.

        Retries after which few tasks recovered follow from the nearest other ones.
        """
        share, is_known = estimate.likely[0], intervals.is_over & ~np.isnan(self.seconds) & (intervals.retries >= 1)
        high, low, count = (each[is_known] for each in (intervals.high, intervals.low, intervals.count))
        weights = count / np.maximum(share[high] - share[low], _LEAST)
        number = np.minimum(intervals.retries[is_known], _MOST_RETRIES)
        seconds = np.maximum(self.seconds[is_known], 0.0)
        tasks = np.bincount(number, count, _MOST_RETRIES + 1)
        if not tasks.any():
            return ON_TIME
        enough = np.flatnonzero(tasks >= min(_ENOUGH, tasks.max()))
        late = []
        for each in range(1, enough.max() + 1):
            nearest = enough[np.abs(enough - each).argmin()]
            late.append(_points(seconds[number == nearest], weights[number == nearest]) * each / nearest)
        # A retry ends after the one before it.
        return Lateness(tuple(map(tuple, np.maximum.accumulate(np.array(late), axis=0).tolist())))


def _points(values: Floats, weights: Floats) -> Floats:
    """Return the values below which `PARTS` of the weights are."""
    order = np.argsort(values, kind="stable")
    sums = np.cumsum(weights[order])
    at = np.searchsorted(sums, np.array(PARTS) * sums[-1])
    return np.asarray(values[order][np.minimum(at, len(values) - 1)])
