"""The curve and a ladder's figures in plain Python: plain expectation-maximisation, one loop for each sum.

Written independently of the package's estimator, for small histories. Time is rounded as in `Grid`, and knots are
chosen as in `docs/explanation/ladder-advice.md`: both belong to the definition of the tables.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from dataclasses import dataclass

FIRST_S, PER_DECADE = 0.1, 50


def step(seconds):
    """Return the number of the nearest point of the grid, 1 for the first."""
    return math.floor(math.log10(max(seconds, FIRST_S) / FIRST_S) * PER_DECADE + 0.5) + 1


def seconds(point):
    return 0.0 if point == 0 else FIRST_S * 10 ** ((point - 1) / PER_DECADE)


@dataclass
class Reference:
    """The curve: the knots, the mass of the step up to each of them, and the failures that it is made of."""

    knots: list[int]
    mass: list[float]
    pairs: list[tuple[int, float]]

    def at(self, time):
        """Return the share that has ended: what the steps have, but not less than was seen to end by then."""
        point, total = step(time), len(self.pairs)
        share = sum(
            mass * part(0, point, *each, self.knots[1])
            for mass, each in zip(self.mass, steps(self.knots), strict=False)
        )
        ended = sum(high <= point for _, high in self.pairs) / total
        lasting = sum(low >= point for low, _ in self.pairs) / total
        return min(max(share, ended), 1 - lasting)


def steps(knots):
    return list(itertools.pairwise(knots))


def place(point, first):
    """Return the coordinate in which failures end evenly: time before the first knot, then its logarithm."""
    return seconds(point) / seconds(first) if point < first else 1 + point - first


def part(low, high, begin, end, first):
    """Return the part of a step between two knots that is in an interval."""
    at, until, begin, end = (place(each, first) for each in (low, high, begin, end))
    return max(0.0, min(until, end) - max(at, begin)) / (end - begin)


def knots_of(pairs):
    looks = Counter(point for pair in pairs for point in pair if 0 < point < math.inf)
    groups = []
    for point in sorted(looks):
        if groups and point - groups[-1][0] < 5:
            groups[-1].append(point)
        else:
            groups.append([point])
    kept = [each for each in groups if looked(each, looks) >= 0.05 * sum(high >= each[0] for _, high in pairs)]
    means = [round(sum(point * looks[point] for point in each) / looked(each, looks)) for each in kept]
    return sorted({0, *means, kept[-1][-1]})


def looked(group, looks):
    return sum(looks[point] for point in group)


def reference_shares(lows, highs, rounds=4000):
    pairs = []
    for low, high in zip(lows, highs, strict=True):
        until = math.inf if math.isnan(high) else step(high)
        since = 0 if low <= 0 else step(low)
        if since or until < math.inf:
            pairs.append((min(since, until - 1), until))
    knots = knots_of(pairs)
    between = steps(knots)
    counted = Counter(pairs)
    # The last step is everything after the last knot.
    parts = {
        (low, high): [*(part(low, min(high, knots[-1]), *each, knots[1]) for each in between), float(high > knots[-1])]
        for low, high in counted
    }
    mass = [1 / (len(between) + 1)] * (len(between) + 1)
    for _ in range(rounds):
        new = [0.0] * len(mass)
        for pair, count in counted.items():
            inside = [each * of for each, of in zip(mass, parts[pair], strict=True)]
            for at, each in enumerate(inside):
                new[at] += count * each / sum(inside) / len(pairs)
        mass = new
    return Reference(knots, mass, pairs)


def reference_figures(shares, found, ladder):
    """Return the figures of a ladder; retries are late by the median of what was seen."""
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

    ended = [share for _, share in recovered]
    mean = sum(time * (share - earlier) for (time, share), earlier in zip(recovered, [0.0, *ended], strict=False))
    return {
        "recovery": before,
        "attempts": attempts,
        "mean_s": mean / before,
        "p25_s": quantile(0.25),
        "median_s": quantile(0.5),
        "p75_s": quantile(0.75),
        "p95_s": quantile(0.95),
        "p99_s": quantile(0.99),
        "exhausted": 1 - before,
    }
