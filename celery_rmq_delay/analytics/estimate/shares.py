"""Estimate the shares of failures that have ended by each point of the grid, with bootstrap rounds. Pure numpy.

Failures of one outage end together: treated as independent observations, they would make intervals far too narrow. So a
bootstrap round draws whole clusters, with replacement: all failures that one outage can have caused (`outages`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .options import Options
from .turnbull import turnbull

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

#: A few inspections at a time carry little information, but the likelihood can put all the mass of a long gap beside
#: them. Inspections are few below this number, and below this share of the failures; in a small history, below
#: `_SMALL_SHARE`.
_FEW_INSPECTIONS = 20
_FEW_INSPECTIONS_SHARE = 0.001
_SMALL_SHARE = 0.05

#: Cells with few inspections are pooled within this part of a decade.
_NEAR_DECADES = 0.1

#: Sufficient for a bootstrap round: its shares are accurate to about 0.001.
_ROUND_TOLERANCE = 1e-4
_ROUND_STEPS = 100


@dataclass(frozen=True)
class Intervals:
    """Failures by the grid cells between which they ended, and by cluster; `OPEN` as ``high``: end not observed.

    A failure still lasted at ``low`` and had ended at ``high``; ``low < high``. Rows may repeat; ``count``: failures.
    """

    low: Ints
    high: Ints
    cluster: Ints
    count: Floats

    #: The cell of failures whose end was not observed: beyond every grid.
    OPEN = 2**31 - 1

    @property
    def episodes(self) -> int:
        """How many failures there are."""
        return int(self.count.sum())

    @property
    def censored(self) -> int:
        """How many failures there are whose end was not observed."""
        return int(self.count[self.high == self.OPEN].sum())

    @property
    def recoveries(self) -> int:
        """How many failures there are whose end was observed."""
        return self.episodes - self.censored

    @property
    def clusters(self) -> int:
        """How many clusters there are with a failure whose end was observed."""
        return len(np.unique(self.cluster[self.high < self.OPEN]))


@dataclass(frozen=True)
class Shares:
    """The share that has ended by each grid cell: the estimate in row 0, a bootstrap round in each other row.

    ``least`` and ``most`` differ where the history does not show when a failure ended. ``inspections``: attempts that
    ended in each cell. ``horizon``: the last cell with inspections; from there on ``least`` is flat and ``most`` is 1,
    unless all have ended. ``ends``: the cell by which the estimate takes the failures of each row of the intervals to
    have ended, `OPEN` if it takes their end as not observed: not always the cell of the recovery, as cells with few
    inspections are pooled.
    """

    least: Floats
    most: Floats
    inspections: Floats
    ends: Ints
    horizon: int
    converged: bool

    def interval(self, low: Floats, high: Floats) -> tuple[Floats, Floats]:
        """Return the 95 % interval of figures of all rows: ``low`` computed from ``least``, ``high`` from ``most``.

        Without bootstrap rounds both ends are NaN.
        """
        if len(low) < 2:
            unknown = np.full(low.shape[1:], np.nan)
            return unknown, unknown
        with np.errstate(invalid="ignore"):
            return np.quantile(low[1:], 0.025, axis=0), np.quantile(high[1:], 0.975, axis=0)


def shares(intervals: Intervals, options: Options) -> Shares:
    """Return the estimate and its bootstrap rounds. Raises `IntervalError` if there is nothing to estimate from.

    With less than `Options.min_clusters` clusters there are no rounds: they would all be alike.
    """
    cells = options.grid.points + 1
    data, inspections = _pooled(intervals, cells, round(_NEAR_DECADES * options.grid.per_decade))
    pairs, of = np.unique(data.low * (2**32) + data.high, return_inverse=True)
    low, high = np.divmod(pairs, 2**32)
    ends = np.where(high == data.OPEN, np.inf, high)
    of = of.ravel()
    estimate = turnbull(low, ends, np.bincount(of, data.count))
    rounds = options.bootstrap_rounds if intervals.clusters >= options.min_clusters else 0
    estimates = [estimate]
    for weights in _draws(data, rounds, options.seed):
        counts = np.bincount(of, weights)
        estimates.append(turnbull(low, ends, counts, tolerance=_ROUND_TOLERANCE, most_steps=_ROUND_STEPS))
    at = np.arange(cells)
    return Shares(
        least=np.array([each.least(at) for each in estimates]),
        most=np.array([each.most(at) for each in estimates]),
        inspections=inspections,
        ends=data.high,
        horizon=int(np.flatnonzero(inspections)[-1]),
        converged=estimate.converged,
    )


def _draws(data: Intervals, rounds: int, seed: int) -> list[Floats]:
    """Return the rows' counts in each round: a cluster counts as often as it was drawn."""
    names, of = np.unique(data.cluster, return_inverse=True)
    random = np.random.default_rng(seed)
    drawn = random.multinomial(len(names), np.full(len(names), 1 / len(names)), size=rounds)
    return [data.count * times[of.ravel()] for times in drawn]


