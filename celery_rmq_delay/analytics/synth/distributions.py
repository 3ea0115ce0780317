"""Distributions of how long failures last, with random draws and exact shares. Times in seconds."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from ...exceptions import SettingsError

Floats: TypeAlias = npt.NDArray[np.float64]


class Distribution(Protocol):
    """The distribution of how long a dependency's failures last."""

    def draw(self, random: np.random.Generator, count: int) -> Floats:
        """Return ``count`` durations in seconds."""

    def over(self, seconds: Floats) -> Floats:
        """Return the share of failures that last at most this many seconds."""

    def describe(self) -> dict[str, object]:
        """Return name and parameters, for the truth."""


@dataclass(frozen=True)
class Exponential:
    """Failures that end at a constant rate."""

    mean_s: float

    def __post_init__(self) -> None:
        _positive("Exponential.mean_s", self.mean_s)

    def draw(self, random: np.random.Generator, count: int) -> Floats:
        """See `Distribution`."""
        return random.exponential(self.mean_s, count)

    def over(self, seconds: Floats) -> Floats:
        """See `Distribution`."""
        return -np.expm1(-seconds / self.mean_s)

    def describe(self) -> dict[str, object]:
        """See `Distribution`."""
        return {"name": "exponential", "mean_s": self.mean_s}


@dataclass(frozen=True)
class Lognormal:
    """Failures of which half last at most ``median_s``, and some very long; ``sigma`` is the one of the logarithm."""

    median_s: float
    sigma: float

    def __post_init__(self) -> None:
        _positive("Lognormal.median_s", self.median_s)
        _positive("Lognormal.sigma", self.sigma)

    def draw(self, random: np.random.Generator, count: int) -> Floats:
        """See `Distribution`."""
        return random.lognormal(math.log(self.median_s), self.sigma, count)

    def over(self, seconds: Floats) -> Floats:
        """See `Distribution`."""
        share = [
            0.5 * math.erfc(-math.log(t / self.median_s) / (self.sigma * math.sqrt(2))) if t > 0 else 0.0
            for t in seconds
        ]
        return np.asarray(share)

    def describe(self) -> dict[str, object]:
        """See `Distribution`."""
        return {"name": "lognormal", "median_s": self.median_s, "sigma": self.sigma}


@dataclass(frozen=True)
class Mixture:
    """A ``share`` of the failures follows ``short``, the rest ``long``: blips and outages."""

    short: Distribution
    long: Distribution
    share: float

    def __post_init__(self) -> None:
        check_share("Mixture.share", self.share)

    def draw(self, random: np.random.Generator, count: int) -> Floats:
        """See `Distribution`."""
        is_short = random.random(count) < self.share
        return np.where(is_short, self.short.draw(random, count), self.long.draw(random, count))

    def over(self, seconds: Floats) -> Floats:
        """See `Distribution`."""
        return self.share * self.short.over(seconds) + (1 - self.share) * self.long.over(seconds)

    def describe(self) -> dict[str, object]:
        """See `Distribution`."""
        parts = {"short": self.short.describe(), "long": self.long.describe()}
        return {"name": "bimodal", "share": self.share, **parts}


def check_share(what: str, found: float) -> None:
    """Raise `SettingsError` if ``found`` is not a share."""
    if not 0 <= found <= 1:
        raise SettingsError(what, found, "It must be a share between 0 and 1.")


def _positive(what: str, found: float) -> None:
    if not 0 < found < math.inf:
        raise SettingsError(what, found, "It must be a positive, finite number.")


#: The distributions by their names on the command line.
NAMED: dict[str, Distribution] = {
    "exponential": Exponential(mean_s=120.0),
    "lognormal": Lognormal(median_s=90.0, sigma=1.2),
    "bimodal": Mixture(Lognormal(8.0, 0.5), Lognormal(900.0, 0.4), share=0.6),
}
