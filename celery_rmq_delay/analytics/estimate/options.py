"""Options of the estimate and of the search for a ladder, validated on creation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ...durations import MAX_TTL_MS, parse_ms
from ...exceptions import SettingsError
from .grid import Grid

#: Round delays: the tiers of the ladders that are tried.
HUMAN_DELAYS = (
    "1s", "2s", "5s", "10s", "15s", "30s", "1m", "2m", "5m", "10m", "15m", "30m", "1h", "2h", "4h", "8h", "12h", "24h",
)  # fmt: skip

#: Most ladders that are tried for one queue: time and memory of the search grow with their number.
MOST_LADDERS = 2_000_000


@dataclass(frozen=True, kw_only=True)
class Options:
    """Grid and bootstrap of the estimate, the data required for advice, and the limits of an advised ladder.

    Limits ``min_recovery`` (share), ``max_median_s`` and ``max_p95_s`` (seconds) that are None are taken from today's
    ladder, as those of the mean and of the other percentiles: an advised ladder recovers at most ``recovery_tolerance``
    (share) less, and its times to recovery are at most ``time_tolerance`` (share of them) longer. Raises
    `SettingsError` for invalid values.
    """

    #: Logarithmic grid of times, in seconds after the first failure's end.
    grid_first_s: float = 0.1
    grid_last_s: float = 7 * 24 * 3600.0
    points_per_decade: int = 50
    #: Resampled histories; 0: no intervals.
    bootstrap_rounds: int = 200
    seed: int = 1
    #: Failures of one queue or task that can have ended within this many seconds are one outage: see `outages`.
    cluster_s: int = 3600
    #: With less than any of these there is no advice; clusters are those of equal size that would be as informative.
    min_episodes: int = 200
    min_recovered: int = 50
    min_clusters: int = 5
    min_recovery: float | None = None
    max_median_s: float | None = None
    max_p95_s: float | None = None
    recovery_tolerance: float = 0.005
    time_tolerance: float = 0.2
    #: The cost of a ladder: retries per failure, plus this many for a mean time to recovery as long as today's.
    delay_weight: float = 1.0
    #: Least part of today's cost that another ladder must save.
    least_saving: float = 0.1
    #: Advice is tried on the failures of the last days, which it does not know: see `backtest`.
    backtest_days: float = 7
    #: Ladders that are tried: all of these delays (milliseconds) that never decrease, with at most ``max_tiers`` tiers.
    max_tiers: int = 6
    delays_ms: Sequence[int] = tuple(parse_ms(each, "delays_ms") for each in HUMAN_DELAYS)

    def __post_init__(self) -> None:
        object.__setattr__(self, "delays_ms", tuple(sorted(set(self.delays_ms))))
        _require_number("grid_first_s", self.grid_first_s, 0.001, 3600)
        _require_number("grid_last_s", self.grid_last_s, 10 * self.grid_first_s, MAX_TTL_MS / 1000)
        for name, least, most in _WHOLE:
            _require_whole(name, getattr(self, name), least, most)
        for name, least, most in _SHARES:
            _require_number(name, getattr(self, name), least, most)
        for name in ("max_median_s", "max_p95_s"):
            _require_number(name, getattr(self, name), 0.001, MAX_TTL_MS / 1000)
        self._check_ladders()

    def _check_ladders(self) -> None:
        if not self.delays_ms:
            raise SettingsError("delays_ms", self.delays_ms, "Give at least one delay in milliseconds.")
        for each in self.delays_ms:
            _require_whole("delays_ms", each, 1, MAX_TTL_MS)
        ladders = math.comb(len(self.delays_ms) + self.max_tiers, self.max_tiers) - 1
        if ladders > MOST_LADDERS:
            raise SettingsError(
                "max_tiers",
                self.max_tiers,
                f"{len(self.delays_ms)} delays make {ladders:,} ladders of that many tiers, and at most "
                f"{MOST_LADDERS:,} are tried. Use fewer tiers or fewer delays_ms.",
            )

    @property
    def grid(self) -> Grid:
        """The times at which shares are estimated."""
        return Grid(self.grid_first_s, self.grid_last_s, self.points_per_decade)


_WHOLE = (
    ("points_per_decade", 5, 200),
    ("bootstrap_rounds", 0, 10_000),
    ("seed", 0, 2**63 - 1),
    ("cluster_s", 1, 31 * 24 * 3600),
    ("min_episodes", 1, 10**12),
    ("min_recovered", 1, 10**12),
    ("min_clusters", 1, 10**9),
    ("max_tiers", 1, 12),
)
_SHARES = (
    ("min_recovery", 0, 1),
    ("recovery_tolerance", 0, 1),
    ("time_tolerance", 0, 10),
    ("delay_weight", 0, 100),
    ("least_saving", 0, 1),
    ("backtest_days", 0, 366),
)


def _require_whole(name: str, value: object, least: int, most: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise SettingsError(name, value, f"Use a whole number from {least:,} to {most:,}.")


def _require_number(name: str, value: object, least: float, most: float) -> None:
    if value is None and name in ("min_recovery", "max_median_s", "max_p95_s"):
        return
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not least <= value <= most:
        raise SettingsError(name, value, f"Use a number from {least:,g} to {most:,g}.")
