"""How late the retries of a task end, as a distribution. Pure NumPy.

A task recovers at a retry the more often the later it ends: failures have ended by then. So the lateness of those that
recovered is too long. Each of them counts as the inverse of the probability that it recovered at this retry, by the
estimate, between its attempt before it and this one (Horvitz, D. G., and Thompson, D. J. (1952). JASA 47).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import median

import numpy as np

from .intervals import Floats, Intervals, Ints
from .options import Grid
from .shares import Shares

#: A retry that ends this many seconds before its delay can have passed shows that clocks differ. The history is wrong
#: if there are more of them than a minimum number, and than a small share of the retries.
EARLY_S, _FEW_EARLY, _MOST_EARLY = 1.0, 5, 0.01

#: Most workers that a note names.
_MOST_NAMED = 10


@dataclass(frozen=True)
class Early:
    """``count`` retries on ``worker``, after an attempt on ``previous``, that ended up to ``seconds`` too early."""

    previous: str
    worker: str
    count: int
    seconds: float


def is_wrong(early: float, retries: float) -> bool:
    """Return whether ``early`` of the retries end too early: then other times of the history are wrong, too."""
    return early >= _FEW_EARLY and early > _MOST_EARLY * retries


def error_s(late_s: Floats, count: Floats) -> float:
    """Return by how many seconds times may be wrong: those of 95 % of the early retries; 0: hardly any is too early.

    ``late_s``: by row, the seconds after all its delays at which an attempt ended, NaN: not known.
    """
    early = np.flatnonzero(late_s < -EARLY_S)
    if not is_wrong(float(count[early].sum()), float(count[~np.isnan(late_s)].sum())):
        return 0.0
    order = early[np.argsort(-late_s[early], kind="stable")]
    sums = np.cumsum(count[order])
    return float(-late_s[order[np.searchsorted(sums, 0.95 * sums[-1])]])


def widened(low: Ints, high: Ints, late_s: Floats, count: Floats, grid: Grid) -> tuple[Ints, Ints]:
    """Return intervals (cells) that contain the end of each failure although clocks differ by `error_s`."""
    error, is_over = error_s(late_s, count), high <= grid.points
    early = np.maximum(-np.nan_to_num(late_s), 0.0)
    ended = grid.times[np.where(is_over, high, 0)] + np.maximum(early, error)
    later = np.maximum(grid.cells(ended), high)
    began = grid.cells(grid.times[low] - error) if error else low
    return np.where(is_over, np.minimum(began, later - 1), began), np.where(is_over, later, high)


def named(pairs: Iterable[Early], retries: int) -> tuple[Mapping[str, float], str | None]:
    """Return the `offsets`, and a note about them; neither if hardly any of the ``retries`` is too early."""
    some = list(pairs)
    early = sum(each.count for each in some)
    if not is_wrong(early, retries):
        return {}, None
    found = offsets(some)
    workers = ", ".join(f"{name} by {seconds:+,.1f} s" for name, seconds in list(found.items())[:_MOST_NAMED])
    more = f" and {len(found) - _MOST_NAMED} more" if len(found) > _MOST_NAMED else ""
    return found, (
        f"{early:,} of {retries:,} retries ended before their delay can have passed. The clocks of these workers "
        f"differ: {workers}{more}. Synchronise them: until then, curves are wrong, and queues with many such retries "
        "have no advice"
    )


def offsets(pairs: Iterable[Early]) -> Mapping[str, float]:
    """Return the workers whose clocks differ, and by how many seconds; below 0: the clock is behind.

    A retry cannot end before the attempt before it, plus its delay and its runtime: the bound of clock synchronisation
    by one-way messages (Cristian, F. (1989). Distributed Computing 3). They are about the fewest workers that explain
    all early retries. Of two workers that contradict each other, the one behind is taken to be wrong.
    """
    left, found = list(pairs), dict[str, float]()
    while left:
        explained: dict[tuple[str, int], int] = defaultdict(int)
        for each in left:
            explained[each.worker, -1] += each.count
            explained[each.previous, 1] += each.count
        worker, sign = min(explained, key=lambda key: (-explained[key], key[1], key[0]))
        own = [each for each in left if worker == (each.worker if sign < 0 else each.previous)]
        found.setdefault(worker, round(sign * median(each.seconds for each in own), 3))
        left = [each for each in left if each not in own]
    return found


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


def early_sentence(late_s: Floats, intervals: Intervals) -> str | None:
    """Return a sentence if clocks differ, so that other times are wrong, too; None: hardly any retry is early."""
    seconds = error_s(late_s, intervals.count)
    if not seconds:
        return None
    return (
        f"the clocks of the workers differ, by about {seconds:,.0f} s: retries ended before their delay can have "
        'passed. Synchronise the clocks; the report of the run names the workers under "clocks"'
    )


def lateness_of(late_s: Floats, intervals: Intervals, estimate: Shares) -> Lateness:
    """Return the lateness of all tasks; of retries after which few recovered by the nearest other ones.

    ``late_s``: the seconds after all delays at which the last attempt of each row ended; NaN: not known.
    """
    share, is_known = estimate.likely[0], intervals.is_over & ~np.isnan(late_s) & (intervals.retries >= 1)
    high, low, count = (each[is_known] for each in (intervals.high, intervals.low, intervals.count))
    weights = count / np.maximum(share[high] - share[low], _LEAST)
    number = np.minimum(intervals.retries[is_known], _MOST_RETRIES)
    seconds = np.maximum(late_s[is_known], 0.0)
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
