"""Figures of today's ladder as counted in the history, without any estimate. Pure NumPy."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...history.tables import FIGURES, PERCENTILES
from .intervals import Flags, Floats, Ints, draws
from .ladders import Figures, Summary
from .options import Options
from .wilson import independent, wilson


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

        Shares have the interval of Wilson, with the number of independent failures; the other figures that of a
        bootstrap of whole clusters.
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
        return Summary({name: (float(getattr(figures, name)[0]), *spread[name]) for name in FIGURES})

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
            parts = {
                name: options.grid.times[(ended >= part * ended[:, -1:] - 1e-9).argmax(axis=1)]
                for name, part in PERCENTILES.items()
            }
        none = ended[:, -1] <= 0
        parts = {name: np.where(none, np.nan, each) for name, each in parts.items()}
        return Figures(recovery=share, attempts=retries / failures, mean_s=mean, exhausted=1 - share, **parts)


def _quantiles(values: Floats) -> tuple[float, float]:
    if len(values) < 3 or np.isnan(values).all():
        return np.nan, np.nan
    low, high = np.nanquantile(values[1:], (0.025, 0.975))
    return float(min(low, values[0])), float(max(high, values[0]))
