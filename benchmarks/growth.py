"""Decide whether a value grows: a line through samples, the confidence interval of its slope, and a verdict."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

#: 95 % of a normal distribution are within this many standard errors.
_SURE = 1.96
#: Fewest samples for a meaningful line.
_FEWEST = 8


@dataclass(frozen=True)
class Trend:
    """The line through samples, by least squares; of ``seconds``, values in the samples' unit.

    ``low`` and ``high`` bound the slope with 95 % confidence. The standard error accounts for the correlation of
    neighbouring samples: it uses the equivalent number of independent samples.
    """

    first: float
    last: float
    seconds: float
    per_hour: float
    low: float
    high: float

    @property
    def growth(self) -> float:
        """The rise of the line over all samples."""
        return self.per_hour * self.seconds / 3600

    def verdict(self, bound: float) -> str:
        """Return ``flat`` if the rise is within the bound, ``grows`` if it is significant, otherwise ``unclear``."""
        if self.growth <= bound:
            return "flat"
        return "grows" if self.low > 0 else "unclear"


def trend(times: Sequence[float], values: Sequence[float], after: float = 0.0) -> Trend | None:
    """Fit a line through the samples from ``after`` (seconds, as ``times``) on; None if there are too few."""
    kept = [(time, value) for time, value in zip(times, values, strict=True) if time >= after]
    if len(kept) < _FEWEST:
        return None
    count = len(kept)
    mean_time = math.fsum(time for time, _ in kept) / count
    mean_value = math.fsum(value for _, value in kept) / count
    spread = math.fsum((time - mean_time) ** 2 for time, _ in kept)
    slope = math.fsum((time - mean_time) * (value - mean_value) for time, value in kept) / spread
    rests = [value - mean_value - slope * (time - mean_time) for time, value in kept]
    error = math.sqrt(math.fsum(rest**2 for rest in rests) / (count - 2) / spread) * _inflation(rests)
    begin, end = kept[0][0], kept[-1][0]
    low, high = (3600 * (slope + sign * _SURE * error) for sign in (-1, 1))
    at = [mean_value + slope * (time - mean_time) for time in (begin, end)]
    return Trend(at[0], at[1], end - begin, 3600 * slope, low, high)


def _inflation(rests: Sequence[float]) -> float:
    """Return the factor by which the error of a slope grows because of correlated residuals (AR(1))."""
    total = math.fsum(rest**2 for rest in rests)
    if not total:
        return 1.0
    alike = math.fsum(one * other for one, other in pairwise(rests)) / total
    alike = min(0.99, max(0.0, alike))
    return math.sqrt((1 + alike) / (1 - alike))
