"""Draw tasks that fail: seasons and outages of a history, and attempts by the ladder of their queue. No I/O."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from .spec import LONGEST_RUNTIME, LONGEST_WAIT_S, WAIT_S, Dependency, Floats, Spec

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
    """Outages in order and disjoint, in seconds; ``mass``: tasks affected by each; tasks arrive until ``horizon``."""

    starts: Floats
    ends: Floats
    mass: Floats
    horizon: float

    def arrivals(self, random: np.random.Generator, quantiles: Floats) -> tuple[Floats, Floats]:
        """Return when tasks meet an outage, at these shares of all such tasks, and how long it still lasts then."""
        sums = np.cumsum(self.mass)
        which = np.minimum(np.searchsorted(sums, quantiles * sums[-1], side="right"), len(sums) - 1)
        until = np.minimum(self.ends, self.horizon)
        at = self.starts[which] + random.random(len(which)) * (until - self.starts)[which]
        return at, self.ends[which] - at


@dataclass(frozen=True)
class World:
    """What all chunks of a history share; ``downtimes``: by dependency, none if failures are independent."""

    season: Season
    downtimes: tuple[Downtime, ...]


@lru_cache(maxsize=4)
def world_of(spec: Spec) -> World:
    """Return the world of a history; the same for the same ``spec``."""
    season = _season(spec)
    if spec.outages == "independent":
        return World(season, ())
    seeded = ((each, [spec.seed, 1, index]) for index, each in enumerate(spec.shop.dependencies))
    return World(
        season, tuple(_downtime(each, spec.days, season, np.random.default_rng(seed)) for each, seed in seeded)
    )


def _season(spec: Spec) -> Season:
    begin = spec.skew_s + 1.0
    end = begin + spec.span_s
    edges = np.unique(np.clip(np.arange(0, spec.days * 24 + 1) * float(_HOUR_S), begin, end))
    hours = (edges[:-1] // _HOUR_S).astype(int)
    loads = _HOURS[hours % 24] * _WEEKDAYS[(spec.start.weekday() + hours // 24) % 7]
    return Season(edges, np.concatenate([[0.0], np.cumsum(loads * np.diff(edges))]))


def _downtime(dependency: Dependency, days: int, season: Season, random: np.random.Generator) -> Downtime:
    """Draw a dependency's outages. One that would begin before the previous one is over is dropped."""
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


Ints: TypeAlias = npt.NDArray[np.int64]
Flags: TypeAlias = npt.NDArray[np.bool_]

#: Outcomes of a task.
RECOVERED, USED_UP, GAVE_UP, CRASHED, DISCARDED = range(5)

_RUNTIME_SIGMA = 0.5
#: The most failure episodes that are drawn at once, and the fewest.
_MOST, _FEWEST = 100_000, 64


@dataclass(frozen=True)
class Episodes:
    """Tasks from their first failure on, in arrays of one length; ``ends`` and ``runtimes`` have a column per attempt.

    ``origin``: seconds from the history's start to the end of the first failed attempt. ``lasts``: from then until the
    cause of the failure is over; ``ends`` count from then, too. ``half``: which of the queue's ladders, 0 or 1.
    """

    task: Ints
    origin: Floats
    lasts: Floats
    half: Ints
    outcome: Ints
    attempts: Ints
    ends: Floats
    runtimes: Floats

    def __getitem__(self, which: object) -> Episodes:
        return Episodes(*(getattr(self, each.name)[which] for each in fields(self)))

    def __len__(self) -> int:
        return len(self.task)

    @property
    def is_informative(self) -> Flags:
        """Whether the retries show how long the failure lasts: not for tasks that gave up or crashed the worker."""
        return np.asarray((self.outcome != GAVE_UP) & (self.outcome != CRASHED))


def ladder_table(spec: Spec) -> tuple[Floats, Ints]:
    """Return delays in ms and tiers by task and half; the delays after the last tier are 0."""
    ladders = {queue.name: queue.ladders() for queue in spec.shop.queues}
    width = max(len(ladder) for both in ladders.values() for ladder in both)
    delays = np.zeros((len(spec.shop.tasks), 2, width))
    tiers = np.zeros((len(spec.shop.tasks), 2), dtype=np.int64)
    for index, task in enumerate(spec.shop.tasks):
        for half, ladder in enumerate(ladders[task.queue]):
            delays[index, half, : len(ladder)] = ladder
            tiers[index, half] = len(ladder)
    return delays, tiers


