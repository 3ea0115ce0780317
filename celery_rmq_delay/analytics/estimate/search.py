"""Search for the best ladder that the history supports. Pure, and exhaustive: every candidate is tried.

Objective: the fewest expected retries per failure (`Figures.attempts`), among ladders that

* recover at least `Limits.recovery`,
* with a median time to recovery of at most `Limits.median_s`, and a 95th percentile of at most `Limits.p95_s`.

If the history does not show when a failure ended, the latest possible time is assumed: a ladder gets no credit for
recoveries that were not observed. Among ladders with equal retries, the one that recovers more is best, then the one
with the shorter 95th percentile, the shorter median, fewer tiers, and shorter delays in their order: the result is
deterministic.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import chain, combinations_with_replacement

import numpy as np

from .grid import Grid
from .ladders import Figures, figures, retry_times
from .options import Options
from .shares import Floats, Ints

#: Shares, retries and seconds that differ by less are the same.
_ALIKE = 1e-9


@dataclass(frozen=True)
class Limits:
    """Limits of a ladder: the least share recovered, the longest median and 95th percentile in seconds."""

    recovery: float
    median_s: float
    p95_s: float

    @classmethod
    def of(cls, today: Figures, options: Options) -> Limits:
        """Return the limits that ``options`` set; those not set are today's figures with the tolerance.

        ``today``: the figures of one ladder, as scalars. A ladder that recovers nothing sets no time limit.
        """
        longer = 1 + options.time_tolerance
        return cls(
            recovery=_given(options.min_recovery, float(today.recovery) - options.recovery_tolerance),
            median_s=_given(options.max_median_s, _or_endless(float(today.median_s) * longer)),
            p95_s=_given(options.max_p95_s, _or_endless(float(today.p95_s) * longer)),
        )

    def kept_by(self, found: Figures) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
        """Return which of the ladders meet the limits."""
        return np.asarray(
            (found.recovery >= self.recovery - _ALIKE)
            & (found.median_s <= self.median_s + _ALIKE)
            & (found.p95_s <= self.p95_s + _ALIKE)
        )


def best_ladder(
    share: Floats, grid: Grid, overhead_s: float, limits: Limits, options: Options
) -> tuple[int, ...] | None:
    """Return the best ladder in milliseconds; None: none meets the limits. ``share``: of each cell of the grid."""
    best: tuple[tuple[float, ...], tuple[int, ...]] | None = None
    for tiers in range(1, options.max_tiers + 1):
        candidates = _ladders(tuple(options.delays_ms), tiers)
        found = _best_of(candidates, share, grid, overhead_s, limits)
        if found is not None and (best is None or found < best):
            best = found
    return best[1] if best else None


def _best_of(
    ladders: Ints, share: Floats, grid: Grid, overhead_s: float, limits: Limits
) -> tuple[tuple[float, ...], tuple[int, ...]] | None:
    """Return the best of ladders of one length, preceded by its criteria: less is better."""
    times = retry_times(ladders, overhead_s)
    found = figures(share[grid.cells(times)], times)
    kept = np.flatnonzero(limits.kept_by(found))
    if not len(kept):
        return None
    order = np.stack([found.attempts, -found.recovery, found.p95_s, found.median_s])[:, kept].round(9)
    # Candidates are ordered by their delays, and the sort is stable.
    at = kept[np.lexsort(order[::-1])[0]]
    judged = (found.attempts[at], -found.recovery[at], found.p95_s[at], found.median_s[at])
    return (*(round(float(each), 9) for each in judged), ladders.shape[1]), tuple(int(each) for each in ladders[at])


def _ladders(delays_ms: tuple[int, ...], tiers: int) -> Ints:
    """Return every ladder of this many tiers whose delays never decrease: (ladder, tier)."""
    count = math.comb(len(delays_ms) + tiers - 1, tiers)
    flat = chain.from_iterable(combinations_with_replacement(delays_ms, tiers))
    return np.fromiter(flat, dtype=np.int64, count=count * tiers).reshape(count, tiers)


def _given(value: float | None, otherwise: float) -> float:
    return otherwise if value is None else value


def _or_endless(seconds: float) -> float:
    return math.inf if math.isnan(seconds) else seconds
