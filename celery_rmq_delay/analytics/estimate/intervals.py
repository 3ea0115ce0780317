"""Failures as intervals between grid cells: what attempts show of when each failure ended. Pure NumPy."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

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
    began: Ints = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    retries: Ints = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    fair: Floats = field(default_factory=lambda: np.empty(0))

    #: The cell of failures whose end was not observed: beyond every grid.
    OPEN = 2**31 - 1

    def __post_init__(self) -> None:
        if len(self.began) != len(self.cluster):
            object.__setattr__(self, "began", self.cluster)
        if len(self.retries) != len(self.cluster):
            object.__setattr__(self, "retries", np.zeros(len(self.cluster), dtype=np.int64))
        if len(self.fair) != len(self.cluster):
            object.__setattr__(self, "fair", self.count)

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
        """How many clusters of equal size would be as informative as those of `clusters` (Kish, L. (1965)).

        They are the clusters with a failure whose end was observed.
        """
        return self.effective(self.is_over)

    def effective(self, rows: Flags) -> float:
        """Return how many clusters of equal size would be as informative as those of these rows; 0: there are none."""
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
