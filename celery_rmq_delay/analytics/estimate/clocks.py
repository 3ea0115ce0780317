"""How much the clocks of workers differ, from retries that ended before their delay can have passed. Pure NumPy.

A retry cannot end before the attempt before it, plus its delay, plus its own runtime. If the two attempts ran on two
workers, and the times contradict that, the second one's clock is behind by at least the difference, or the first one's
is ahead: the bound of clock synchronisation by one-way messages (Cristian, F. (1989). Distributed Computing 3).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import median

import numpy as np

from .grid import Grid
from .intervals import Floats, Ints

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
    """Return by how many seconds times may be wrong; 0: hardly any retry is too early, and the clocks agree.

    ``late_s``: by row, the seconds after all its delays at which an attempt ended, NaN: not known. ``count``: failures.
    The seconds are those of 95 % of the retries that are too early.
    """
    early = np.flatnonzero(late_s < -EARLY_S)
    if not is_wrong(float(count[early].sum()), float(count[~np.isnan(late_s)].sum())):
        return 0.0
    order = early[np.argsort(-late_s[early], kind="stable")]
    sums = np.cumsum(count[order])
    return float(-late_s[order[np.searchsorted(sums, 0.95 * sums[-1])]])


def widened(low: Ints, high: Ints, late_s: Floats, count: Floats, grid: Grid) -> tuple[Ints, Ints]:
    """Return intervals (cells) that contain the end of each failure although clocks differ; see `error_s`.

    An attempt cannot end before its delays have passed: at that time at the earliest. And if clocks differ, each time
    may be too early or too late by the difference.
    """
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

    They are about the fewest workers that explain all retries that are too early: first the one that explains most of
    them. If only two workers have such retries, one is behind the other, and which one is wrong is not known: it is the
    one behind. The seconds are the median over its pairs.
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
