"""Draw when tasks run and when their dependencies are down: seasons and outages, once per history."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from .distributions import Floats
from .spec import Dependency, Spec

#: Load by the hour of the day and by the day of the week, from Monday.
_HOURS = 1 + 0.7 * np.sin((np.arange(24) - 8) * np.pi / 12)
_WEEKDAYS = np.array([1.1, 1.0, 1.0, 1.0, 1.2, 0.7, 0.6])
_HOUR_S = 3_600


@dataclass(frozen=True)
class Season:
    """The daily and weekly load over the seconds from ``edges[0]``; ``mass`` is the amount run up to each edge."""

    edges: Floats
    mass: Floats

    def times(self, quantiles: Floats) -> Floats:
        """Return the seconds at which these shares (0 to 1) of all tasks have run."""
        return np.asarray(np.interp(quantiles * self.mass[-1], self.mass, self.edges))

    def mass_at(self, seconds: Floats) -> Floats:
        """Return the amount that has run up to ``seconds``."""
        return np.interp(seconds, self.edges, self.mass)


@dataclass(frozen=True)
class Downtime:
    """The outages of a dependency, in order and disjoint, in seconds; ``mass``: tasks affected by each."""

    starts: Floats
    ends: Floats
    mass: Floats
    #: Seconds until which tasks arrive.
    horizon: float

    def arrivals(self, random: np.random.Generator, quantiles: Floats) -> tuple[Floats, Floats]:
        """Return when tasks meet an outage, and how long it still lasts then, at these shares of all such tasks.

        Within an outage the times are uniformly distributed.
        """
        sums = np.cumsum(self.mass)
        which = np.minimum(np.searchsorted(sums, quantiles * sums[-1], side="right"), len(sums) - 1)
        at = self.starts[which] + random.random(len(which)) * (self.until - self.starts)[which]
        return at, self.ends[which] - at

    @property
    def until(self) -> Floats:
        """Return the ends of the outages, limited to the time at which the last tasks arrive."""
        return np.minimum(self.ends, self.horizon)


@dataclass(frozen=True)
class World:
    """The part that all chunks of a history share."""

    season: Season
    #: By the index of the dependency; empty if failures are independent.
    downtimes: tuple[Downtime, ...]


@lru_cache(maxsize=4)
def world_of(spec: Spec) -> World:
    """Return the world of a history; the same for the same ``spec``."""
    season = _season(spec)
    if spec.outages == "independent":
        return World(season, ())
    randoms = [np.random.default_rng([spec.seed, 1, index]) for index in range(len(spec.shop.dependencies))]
    downtimes = [
        _downtime(each, spec.days, season, random) for each, random in zip(spec.shop.dependencies, randoms, strict=True)
    ]
    return World(season, tuple(downtimes))


def _season(spec: Spec) -> Season:
    begin = spec.skew_s + 1.0
    end = begin + spec.span_s
    edges = np.unique(np.clip(np.arange(0, spec.days * 24 + 1) * float(_HOUR_S), begin, end))
    hours = (edges[:-1] // _HOUR_S).astype(int)
    loads = _HOURS[hours % 24] * _WEEKDAYS[(spec.start.weekday() + hours // 24) % 7]
    return Season(edges, np.concatenate([[0.0], np.cumsum(loads * np.diff(edges))]))


def _downtime(dependency: Dependency, days: int, season: Season, random: np.random.Generator) -> Downtime:
    """Draw a dependency's outages; an outage that would begin before the previous one is over is dropped.

    Dropping depends on the duration of the previous outage, not on that of the dropped one, so the distribution of
    durations is unchanged.
    """
    count = max(1, int(random.poisson(dependency.outages_per_day * days)))
    starts = np.sort(season.times(random.random(count)))
    ends = starts + dependency.lasting.draw(random, count)
    kept, over = [], -np.inf
    for index in range(count):
        if starts[index] > over:
            kept.append(index)
            over = ends[index]
    starts, ends = starts[kept], ends[kept]
    mass = season.mass_at(ends) - season.mass_at(starts)
    return Downtime(starts, ends, mass, season.edges[-1])