def draw_episodes(
    spec: Spec, world: World, random: np.random.Generator, attempts: int, share: tuple[float, float]
) -> Episodes:
    """Draw failure episodes with exactly this many attempts, between these shares (0 to 1) of all failing tasks."""
    parts, missing = [], attempts
    while missing:
        drawn = _draw(spec, world, random, min(max(missing // 2, _FEWEST), _MOST), share)
        fitting = int(np.searchsorted(np.cumsum(drawn.attempts), missing, side="right"))
        parts.append(drawn[:fitting])
        missing -= int(drawn.attempts[:fitting].sum())
        if fitting < len(drawn):
            again = drawn[np.full(missing, fitting)]
            outcome, once = np.full_like(again.outcome, GAVE_UP), np.ones_like(again.attempts)
            parts.append(replace(again, outcome=outcome, attempts=once))
            missing = 0
    return Episodes(*(np.concatenate([getattr(part, each.name) for part in parts]) for each in fields(Episodes)))


def _draw(spec: Spec, world: World, random: np.random.Generator, count: int, share: tuple[float, float]) -> Episodes:
    task, origin, lasts = _failures(spec, world, random, count, share)
    hard = np.array([each.hard for each in spec.shop.dependencies])[_dependencies(spec)[task]]
    lasts[random.random(count) < hard] = np.inf
    half = (origin >= spec.days * 43_200).astype(np.int64)
    delays, tiers = ladder_table(spec)
    ends, runtimes = _ends(spec, random, task, delays[task, half] / 1000)
    attempts, outcome = _attempts(random, spec, ends, lasts, tiers[task, half])
    return Episodes(task, origin, lasts, half, outcome, attempts, ends, runtimes)


def _dependencies(spec: Spec) -> Ints:
    """Return the index of each task's dependency."""
    names = [each.name for each in spec.shop.dependencies]
    return np.array([names.index(task.dependency) for task in spec.shop.tasks])


def _failures(
    spec: Spec, world: World, random: np.random.Generator, count: int, share: tuple[float, float]
) -> tuple[Ints, Floats, Floats]:
    """Draw which tasks fail, when they fail first, and for how long."""
    of_task = _dependencies(spec)
    weights = np.array([task.rate for task in spec.shop.tasks])
    if world.downtimes:
        weights = weights * np.array([each.mass.sum() for each in world.downtimes])[of_task]
    task = random.choice(len(weights), count, p=weights / weights.sum()).astype(np.int64)
    quantiles = share[0] + random.random(count) * (share[1] - share[0])
    origin, lasts = np.empty(count), np.empty(count)
    for index, dependency in enumerate(spec.shop.dependencies):
        mine = np.flatnonzero(of_task[task] == index)
        if world.downtimes:
            origin[mine], lasts[mine] = world.downtimes[index].arrivals(random, quantiles[mine])
        else:
            origin[mine] = world.season.times(quantiles[mine])
            lasts[mine] = dependency.lasting.draw(random, len(mine))
    return task, origin, lasts


def _ends(spec: Spec, random: np.random.Generator, task: Ints, delays_s: Floats) -> tuple[Floats, Floats]:
    """Return when each attempt ends, in seconds from the end of the first, and how long it runs."""
    count, width = delays_s.shape
    medians = np.array([each.runtime_ms for each in spec.shop.tasks]) / 1000
    runtimes = medians[task][:, None] * random.lognormal(0.0, _RUNTIME_SIGMA, (count, width + 1))
    runtimes = np.minimum(runtimes, LONGEST_RUNTIME * medians[task][:, None])
    waits = np.minimum(random.exponential(WAIT_S, (count, width)), LONGEST_WAIT_S)
    steps = delays_s + waits + runtimes[:, 1:]
    return np.concatenate([np.zeros((count, 1)), np.cumsum(steps, axis=1)], axis=1), runtimes


def _attempts(random: np.random.Generator, spec: Spec, ends: Floats, lasts: Floats, tiers: Ints) -> tuple[Ints, Ints]:
    """Return how many attempts each makes, and how it ends."""
    count = len(lasts)
    over = ends[:, 1:] >= lasts[:, None]
    first = np.where(over.any(axis=1), over.argmax(axis=1) + 1, ends.shape[1])
    outcome = np.where(first <= tiers, RECOVERED, USED_UP)
    attempts = np.minimum(first, tiers) + 1
    fate = random.random(count)
    for end, share in ((GAVE_UP, (0.0, spec.gave_up)), (CRASHED, (spec.gave_up, spec.gave_up + spec.poison))):
        mine = (share[0] <= fate) & (fate < share[1])
        outcome[mine], attempts[mine] = end, 1
    cut = np.flatnonzero((random.random(count) < spec.discarded) & (attempts > 1))
    attempts[cut] = random.integers(1, attempts[cut])
    outcome[cut] = DISCARDED
    return attempts.astype(np.int64), outcome.astype(np.int64)
