"""Failures with a known share over by t, as seen by ladders: data to test the estimate and the advice."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from celery_rmq_delay.analytics.estimate.intervals import Intervals
from celery_rmq_delay.analytics.estimate.options import Grid, Options

HARD = np.inf


def ms(ladder):
    """Return the tiers of a ladder in milliseconds; they are given in seconds."""
    return tuple(1000 * each for each in ladder)


@dataclass(frozen=True)
class Truth:
    """How to draw the seconds that failures last, and the share that is over by t."""

    draw: Callable[[np.random.Generator, int], np.ndarray]
    share: Callable[[np.ndarray], np.ndarray]


def exponential(mean):
    return Truth(lambda random, count: random.exponential(mean, count), lambda t: 1 - np.exp(-np.asarray(t) / mean))


def lognormal(median, sigma):
    def share(t):
        steps = np.log(np.maximum(t, 1e-9) / median) / sigma / math.sqrt(2)
        return 0.5 * (1 + np.vectorize(math.erf)(steps))

    return Truth(lambda random, count: random.lognormal(math.log(median), sigma, count), share)


def mixed(part, one, other):
    def draw(random, count):
        return np.where(random.random(count) < part, one.draw(random, count), other.draw(random, count))

    return Truth(draw, lambda t: part * one.share(t) + (1 - part) * other.share(t))


NEVER = Truth(lambda random, count: np.full(count, HARD), lambda t: np.zeros(np.shape(t)))

TRUTHS = {
    "exponential": exponential(120),
    "lognormal": lognormal(300, 1.0),
    "bimodal": mixed(0.6, exponential(20), lognormal(1800, 0.5)),
    "half hard": mixed(0.5, NEVER, exponential(120)),
}


@dataclass(frozen=True)
class Seen:
    """Failures in a history, in seconds; ``high`` is NaN where a failure was not seen over."""

    low: np.ndarray
    high: np.ndarray
    cluster: np.ndarray
    failed_attempts: np.ndarray
    ladder: np.ndarray
    #: Seconds of planned delays before the last attempt.
    waited: np.ndarray


def seen(truth: Truth, count: int, ladders: Sequence[Sequence[float]], seed: int, jitter=0.25, clusters=200) -> Seen:
    """Return failures as seen by ladders (seconds; one at random for each failure), a bit late every time."""
    random = np.random.default_rng(seed)
    return inspected(truth.draw(random, count), random.integers(0, clusters, count), ladders, random, jitter)


def seen_outages(truth: Truth, count: int, ladders, seed: int, outages=400, jitter=0.25) -> Seen:
    """Return failures of outages: those of one begin together and share one time, give or take a tenth."""
    random = np.random.default_rng(seed)
    outage = random.integers(0, outages, count)
    lasts = truth.draw(random, outages)[outage] * random.uniform(0.9, 1.1, count)
    return inspected(lasts, outage, ladders, random, jitter)


def needed(probability, count, random):
    """Return how many attempts fail, the first one included, if each retry succeeds with this probability."""
    return np.minimum(random.geometric(np.broadcast_to(np.maximum(probability, 1e-12), count)), 10**6)


def inspected(lasts, clusters, ladders, random, jitter=0.25, failing=1) -> Seen:
    """Return failures as seen by ladders; ``failing``: attempts that fail at the least, however late they are."""
    count, tiers = len(lasts), max(map(len, ladders))
    delays = np.full((len(ladders), tiers), np.nan)
    for at, ladder in enumerate(ladders):
        delays[at, : len(ladder)] = ladder
    which = random.integers(0, len(ladders), count)
    spread = 1 + jitter * random.uniform(-1, 1, (count, tiers))
    waited = np.cumsum(delays[which] * spread, axis=1)
    looks = waited + np.cumsum(random.exponential(0.3, (count, tiers)), axis=1)
    looks = np.column_stack([np.zeros(count), looks, np.full(count, np.nan)])
    failed = (looks < lasts[:, None]).sum(axis=1)  # comparisons with NaN, the missing tiers, are false
    failed = np.minimum(np.maximum(failed, failing), (~np.isnan(looks)).sum(axis=1))
    every = np.arange(count)
    retries = np.where(np.isnan(looks[every, failed]), failed - 1, failed)
    return Seen(
        looks[every, failed - 1],
        looks[every, failed],
        clusters,
        failed,
        which,
        np.column_stack([np.zeros(count), waited])[every, retries],
    )


def rows(found: Seen, options: Options, kind: np.ndarray | None = None) -> pd.DataFrame:
    """Return the rows of one group of `counted_intervals`; ``kind``: that of each failure, where there are several."""
    grid, over = options.grid, ~np.isnan(found.high)
    high = np.where(over, np.maximum(grid.cells(np.nan_to_num(found.high)), 1), Intervals.OPEN)
    last = np.where(over, found.high, found.low)
    each = {
        "low": np.minimum(grid.cells(found.low), high - 1),
        "high": high,
        "cluster": found.cluster,
        "ladder": found.ladder,
        "kind": 0 if kind is None else kind,
        "is_exhausted": ~over,
        "retries": found.failed_attempts - ~over,
        "late_s": last - found.waited,
    }
    kept = pd.DataFrame(each)[over | (found.low > 0)]
    keys = [name for name in each if name not in ("retries", "late_s")]
    sums = {"count": ("retries", "size"), "retries": ("retries", "sum"), "late_s": ("late_s", "mean")}
    return kept.groupby(keys, as_index=False).agg(**sums)


def todays(ladder, number=0):
    """Return the result of `todays_ladders` for one group: a ladder in seconds, and its number in the rows."""
    tiers = len(ladder)
    return pd.DataFrame([{"ladder": number, "tiers_ms": list(ms(ladder)), "max_retries": tiers, "retries": tiers}])


def intervals(found: Seen, grid: Grid) -> Intervals:
    """Return counted intervals by cells of the grid."""
    low = grid.cells(found.low)
    high = np.where(np.isnan(found.high), Intervals.OPEN, grid.cells(np.nan_to_num(found.high)))
    rows = np.column_stack([np.minimum(low, high - 1), high, found.cluster])
    rows = rows[(found.low > 0) | ~np.isnan(found.high)]
    different, count = np.unique(rows, axis=0, return_counts=True)
    return Intervals(different[:, 0], different[:, 1], different[:, 2], count.astype(float))
