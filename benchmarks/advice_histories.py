"""Failures whose true end is known, and what a ladder shows of them: histories for the benchmark of the advice.

Nothing here comes from the analytics or its synthetic histories, so that an error there is not repeated here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

DAY = 86_400.0
DAYS = 30

#: Median seconds from the planned delay to the end of a retry: waiting for a worker, and running.
LATE_S = 0.5


@dataclass(frozen=True)
class Failures:
    """When each failure began, and how long it lasted, in seconds; infinite: it never ended."""

    began: Floats
    lasts: Floats


def _short(draw: Callable[[np.random.Generator, int], Floats]) -> Callable[[np.random.Generator, int], Failures]:
    """Return a truth in which every failure is on its own."""
    return lambda random, count: Failures(random.uniform(0, DAYS * DAY, count), draw(random, count))


def _mixed(random: np.random.Generator, part: float, one: Floats, other: Floats) -> Floats:
    return np.where(random.random(len(one)) < part, one, other)


def _bugs(random: np.random.Generator, count: int) -> Failures:
    """Failures of bugs end with the next deploy, twice a day; others are short."""
    began = random.uniform(0, DAYS * DAY, count)
    deploys = np.sort(np.append(random.uniform(0, (DAYS + 3) * DAY, 2 * (DAYS + 3)), (DAYS + 4) * DAY))
    until_deploy = deploys[np.searchsorted(deploys, began)] - began
    return Failures(began, _mixed(random, 0.3, until_deploy, random.exponential(15, count)))


def _outages(random: np.random.Generator, count: int) -> Failures:
    """Failures begin at random times of an outage, and all of them end with it."""
    outages = max(20, count // 10)
    starts, lasting = random.uniform(0, DAYS * DAY, outages), random.lognormal(np.log(400), 1.0, outages)
    of = random.choice(outages, count, p=lasting / lasting.sum())
    passed = random.random(count) * lasting[of]
    return Failures(starts[of] + passed, lasting[of] - passed)


TRUTHS: Mapping[str, Callable[[np.random.Generator, int], Failures]] = {
    "exponential": _short(lambda random, count: random.exponential(240, count)),
    "lognormal": _short(lambda random, count: random.lognormal(np.log(90), 1.2, count)),
    "bimodal": _short(
        lambda random, count: _mixed(
            random, 0.6, random.exponential(8, count), random.lognormal(np.log(1200), 0.5, count)
        )
    ),
    "Pareto": _short(lambda random, count: 3 * random.pareto(0.8, count)),
    "seconds": _short(
        lambda random, count: _mixed(
            random, 0.98, random.uniform(0.1, 7, count), np.exp(random.uniform(np.log(12), np.log(3500), count))
        )
    ),
    "half never": _short(
        lambda random, count: _mixed(random, 0.5, np.full(count, np.inf), random.exponential(240, count))
    ),
    "bugs": _bugs,
    "outages": _outages,
}


@dataclass(frozen=True)
class Seen:
    """The last failed attempt and the first successful one of each failure, in seconds; NaN: there was none.

    ``retries``: how many have ended.
    """

    low: Floats
    high: Floats
    retries: Floats


def seen(lasts: Floats, random: np.random.Generator, ladders: Sequence[Sequence[int]], jitter: float) -> Seen:
    """Return what ladders in milliseconds, one at random for each failure, show of failures."""
    tiers = max(map(len, ladders))
    delays = np.array([[*ladder, *[np.nan] * (tiers - len(ladder))] for ladder in ladders]) / 1000
    steps = delays[random.integers(0, len(ladders), len(lasts))]
    steps = steps * random.uniform(1 - jitter, 1 + jitter, steps.shape)
    ends = np.cumsum(steps + random.exponential(LATE_S / np.log(2), steps.shape), axis=1)
    # NaN: no attempt, the ladder has ended.
    ends = np.column_stack([np.zeros(len(lasts)), ends, np.full(len(lasts), np.nan)])
    every, at = np.arange(len(lasts)), (ends < lasts[:, None]).sum(axis=1)
    return Seen(ends[every, at - 1], ends[every, at], at - np.isnan(ends[every, at]))
