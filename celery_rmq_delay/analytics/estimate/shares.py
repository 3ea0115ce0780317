"""Estimate the share of failures that have ended by each cell of the grid, with bootstrap rounds. Pure NumPy.

Failures of one outage end together: treated as independent observations, they would make intervals far too narrow. So a
bootstrap round draws whole clusters, with replacement: all failures that one outage can have caused (`by_outage`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from ...exceptions import IntervalError
from .intervals import Floats, Intervals, Ints, draws
from .likelihood import Knots, maximise
from .options import Options

#: The quantile of the normal distribution for 95 %.
Z_95 = 1.959963984540054


def wilson(share: ArrayLike, trials: ArrayLike, clusters: int | None = None) -> tuple[Floats, Floats]:
    """Return both ends of the 95 % interval of shares (Wilson 1927); ``trials``: independent observations, above 0.

    Few ``clusters``, by which their number was estimated, make it wider, as in Student's distribution.
    """
    p, n = np.asarray(share, dtype=np.float64), np.asarray(trials, dtype=np.float64)
    weight = _quantile(clusters) ** 2 / n
    centre, margin = p + weight / 2, np.sqrt(weight * (p * (1 - p) + weight / 4))
    return np.maximum((centre - margin) / (1 + weight), 0.0), np.minimum((centre + margin) / (1 + weight), 1.0)


def independent(share: ArrayLike, variance: ArrayLike) -> Floats:
    """Return how many independent observations make a share as variable as it is; infinite if it does not vary."""
    p, known = np.asarray(share, dtype=np.float64), np.asarray(variance, dtype=np.float64)
    found: Floats = np.divide(p * (1 - p), known, out=np.full(np.shape(known), np.inf), where=known > 0)
    return found


def _quantile(clusters: int | None) -> float:
    """Return the quantile of Student's distribution for 95 %, by the expansion of Cornish and Fisher."""
    if clusters is None:
        return Z_95
    freedom, z = max(clusters - 1, 1), Z_95
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)


#: Sufficient for a bootstrap round: the share of failures that another step would move.
_ROUND_TOLERANCE = 1e-4

#: With less failures than this on one side of a share, its variance is not known from the rounds.
_FEWEST_EVENTS = 10


@dataclass(frozen=True)
class Shares:
    """The share that has ended by each grid cell: the estimate in row 0, a bootstrap round in each other row.

    ``likely`` is the estimate. The others differ from it where the history does not show when a failure ended, between
    two knots and after the last one: ``least`` and ``most``, and ``prudent``, in which failures end evenly over time
    instead of its logarithm, so later. ``seen``: the cells at which it does, ``sound``: those with enough attempts.
    ``effective``: (cell) how many independent failures would be as informative. ``clusters``: independent groups,
    ``equal_clusters``: those of equal size that would be as informative (`Intervals.effective_clusters`). ``none``: the
    share of half a failure.
    """

    likely: Floats
    prudent: Floats
    least: Floats
    most: Floats
    seen: Ints
    sound: Ints
    effective: Floats
    clusters: int
    equal_clusters: float
    none: float

    @property
    def horizon(self) -> int:
        """The last cell about which the history shows anything."""
        return int(self.seen[-1])

    def interval(self, low: Floats, high: Floats) -> tuple[Floats, Floats]:
        """Return the 95 % interval of figures by row, from ``least`` to ``most``; NaN without bootstrap rounds."""
        if len(low) < 2:
            return (np.full(low.shape[1:], np.nan),) * 2
        with np.errstate(invalid="ignore"):
            return np.quantile(low[1:], 0.025, axis=0), np.quantile(high[1:], 0.975, axis=0)

    def band(self) -> tuple[Floats, Floats]:
        """Return the 95 % interval of the share of every cell, as Wilson's; NaN without bootstrap rounds."""
        if len(self.likely) < 2:
            return (np.full(self.likely.shape[1], np.nan),) * 2
        low, _ = wilson(self.least[0], self.effective, self.clusters)
        _, high = wilson(self.most[0], self.effective, self.clusters)
        low, high = np.minimum(low, self.least[0]), np.maximum(high, self.most[0])
        # Less than half a failure is none.
        return np.where(low < self.none, 0.0, low), np.where(1 - high < self.none, 1.0, high)


