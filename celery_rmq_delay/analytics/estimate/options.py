"""The grid of times, and options of the estimate and of the search for a ladder, validated on creation."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...durations import MAX_TTL_MS, parse_ms
from ...exceptions import SettingsError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike, NDArray


@dataclass(frozen=True)
class Grid:
    """Times from ``first_s`` to at least ``last_s`` seconds, ``per_decade`` to a factor of ten.

    A time is rounded to the *nearest* point (of logarithms), for failed and successful attempts alike. Widening the
    interval instead - low down, high up - would put whole failures into the cell between the two: the maximum of the
    likelihood is then 0 before the cell and 1 after it, independent of the true share.
    At 50 points per decade a time is moved by at most 2.3 %: the share of an exponential by at most 0.009.
    """

    first_s: float
    last_s: float
    per_decade: int

    @property
    def points(self) -> int:
        """How many points there are."""
        return math.ceil(math.log10(self.last_s / self.first_s) * self.per_decade - 1e-9) + 1

    @property
    def times(self) -> NDArray[np.float64]:
        """Seconds of each cell: 0 for cell 0, then the points."""
        import numpy as np  # here, as the options of the commands do not need it

        steps = np.arange(self.points) / self.per_decade
        return np.concatenate(([0.0], self.first_s * 10.0**steps))

    def cells(self, seconds: ArrayLike) -> NDArray[np.int64]:
        """Return the cell of each time: 0 for times of 0 or less, 1 for the first point; never more than the last."""
        import numpy as np

        times = np.asarray(seconds, dtype=np.float64)
        steps = np.log10(np.maximum(times, self.first_s) / self.first_s) * self.per_decade
        cells = np.minimum(np.floor(steps + 0.5), self.points - 1) + 1
        return np.where(times > 0, cells, 0).astype(np.int64)


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
    `SettingsError` for what a user can set and cannot be used.
    """

    #: The times at which shares are estimated, in seconds after the first failure's end.
    grid: Grid = Grid(0.1, 7 * 24 * 3600.0, 50)
    #: Resampled histories; 0: no intervals.
    bootstrap_rounds: int = 200
    seed: int = 1
    #: Failures of one queue or task that can have ended within this many seconds are one outage: see `by_outage`.
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
    #: Ladders that are tried: all of these ascending delays that never decrease, with at most ``max_tiers`` tiers.
    max_tiers: int = 6
    delays_ms: tuple[int, ...] = tuple(parse_ms(each, "delays_ms") for each in HUMAN_DELAYS)

    def __post_init__(self) -> None:
        for name, least, most in _LIMITS:
            value = getattr(self, name)
            if value is not None and not least <= value <= most:
                is_whole = isinstance(least, int)
                limits = f"{least:,} to {most:,}" if is_whole else f"{least:,g} to {most:,g}"
                raise SettingsError(name, value, f"Use a {'whole ' * is_whole}number from {limits}.")
        ladders = math.comb(len(self.delays_ms) + self.max_tiers, self.max_tiers) - 1
        if ladders > MOST_LADDERS:
            hint = (
                f"{len(self.delays_ms)} delays make {ladders:,} ladders of that many tiers, and at most "
                f"{MOST_LADDERS:,} are tried. Use fewer tiers or fewer delays_ms."
            )
            raise SettingsError("max_tiers", self.max_tiers, hint)


#: The least and the greatest value of what a user can set; whole numbers if these are.
_LIMITS: tuple[tuple[str, float, float], ...] = (
    ("bootstrap_rounds", 0, 10_000),
    ("seed", 0, 2**63 - 1),
    ("min_episodes", 1, 10**12),
    ("max_tiers", 1, 12),
    ("min_recovery", 0.0, 1.0),
    ("delay_weight", 0.0, 100.0),
    ("max_median_s", 0.001, MAX_TTL_MS / 1000),
    ("max_p95_s", 0.001, MAX_TTL_MS / 1000),
)
