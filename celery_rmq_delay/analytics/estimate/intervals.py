"""Failures as intervals between grid cells: what attempts show of when each ended, by outage. Pure NumPy."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import NDArray

from .options import Options

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class Intervals:
    """Failures by the grid cells between which they ended, and by cluster; `OPEN` as ``high``: end not observed.

    A failure still lasted at ``low`` and had ended at ``high``; ``low < high``. Rows may repeat; ``count``: failures.
    ``began``: the time slot in which they began, `Options.cluster_s` long; by default, it is the cluster. ``retries``:
    how many retries of each failure have ended; by default, it is not known (0). ``fair``: how many of the failures can
    show whether time or the number of attempts decides; by default all.
    """

    low: Ints
    high: Ints
    cluster: Ints
    count: Floats
    began: Ints = None  # type: ignore[assignment] # see `__post_init__`
    retries: Ints = None  # type: ignore[assignment]
    fair: Floats = None  # type: ignore[assignment]

    #: The cell of failures whose end was not observed: beyond every grid.
    OPEN = 2**31 - 1

    def __post_init__(self) -> None:
        defaults = {"began": self.cluster, "retries": np.zeros_like(self.cluster), "fair": self.count}
        for name, default in defaults.items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, default)

    @property
    def is_over(self) -> Flags:
        """Which rows have an observed end."""
        return self.high < self.OPEN

    @property
    def episodes(self) -> int:
        """How many failures there are."""
        return int(self.count.sum())

    @property
    def censored(self) -> int:
        """How many failures there are whose end was not observed."""
        return int(self.count[~self.is_over].sum())

    @property
    def recoveries(self) -> int:
        """How many failures there are whose end was observed."""
        return self.episodes - self.censored

    @property
    def clusters(self) -> int:
        """How many clusters there are with a failure whose end was observed."""
        return len(np.unique(self.cluster[self.is_over]))

    @property
    def effective_clusters(self) -> float:
        """How many clusters of equal size would be as informative as those of `clusters`."""
        return self.effective(self.is_over)

    def effective(self, rows: Flags) -> float:
        """Return how many clusters of equal size would be as informative as those of these rows (Kish, L. (1965))."""
        of = np.unique(self.cluster[rows], return_inverse=True)[1].ravel()
        sizes = np.bincount(of, self.count[rows])
        return float(sizes.sum() ** 2 / (sizes**2).sum()) if sizes.any() else 0.0

    def looks(self, cells: int) -> Floats:
        """Return how many attempts ended in each cell, except cell 0, the first failures."""
        ends = np.bincount(self.high[self.is_over], self.count[self.is_over], cells)
        looks = np.bincount(self.low, self.count, cells) + ends
        looks[0] = 0
        return np.asarray(looks, dtype=np.float64)

    def chosen(self, rows: Flags) -> Intervals:
        """Return only these rows."""
        return Intervals(*(getattr(self, each.name)[rows] for each in fields(self)))


def lacking(intervals: Intervals, options: Options) -> str | None:
    """Return a sentence about which data is insufficient; None: there is enough."""
    for found, least, what in (
        (intervals.episodes, options.min_episodes, "retried failures"),
        (intervals.recoveries, options.min_recovered, "recoveries"),
    ):
        if found < least:
            return f"not enough data: {found:,} {what}, at least {least:,} are needed"
    if intervals.clusters < options.min_clusters:
        few = "one outage" if intervals.clusters == 1 else f"as few as {intervals.clusters:,} outages"
        return f"not enough data: {few} may have caused all failures, at least {options.min_clusters:,} are needed"
    if intervals.effective_clusters < options.min_clusters:
        return (
            "not enough data: few outages may have caused most failures, which show as much as "
            f"{intervals.effective_clusters:.1f} outages of equal size, at least {options.min_clusters:,} are needed"
        )
    return None


def draws(clusters: int, rounds: int, seed: int) -> Floats:
    """Return (round, cluster) how often each cluster is drawn in bootstrap rounds."""
    random = np.random.default_rng(seed)
    drawn = random.multinomial(clusters, np.full(clusters, 1 / clusters), size=rounds)
    return np.asarray(drawn, dtype=np.float64)


def by_outage(hourly: Intervals, options: Options) -> Intervals:
    """Return the intervals with the outage as cluster, given intervals whose cluster is the time slot of their begin.

    A failure ends between two attempts. Those whose spans have a moment in common can all have ended then: the moment
    in the most spans is chosen, these failures are one outage, and so on: about the fewest outages that explain the
    history. A failure whose end was not observed belongs to the next outage after it, or else to the others of its
    slot.
    """
    began = hourly.cluster
    lasts = options.grid.times / options.cluster_s
    is_over = hourly.is_over
    first = began + np.floor(lasts[hourly.low]).astype(np.int64)
    until = began[is_over] + 1 + np.floor(lasts[hourly.high[is_over]]).astype(np.int64)
    moments, of = _moments(first[is_over], until, hourly.count[is_over])
    cluster = np.empty_like(began)
    cluster[is_over] = of
    sought = first[~is_over]
    following = np.searchsorted(moments, sought)
    next_moment = np.append(moments, 0)[following]
    # Below every moment, so that the clusters stay distinct.
    cluster[~is_over] = np.where(following < len(moments), next_moment, began[~is_over] - 2**40)
    return replace(hourly, cluster=cluster, began=began)


def _moments(first: Ints, until: Ints, count: Floats) -> tuple[Ints, Ints]:
    """Return the chosen moments in order, and the moment of each span; both ends of a span are included."""
    if not len(first):
        return first, first
    start = int(first.min())
    spans, of = np.unique(np.stack([first, until]) - start, axis=1, return_inverse=True)
    weights = np.bincount(of.ravel(), count)
    moment = np.full(spans.shape[1], -1, dtype=np.int64)
    while len(left := np.flatnonzero(moment < 0)):
        begins, ends = spans[:, left]
        size = int(ends.max()) + 2
        covers = np.cumsum(np.bincount(begins, weights[left], size) - np.bincount(ends + 1, weights[left], size))
        at = int(np.argmax(covers))
        moment[left[(begins <= at) & (at <= ends)]] = at
    return np.unique(moment) + start, moment[of.ravel()] + start
