"""Figures of ladders, from the estimated shares of failures that have ended by each time. Pure, for many at once.

Times are measured from the end of the first failed attempt to the end of a later one. A retry ends later than its
tier's delay: tasks wait for a worker, and run. Shares are the mean over the `Lateness` of the history.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ...history.tables import FIGURES, PERCENTILES
from .by_attempt import ByAttempt, View, by_time
from .intervals import Floats, Ints
from .lateness import ON_TIME, Lateness
from .options import Grid
from .shares import Shares

#: Shares that differ by less are the same.
_ALIKE = 1e-9

#: A ladder with more retries than this is taken to repeat its last tier without a limit.
_MOST_RETRIES = 100


@dataclass(frozen=True)
class Today:
    """The delays of a task's retries in ms, none: not known; how late they end; whether the last repeats for ever."""

    ladder_ms: tuple[int, ...] = ()
    late: Lateness = ON_TIME
    is_endless: bool = False

    @classmethod
    def of(cls, tiers_ms: tuple[int, ...], max_retries: int | None, retries: int) -> Today:
        """Return the delays of all retries, from tiers and the number of retries.

        With fewer ``max_retries`` than tiers a task stops before the last ones; with more, the last tier repeats. None:
        the history contains no limit. Then the tier repeats without a limit if there were more ``retries`` than tiers.
        """
        if max_retries is None:
            return cls(tiers_ms, is_endless=retries > len(tiers_ms))
        if max_retries > max(_MOST_RETRIES, len(tiers_ms)):
            return cls(tiers_ms, is_endless=True)
        repeated = tiers_ms[-1:] * (max_retries - len(tiers_ms))
        return cls(tiers_ms[:max_retries] + repeated)


@dataclass(frozen=True)
class Figures:
    """Expected figures of ladders, all of one shape; NaN: nothing recovers.

    ``recovery``: share of failures that have ended by the last retry. ``attempts``: retries per failure - every attempt
    after the first, successful or failed. ``mean_s`` and the percentiles ``p25_s`` to ``p99_s``: seconds to recovery,
    among those that recover. ``exhausted``: the share that does not recover.
    """

    recovery: Floats
    attempts: Floats
    mean_s: Floats
    p25_s: Floats
    median_s: Floats
    p75_s: Floats
    p95_s: Floats
    p99_s: Floats
    exhausted: Floats


#: A ladder's figures with their 95 % intervals: name of a figure -> (figure, low, high).
Summary = Mapping[str, tuple[float, float, float]]


def retry_times(ladders_ms: Ints, late: Lateness) -> Floats:
    """Return the median seconds at which each retry ends. ``ladders_ms``: (ladder, tier); one length for all."""
    return _planned(ladders_ms) + late.median(ladders_ms.shape[-1])


def ends(ladders_ms: Ints, late: Lateness) -> Floats:
    """Return (point, ladder) the seconds at which the last retry ends: at each point of the lateness."""
    tiers = ladders_ms.shape[-1]
    planned_s = np.asarray(ladders_ms.sum(axis=-1) / 1000.0, dtype=np.float64)
    return np.asarray(late.after(tiers)[:, -1, None] + planned_s.reshape(1, -1))


def expected(
    curve: Floats, ladders_ms: Ints, late: Lateness, grid: Grid, view: View = by_time, most: Floats | None = None
) -> Figures:
    """Return the figures (row, ladder) of ladders of one length; ``most``: only of this share that recovers first."""
    most = np.ones((1, 1)) if most is None else most
    planned, points = _planned(ladders_ms), late.after(ladders_ms.shape[-1])
    share = spent = np.zeros(())
    for each in points:
        times = planned + each
        ended = np.minimum(view(curve[:, grid.cells(times)]), most[..., None])
        share = share + ended / len(points)
        spent = spent + _spent(ended, times) / len(points)
    return figures(share, retry_times(ladders_ms, late), spent)


def figures(share: Floats, times: Floats, spent: Floats | None = None) -> Figures:
    """Return figures from the ``share`` over by each time (..., ladder, tier); ``spent``: mean time by share."""
    recovery = share[..., -1]
    spent = _spent(share, times) if spent is None else spent
    with np.errstate(divide="ignore", invalid="ignore"):
        mean = np.where(recovery > _ALIKE, spent / recovery, np.nan)
    return Figures(
        recovery=recovery,
        attempts=1.0 + (1.0 - share[..., :-1]).sum(axis=-1),
        mean_s=mean,
        exhausted=1.0 - recovery,
        **{name: _quantile(share, times, part) for name, part in PERCENTILES.items()},
    )


def _planned(ladders_ms: Ints) -> Floats:
    return np.asarray(np.cumsum(ladders_ms / 1000.0, axis=-1))


def _spent(share: Floats, times: Floats) -> Floats:
    return np.asarray((np.diff(share, axis=-1, prepend=0.0) * times).sum(axis=-1))


def _quantile(share: Floats, times: Floats, part: float) -> Floats:
    """Return the time of the first retry by which this part of the recovering failures has recovered."""
    at = np.argmax(share >= part * share[..., -1:] - _ALIKE, axis=-1)
    found = np.take_along_axis(np.broadcast_to(times, share.shape), at[..., None], axis=-1)[..., 0]
    return np.where(share[..., -1] > _ALIKE, found, np.nan)


def summarise(
    ladder_ms: tuple[int, ...], shares: Shares, grid: Grid, late: Lateness, attempts: ByAttempt | None = None
) -> Summary:
    """Return the figures of one ladder with their intervals.

    The intervals contain the figures of resampled histories, of failures that end as late and as early as the history
    allows: they are wide if a ladder retries at times at which the history has no attempts. And they contain the
    figures if the number of attempts counts, as far as the history allows that; the figures themselves are those of the
    model that it favours, or else if only time counts.
    """
    ladder, attempts = np.array([ladder_ms], dtype=np.int64), attempts or ByAttempt()
    one = attempts.rows(slice(1))
    of_band = [
        [float(expected(each[None, :], ladder, late, grid, view).recovery[0, 0]) for each in shares.band()]
        for view in one.views
    ]
    low_share, high_share = float(np.min(of_band)), float(np.max(of_band))
    found = [
        expected(shares.likely, ladder, late, grid, attempts.likely),
        *(expected(each, ladder, late, grid, view) for each in (shares.least, shares.most) for view in attempts.views),
    ]
    by_name: dict[str, tuple[float, float, float]] = {}
    for name in FIGURES:
        each = np.stack([getattr(one, name)[:, 0] for one in found])
        low, high = shares.interval(np.fmin.reduce(each), np.fmax.reduce(each))
        by_name[name] = (float(each[0, 0]), float(low), float(high))
    recovery, *resampled = by_name["recovery"]
    least, greatest = float(np.fmin(resampled[0], low_share)), float(np.fmax(resampled[1], high_share))
    return by_name | {"recovery": (recovery, least, greatest), "exhausted": (1 - recovery, 1 - greatest, 1 - least)}
