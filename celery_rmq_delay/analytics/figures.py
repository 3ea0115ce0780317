"""The names of a ladder's figures, in the order of the tables' columns."""

from __future__ import annotations

#: Percentiles of the time to recovery, as shares.
PERCENTILES = {"p25_s": 0.25, "median_s": 0.5, "p75_s": 0.75, "p95_s": 0.95, "p99_s": 0.99}

#: Times to recovery in seconds.
TIMES = ("mean_s", *PERCENTILES)

FIGURES = ("recovery", "attempts", *TIMES, "exhausted")

#: Those that a backtest compares.
BACKTEST_FIGURES = ("recovery", "attempts", "mean_s", "p95_s", "exhausted")
