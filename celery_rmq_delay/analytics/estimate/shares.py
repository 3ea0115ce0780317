"""Shares of failures that are over by each point of the grid, with bootstrap rounds. Pure numpy.

Failures of one outage end together: as if each were a witness of its own, intervals would be far too narrow. So a round
of the bootstrap draws whole clusters, with replacement: all failures that one outage can have made (`outages`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .options import Options
from .turnbull import turnbull

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

#: A handful of looks at a time tells little, but the likelihood can put all the mass of a long gap beside it. So looks
#: are few below this number, and below this share of the failures; of a small history, below the other share.
_FEW_LOOKS = 20
_FEW_LOOKS_SHARE = 0.001
_SMALL_SHARE = 0.05

#: Looks that are few count together within this part of a decade, and not beyond.
_NEAR_DECADES = 0.1

#: A round of the bootstrap needs no more: its shares are right to some 0.001.
_ROUND_TOLERANCE = 1e-4
_ROUND_STEPS = 100


@dataclass(frozen=True)
class Intervals:
    """Failures by the cells of the grid between which they ended, and by cluster; `OPEN` as ``high``: not seen over.

    A failure was seen at ``low`` and over at ``high``; ``low < high``. Rows may repeat; ``count`` is their number.
    """

    low: Ints
    high: Ints
    cluster: Ints
    count: Floats

    #: The cell of what was not seen to be over: beyond every grid.
    OPEN = 2**31 - 1

    @property
    def episodes(self) -> int:
        """How many failures there are."""
        return int(self.count.sum())

    @property
    def censored(self) -> int:
        """How many were not seen to be over."""
        return int(self.count[self.high == self.OPEN].sum())

    @property
    def recoveries(self) -> int:
        """How many were seen to be over."""
        return self.episodes - self.censored

    @property
    def clusters(self) -> int:
        """How many clusters there are in which a failure was seen over."""
        return len(np.unique(self.cluster[self.high < self.OPEN]))


@dataclass(frozen=True)
class Shares:
    """The share that is over by each cell of the grid: the estimate in row 0, a bootstrap round in each other row.

    ``least`` and ``most`` differ where the history cannot tell when a failure ended. ``looks``: attempts that ended in
    each cell. ``horizon``: the last cell with looks; from there on ``least`` is flat and ``most`` is 1, unless all were
    over. ``ends``: the cell by which the estimate takes the failures of each row of the intervals to be over, `OPEN`
    where it takes them for not seen over: not always that of the recovery, as few looks are pooled.
    """

    least: Floats
    most: Floats
    looks: Floats
    ends: Ints
    horizon: int
    converged: bool

    def interval(self, low: Floats, high: Floats) -> tuple[Floats, Floats]:
        """Return the 95 % interval, given figures of all rows: ``low`` made from ``least``, ``high`` from ``most``.

        Without rounds there is none: not a number.
        """
        if len(low) < 2:
            nothing = np.full(low.shape[1:], np.nan)
            return nothing, nothing
        with np.errstate(invalid="ignore"):
            return np.quantile(low[1:], 0.025, axis=0), np.quantile(high[1:], 0.975, axis=0)


def shares(intervals: Intervals, options: Options) -> Shares:
    """Return the estimate and its rounds. Raises `IntervalError` where there is nothing to estimate from.

    There are no rounds where there are less than `Options.min_clusters` clusters: they would all be alike.
    """
    cells = options.grid.points + 1
    data, looks = _pooled(intervals, cells, round(_NEAR_DECADES * options.grid.per_decade))
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
        looks=looks,
        ends=data.high,
        horizon=int(np.flatnonzero(looks)[-1]),
        converged=estimate.converged,
    )


def _draws(data: Intervals, rounds: int, seed: int) -> list[Floats]:
    """Return the rows' counts in each round: a cluster counts as often as it was drawn."""
    names, of = np.unique(data.cluster, return_inverse=True)
    random = np.random.default_rng(seed)
    drawn = random.multinomial(len(names), np.full(len(names), 1 / len(names)), size=rounds)
    return [data.count * times[of.ravel()] for times in drawn]


def _pooled(data: Intervals, cells: int, near: int) -> tuple[Intervals, Floats]:
    """Return the intervals between cells that have looks enough, and the looks at each of these.

    Few looks that are near none count as none: what failed there is known to have failed at the look before, and what
    was over there is known to be over at the look after; where there is none, it was not seen over.
    """
    looks = _looks(data, cells)
    count = data.count.sum()
    few = max(min(_FEW_LOOKS, _SMALL_SHARE * count), _FEW_LOOKS_SHARE * count)
    place = _places(looks, few, near)
    pooled = np.bincount(place, looks, cells)
    kept = np.flatnonzero(pooled >= min(few, pooled.max()))
    failed_at = np.concatenate(([0], kept))[np.searchsorted(kept, place, side="right")]
    over_at = np.concatenate((kept, [data.OPEN]))[np.searchsorted(kept, place, side="left")]
    high = np.where(data.high < data.OPEN, over_at[np.minimum(data.high, cells - 1)], data.OPEN)
    # Both ends in one cell: the failure ended in the step before it.
    low = np.minimum(failed_at[data.low], high - 1)
    return Intervals(low, high, data.cluster, data.count), np.where(np.isin(np.arange(cells), kept), pooled, 0.0)


def _places(looks: Floats, few: float, near: int) -> Ints:
    """Return the cell that stands for each: few looks join others within ``near`` cells, the fewest first.

    They rather join few, and then the nearest. Few and few together stand at the later of their cells; few that join
    many stand where these are.
    """
    at = [int(each) for each in np.flatnonzero(looks)]
    counts, members = [float(looks[each]) for each in at], [[each] for each in at]
    while pair := _fewest_and_nearest(at, counts, few, near):
        one, other = pair
        at[other] = at[other] if counts[other] >= few else max(at[one], at[other])
        counts[other] += counts[one]
        members[other] += members[one]
        del at[one], counts[one], members[one]
    place = np.arange(len(looks))
    for standing, pool in zip(at, members, strict=True):
        place[pool] = standing
    return place


def _fewest_and_nearest(at: list[int], counts: list[float], few: float, near: int) -> tuple[int, int] | None:
    """Return the first pool that has to join another, and which one."""
    for one in sorted(range(len(at)), key=counts.__getitem__):
        if counts[one] >= few:
            return None
        sides = [each for each in (one - 1, one + 1) if 0 <= each < len(at) and abs(at[each] - at[one]) <= near]
        if sides:
            return one, min(sides, key=lambda each: (counts[each] >= few, abs(at[each] - at[one])))
    return None


def _looks(data: Intervals, cells: int) -> Floats:
    """Return how many attempts ended in each cell; those of cell 0, the first failures, are none."""
    seen = data.high < data.OPEN
    looks = np.bincount(data.low, data.count, cells) + np.bincount(data.high[seen], data.count[seen], cells)
    looks[0] = 0
    return looks.astype(np.float64)
