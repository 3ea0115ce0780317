"""The curve and a ladder's figures in plain Python: plain expectation-maximisation, one loop for each sum.

Written independently of the package's estimator, for small histories. Time is rounded as in `Grid`, and few looks are
pooled as in `docs/explanation/ladder-advice.md`: both belong to the definition of the tables.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

FIRST_S, PER_DECADE, FEW = 0.1, 50, 20


def step(seconds):
    """Return the number of the nearest point of the grid, 1 for the first."""
    return math.floor(math.log10(max(seconds, FIRST_S) / FIRST_S) * PER_DECADE + 0.5) + 1


@dataclass
class Reference:
    """The mass of the curve: the numbers of points, and their mass."""

    mass: dict[int, float]

    def at(self, seconds):
        return sum(mass for point, mass in self.mass.items() if point <= step(seconds))


def counted(looks, total):
    """Return the point at which each look counts, and the points with enough looks by then."""
    few = max(min(20, total / 20), total / 1000)
    groups = [[point, count, [point]] for point, count in sorted(looks.items())]
    while True:
        for group in sorted(groups, key=lambda group: group[1]):
            at = groups.index(group)
            near = [each for each in groups[max(at - 1, 0) : at + 2] if each is not group and apart(each, group) <= 5]
            if group[1] < few and near:
                break
        else:
            break
        into = min(near, key=lambda each: (each[1] >= few, apart(each, group)))
        groups.remove(group)
        into[0] = into[0] if into[1] >= few else max(into[0], group[0])
        into[1] += group[1]
        into[2] += group[2]
    enough = min(few, max(count for _, count, _ in groups))
    places = {point: place for place, _, points in groups for point in points}
    return places, [place for place, count, _ in groups if count >= enough]


def apart(one, other):
    return abs(one[0] - other[0])


def reference_shares(lows, highs, rounds=4000):
    pairs = []
    for low, high in zip(lows, highs, strict=True):
        until = math.inf if math.isnan(high) else step(high)
        since = 0 if low <= 0 else step(low)
        if since or until < math.inf:
            pairs.append((min(since, until - 1), until))
    looks = Counter(point for pair in pairs for point in pair if 0 < point < math.inf)
    places, enough = counted(looks, len(pairs))
    before = {point: max((each for each in enough if each <= place), default=0) for point, place in places.items()}
    after = {
        point: min((each for each in enough if each >= place), default=math.inf) for point, place in places.items()
    }
    before[0], after[math.inf] = 0, math.inf
    pairs = Counter((min(before[low], after[high] - 1), after[high]) for low, high in pairs)
    lasts = sorted({high for _, high in pairs} | {math.inf})
    mass = {last: 1 / len(lasts) for last in lasts}
    total = sum(pairs.values())
    for _ in range(rounds):
        new = dict.fromkeys(lasts, 0.0)
        for (low, high), count in pairs.items():
            inside = [last for last in lasts if low < last <= high]
            chance = sum(mass[last] for last in inside)
            for last in inside:
                new[last] += count * mass[last] / chance / total
        mass = new
    return Reference(mass)


def reference_figures(shares, found, ladder):
    """Return recovery, attempts, median_s, p95_s and exhausted; retries are late by the median of what was seen."""
    lateness = []
    for low, high, failed, waited in zip(found.low, found.high, found.failed_attempts, found.waited, strict=True):
        retries = failed if not math.isnan(high) else failed - 1
        if retries > 0:
            ended = low if math.isnan(high) else high
            lateness.append((ended - waited) / retries)
    late = max(sorted(lateness)[(len(lateness) - 1) // 2], 0)
    attempts, recovered, before, time = 0.0, [], 0.0, 0.0
    for delay in ladder:
        attempts += 1 - before
        time += delay + late
        before = shares.at(time)
        recovered.append((time, before))

    def quantile(part):
        return next(time for time, share in recovered if share >= part * before - 1e-6)

    return {
        "recovery": before,
        "attempts": attempts,
        "median_s": quantile(0.5),
        "p95_s": quantile(0.95),
        "exhausted": 1 - before,
    }