def _pooled(data: Intervals, cells: int, near: int) -> tuple[Intervals, Floats]:
    """Return the intervals between cells with enough inspections, and the inspections of each of these cells.

    Few inspections that are not near others are dropped: a failure there counts as observed at the inspection before,
    and a recovery there at the inspection after; if there is none, its end counts as not observed.
    """
    inspections = _inspections(data, cells)
    count = data.count.sum()
    few = max(min(_FEW_INSPECTIONS, _SMALL_SHARE * count), _FEW_INSPECTIONS_SHARE * count)
    place = _places(inspections, few, near)
    pooled = np.bincount(place, inspections, cells)
    kept = np.flatnonzero(pooled >= min(few, pooled.max()))
    failed_at = np.concatenate(([0], kept))[np.searchsorted(kept, place, side="right")]
    over_at = np.concatenate((kept, [data.OPEN]))[np.searchsorted(kept, place, side="left")]
    high = np.where(data.high < data.OPEN, over_at[np.minimum(data.high, cells - 1)], data.OPEN)
    # Both ends in one cell: the failure ended in the step before it.
    low = np.minimum(failed_at[data.low], high - 1)
    return Intervals(low, high, data.cluster, data.count), np.where(np.isin(np.arange(cells), kept), pooled, 0.0)


def _places(inspections: Floats, few: float, near: int) -> Ints:
    """Return the cell that represents each cell: cells with few inspections join others within ``near`` cells.

    The fewest join first; they prefer others with few inspections, then the nearest. Two with few inspections are
    represented by the later cell; one that joins a cell with many is represented by that cell.
    """
    at = [int(each) for each in np.flatnonzero(inspections)]
    counts, members = [float(inspections[each]) for each in at], [[each] for each in at]
    while pair := _fewest_and_nearest(at, counts, few, near):
        one, other = pair
        at[other] = at[other] if counts[other] >= few else max(at[one], at[other])
        counts[other] += counts[one]
        members[other] += members[one]
        del at[one], counts[one], members[one]
    place = np.arange(len(inspections))
    for standing, pool in zip(at, members, strict=True):
        place[pool] = standing
    return place


def _fewest_and_nearest(at: list[int], counts: list[float], few: float, near: int) -> tuple[int, int] | None:
    """Return the first pool that must join another, and that other pool."""
    for one in sorted(range(len(at)), key=counts.__getitem__):
        if counts[one] >= few:
            return None
        sides = [each for each in (one - 1, one + 1) if 0 <= each < len(at) and abs(at[each] - at[one]) <= near]
        if sides:
            return one, min(sides, key=lambda each: (counts[each] >= few, abs(at[each] - at[one])))
    return None


def _inspections(data: Intervals, cells: int) -> Floats:
    """Return how many attempts ended in each cell, except cell 0, the first failures."""
    seen = data.high < data.OPEN
    inspections = np.bincount(data.low, data.count, cells) + np.bincount(data.high[seen], data.count[seen], cells)
    inspections[0] = 0
    return inspections.astype(np.float64)
