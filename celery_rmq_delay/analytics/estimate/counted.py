"""Counts of the history: today's figures, and the recoveries that a ladder may lose that ends earlier. Pure NumPy.

The estimate is uncertain where few attempts ended, such as after today's last tiers. The count is not: it decides how
early a ladder may end.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...history.tables import FIGURES, PERCENTILES
from .intervals import Flags, Floats, Intervals, Ints, draws
from .ladders import Figures, Summary
from .options import Options
from .shares import Shares, independent, wilson


def lost_recoveries(intervals: Intervals, estimate: Shares, reach: int, last: int) -> float:
    """Return how many counted recoveries a ladder may lose that ends in the cell ``reach`` and not in ``last``.

    A recovery after the reach is lost if its task failed at the reach or after it. If no attempt of the task ended in
    between, a part of it is lost: the share of such failures that, by ``estimate`` (of the same ``intervals``), ended
    after the reach, and by the cell ``last`` of today's last retry. Where the history has few attempts they are taken
    to end as late as possible. With bootstrap rounds the result is the number that 97.5 % of them do not exceed, if
    that is more than the number by the estimate.
    """
    later = intervals.is_over & (intervals.high > reach)
    pairs, of = np.unique(np.stack([intervals.low, intervals.high])[:, later], axis=1, return_inverse=True)
    low, high = pairs
    likely = estimate.likely
    known = estimate.sound[np.searchsorted(estimate.sound, reach, side="right") - 1]
    ended = likely[:, np.minimum(high, last)] - np.maximum(likely[:, [known]], likely[:, low])
    whole = likely[:, np.minimum(high, estimate.horizon)] - likely[:, low]
    # After the horizon nothing is known: such a recovery is lost.
    is_known = (high <= estimate.horizon) & (whole > 0)
    part = np.divide(ended, whole, out=np.ones_like(whole), where=is_known).clip(0.0, 1.0)
    lost = part @ np.bincount(of.ravel(), intervals.count[later], len(low))
    return round(float(max(lost[0], np.quantile(lost, 0.975))), 6)


def lost_by_number(intervals: Intervals, retries: int, today: int, weight: float) -> float:
    """Return how many recoveries after more than ``retries`` may be lost, if attempts count in the part ``weight``."""
    later = intervals.is_over & (intervals.retries > retries) & (intervals.retries <= today)
    return weight * float(intervals.count[later].sum())


def least_reach(intervals: Intervals, estimate: Shares, last: int, most: float) -> int:
    """Return the first cell, up to ``last``, in which a ladder may end that loses at most ``most`` recoveries."""
    first, end = 0, last
    while first < last:
        middle = (first + last) // 2
        if lost_recoveries(intervals, estimate, middle, end) <= most:
            last = middle
        else:
            first = middle + 1
    return first


@dataclass(frozen=True)
class Observed:
    """Failures of tasks that had today's ladder: ``count`` of each row, and the sum of their ``retries``.

    ``high``: the cell of the grid in which they recovered, where ``is_exhausted`` is false. ``cluster``: as in
    `Intervals`. Tasks that neither recovered nor used all retries do not belong here.
    """

    high: Ints
    is_exhausted: Flags
    retries: Floats
    count: Floats
    cluster: Ints

    def summary(self, options: Options) -> Summary | None:
        """Return the figures with their 95 % intervals; None if there are less failures than advice requires.

        Shares have the interval of Wilson, the other figures that of a bootstrap of whole clusters.
        """
        total = float(self.count.sum())
        if total < options.min_episodes:
            return None
        names, of = np.unique(self.cluster, return_inverse=True)
        once = np.ones((1, len(names)))
        times = np.concatenate([once, draws(len(names), options.bootstrap_rounds, options.seed)])
        figures = self._figures(times, of.ravel(), len(names), options)
        spread = {name: _quantiles(getattr(figures, name)) for name in FIGURES}
        share = float(figures.recovery[0])
        variance = figures.recovery[1:].var() if len(times) > 2 else 0.0
        # Where all recover, or none, the share does not vary: then each cluster is one observation.
        most = total if min(share, 1 - share) > 0 else len(names)
        trials = min(float(independent(share, variance)), most)
        low, high = (float(each) for each in wilson(share, trials, len(names)))
        spread |= {"recovery": (low, high), "exhausted": (1 - high, 1 - low)}
        return {name: (float(getattr(figures, name)[0]), *spread[name]) for name in FIGURES}

    def _figures(self, times: Floats, of: Ints, clusters: int, options: Options) -> Figures:
        """Return the figures (round) if each cluster counts as often as ``times`` (round, cluster) states."""
        over, cells = ~self.is_exhausted, options.grid.points + 1
        by_cell = np.bincount(of[over] * cells + self.high[over], self.count[over], clusters * cells)
        recovered = times @ by_cell.reshape(clusters, cells)
        failures, retries = (times @ np.bincount(of, each, clusters) for each in (self.count, self.retries))
        ended = np.cumsum(recovered, axis=1)
        with np.errstate(divide="ignore", invalid="ignore"):
            share = ended[:, -1] / failures
            mean = recovered @ options.grid.times / ended[:, -1]
        none = ended[:, -1] <= 0
        at = {name: (ended >= part * ended[:, -1:] - 1e-9).argmax(axis=1) for name, part in PERCENTILES.items()}
        parts = {name: np.where(none, np.nan, options.grid.times[each]) for name, each in at.items()}
        return Figures(recovery=share, attempts=retries / failures, mean_s=mean, exhausted=1 - share, **parts)


def _quantiles(values: Floats) -> tuple[float, float]:
    if len(values) < 3 or np.isnan(values).all():
        return np.nan, np.nan
    low, high = np.nanquantile(values[1:], (0.025, 0.975))
    return float(min(low, values[0])), float(max(high, values[0]))