def shares(intervals: Intervals, options: Options) -> Shares:
    """Return the estimate and its bootstrap rounds. Raises `IntervalError` if there is nothing to estimate from.

    With less than `Options.min_clusters` clusters there are no rounds: they would all be alike. At the least, those
    failures have ended whose end was observed, and at the most all but those that were observed to last.
    """
    if not intervals.count.sum() > 0:
        raise IntervalError("count", 0, "Give at least one observation.")
    knots, times = Knots.of(intervals, options.grid), options.grid.times
    cells = len(times)
    likely = _curves(intervals, knots, options)
    # The share of failures whose end was observed by each cell, and of those observed to last until then.
    over, total = intervals.is_over, intervals.count.sum()
    ended = np.cumsum(_counts(intervals.high[over], intervals.count[over], cells)) / total
    lasting = np.cumsum(_counts(intervals.low, intervals.count, cells)[::-1])[::-1] / total
    lasting[0] = 0.0
    likely[0] = np.clip(likely[0], ended, 1 - lasting)
    at = np.arange(cells)
    # Of a knot, only the share at all its attempts together is known.
    first, last = np.minimum(knots.seen, knots.knot_of), np.maximum(knots.seen, knots.knot_of)
    number = np.searchsorted(knots.seen, at, side="right") - 1
    before = knots.seen[number]
    after = np.searchsorted(knots.seen, at, side="left")
    most = np.where(after < len(knots.seen), likely[:, last[np.minimum(after, len(knots.seen) - 1)]], 1.0)
    least = likely[:, first[number]]
    least[0], most[0] = np.maximum(least[0], ended), np.minimum(most[0], 1 - lasting)
    prudent = np.stack([np.interp(times, times[knots.seen], each[knots.seen]) for each in likely])
    prudent = np.minimum(np.maximum(prudent, least), likely)
    clusters, equal = len(np.unique(intervals.cluster)), intervals.effective_clusters
    effective = _effective(likely, knots.seen, float(total), intervals.effective(intervals.count > 0))
    effective = np.minimum(effective, _rare(intervals, likely[0], knots.seen))[before]
    none = 0.5 / float(total)
    return Shares(likely, prudent, least, most, knots.seen, knots.sound, effective, clusters, equal, none)


def _curves(data: Intervals, knots: Knots, options: Options) -> Floats:
    """Return (round, cell) the most likely share of each cell; row 0 is the estimate."""
    pairs, of = np.unique(np.stack([data.low, data.high]), axis=1, return_inverse=True)
    overlaps, of = knots.overlaps(*pairs), of.ravel()
    estimate = maximise(overlaps, _counts(of, data.count, pairs.shape[1])[None, :])
    rounds = options.bootstrap_rounds if data.clusters >= options.min_clusters else 0
    mass = estimate
    if rounds:
        names, cluster = np.unique(data.cluster, return_inverse=True)
        times, cluster = draws(len(names), rounds, options.seed), cluster.ravel()
        drawn = np.stack([_counts(of, data.count * each[cluster], pairs.shape[1]) for each in times])
        mass = np.concatenate([estimate, maximise(overlaps, drawn, estimate, _ROUND_TOLERANCE)])
    share = np.minimum(np.concatenate([np.zeros((len(mass), 1)), np.cumsum(mass[:, :-1], axis=1)], axis=1), 1.0)
    return np.stack([np.interp(knots.place, knots.place[knots.cells], each) for each in share])


def _counts(of: Ints, weights: Floats, size: int) -> Floats:
    return np.bincount(of, weights, size).astype(np.float64)


def _effective(likely: Floats, seen: Ints, total: float, clusters: float) -> Floats:
    """Return for every cell how many independent failures would vary as much as the rounds do.

    Where hardly any failures have ended, or nearly all, few clusters decide the share, and rounds vary too little.
    There it is at most the number at the nearest cell that is clear, and at most the effective number of clusters.
    """
    share = likely[0]
    variance = likely[1:].var(axis=0) if len(likely) > 2 else np.zeros_like(share)
    fewer = np.minimum(share, 1 - share)
    # Less than half a failure on one side of the share is none.
    has_both = (variance > 0) & (fewer * total > 0.5)
    own = np.minimum(independent(share, np.where(has_both, variance, 0.0)), total)
    is_clear = has_both & (fewer * own >= _FEWEST_EVENTS)
    clear = seen[is_clear[seen]]
    most = np.full_like(own, clusters)
    if len(clear):
        nearest = clear[np.abs(clear[None, :] - np.arange(len(share))[:, None]).argmin(axis=1)]
        most = np.minimum(most, own[nearest])
    found: Floats = np.where(is_clear, own, np.minimum(own, most))
    return found


def _rare(data: Intervals, share: Floats, seen: Ints) -> Floats:
    """Return for every cell how many independent failures have as many on the rarer side of the share as clusters.

    The failures that last longest can be those of one outage, and all others unrelated: the rounds do not show that
    another history has two such outages, or none.
    """
    found = np.full_like(share, np.inf)
    for cell in seen[1:].tolist():
        rare = data.high <= cell if share[cell] < 0.5 else data.low >= cell
        fewer, clusters = min(share[cell], 1 - share[cell]), data.effective(rare)
        if fewer > 0 and clusters > 0:
            found[cell] = clusters / fewer
    return found
