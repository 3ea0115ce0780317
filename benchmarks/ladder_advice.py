"""Compare advised ladders, on outages unknown to the advice, with the best one, Celery's backoff and today's ladder.

    python -m benchmarks.ladder_advice                              # about a minute
    python -m benchmarks.ladder_advice --seeds 10 --markdown table.md

A world is a distribution of how long failures last, and whether a dependency is down for all its tasks at once or
failures are independent. The advice comes from the history of one seed and is tried on the truth of another one: how
long its failures really lasted. The best ladder is found by trying every ladder of the search on that truth.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from celery_rmq_delay.analytics.estimate.decision import decide
from celery_rmq_delay.analytics.estimate.ladders import Figures, Today, figures, retry_times
from celery_rmq_delay.analytics.estimate.options import Options
from celery_rmq_delay.analytics.estimate.outages import by_outage
from celery_rmq_delay.analytics.estimate.search import Limits
from celery_rmq_delay.analytics.estimate.shares import Floats, Intervals
from celery_rmq_delay.analytics.synth import NAMED, Dependency, Queue, Shop, Spec, Task
from celery_rmq_delay.analytics.synth.failing import Episodes, draw_episodes
from celery_rmq_delay.analytics.synth.spec import Outages
from celery_rmq_delay.analytics.synth.world import world_of
from celery_rmq_delay.durations import format_ms

OPTIONS = Options(bootstrap_rounds=100)
ATTEMPTS, DAYS, OUTAGES_PER_DAY = 300_000, 90, 12.0
HELD_OUT = 1_000

TODAY = (5_000, 30_000, 120_000, 600_000, 3_600_000)
#: Earlier ladders of the queue: with them and with jitter, the history covers the times between today's tiers.
PAST = (
    TODAY,
    (30_000, 300_000, 3_600_000),
    (10_000, 60_000, 600_000, 1_800_000),
    (15_000, 1_200_000, 2_400_000),
    (100_000, 350_000, 1_800_000, 3_600_000),
    (200_000, 1_200_000, 7_200_000),
)
JITTER = 0.25
#: Median seconds from the planned delay to the end of a retry: waiting for a worker, and running.
LATE_S = 0.5

#: ``retry_backoff=True`` without its jitter, with the three retries of Celery's default.
CELERY = (1_000, 2_000, 4_000)
#: Celery's ``retry_backoff_max``, and a day of retries.
_LONGEST_MS, _MOST_RETRIES = 600_000, 150


@dataclass(frozen=True)
class World:
    """A distribution of how long failures last, and the share of them that never end."""

    name: str
    distribution: str
    outages: Outages
    hard: float = 0.02

    def failures(self, seed: int) -> Episodes:
        """Return the failures of one history."""
        dependency = Dependency(
            "payments", NAMED[self.distribution], "ConnectionError", "refused", self.hard, OUTAGES_PER_DAY
        )
        shop = Shop((dependency,), (Queue("payments", TODAY),), (Task("pay", "payments", "payments"),))
        spec = Spec(attempts=ATTEMPTS, days=DAYS, seed=seed, shop=shop, outages=self.outages)
        found = draw_episodes(spec, world_of(spec), np.random.default_rng([seed, 7]), ATTEMPTS, (0.0, 1.0))
        return found[found.is_informative]


WORLDS = tuple(
    World(f"{name}, {kind}", distribution, outages, hard)
    for (name, distribution, hard), (kind, outages) in itertools.product(
        (
            ("exponential", "exponential", 0.02),
            ("lognormal", "lognormal", 0.02),
            ("bimodal", "bimodal", 0.02),
            ("half hard", "exponential", 0.5),
        ),
        (("each on its own", "independent"), ("shared outages", "shared")),
    )
)


@dataclass(frozen=True)
class Tried:
    """Results of ladders on one truth.

    ``limits`` are those of the advice: the figures of today's ladder in the history. If no ladder meets them on the
    truth, the best one is chosen within the figures of today's ladder there.
    """

    world: World
    seed: int
    advised_ms: tuple[int, ...] | None
    limits: Limits
    #: By name; without ``advised`` if nothing is advised.
    found: dict[str, Figures]

    @property
    def ratio(self) -> float:
        """Return the retries of the advised ladder as a multiple of the best one's."""
        return float(self.found["advised"].attempts / self.found["best"].attempts)


def history(
    failures: Episodes, seed: int, ladders: Sequence[Sequence[int]] = PAST, jitter: float = JITTER
) -> Intervals:
    """Return the intervals that ladders (a random one for each failure) observe of failures, by outage."""
    random = np.random.default_rng([seed, 8])
    count, tiers = len(failures), max(map(len, ladders))
    delays = np.array([[*ladder, *[np.nan] * (tiers - len(ladder))] for ladder in ladders])
    steps = delays[random.integers(0, len(ladders), count)] / 1000
    steps = steps * random.uniform(1 - jitter, 1 + jitter, steps.shape)
    late = random.exponential(LATE_S / np.log(2), steps.shape)
    ends = np.column_stack([np.zeros(count), np.cumsum(steps + late, axis=1), np.full(count, np.nan)])
    # NaN: no attempt, the ladder has ended.
    at = (ends < failures.lasts[:, None]).sum(axis=1)
    every, grid = np.arange(count), OPTIONS.grid
    low, high = ends[every, at - 1], ends[every, at]
    lows = grid.cells(low)
    highs = np.where(np.isnan(high), Intervals.OPEN, grid.cells(np.nan_to_num(high)))
    began = (failures.origin // OPTIONS.cluster_s).astype(np.int64)
    rows = np.column_stack([np.minimum(lows, highs - 1), highs, began])
    different, counts = np.unique(rows, axis=0, return_counts=True)
    return by_outage(Intervals(*different.T, counts.astype(float)), OPTIONS)


def tried(world: World, seed: int, ladders: Sequence[Sequence[int]] = PAST, jitter: float = JITTER) -> Tried:
    """Return the results of ladders on the truth of a different seed than that of the advice."""
    decision = decide(history(world.failures(seed), seed, ladders, jitter), Today(TODAY, LATE_S), OPTIONS)
    limits = Limits.of(Figures(*(decision.current.value(name) for name in Figures.NAMES)), OPTIONS)
    lasts = np.sort(world.failures(seed + HELD_OUT).lasts)
    found = {
        "today": on_truth(TODAY, lasts),
        "Celery, 3 retries": on_truth(CELERY, lasts),
        "Celery": celerys_backoff(lasts, limits),
    }
    if decision.advised_ms is not None:
        found["advised"] = on_truth(decision.advised_ms, lasts)
    best = best_on_truth(lasts, limits) or best_on_truth(lasts, _looser(limits, Limits.of(found["today"], OPTIONS)))
    assert best is not None, "today's ladder is one of those that are tried"
    found["best"] = on_truth(best, lasts)
    return Tried(world, seed, decision.advised_ms, limits, found)


def on_truth(ladder_ms: Sequence[int], lasts: Floats) -> Figures:
    """Return the figures of one ladder, or of several of one length, for failures of these durations (sorted)."""
    times = retry_times(np.array(ladder_ms), LATE_S)
    return figures(np.searchsorted(lasts, times, side="right") / len(lasts), times)


def best_on_truth(lasts: Floats, limits: Limits) -> tuple[int, ...] | None:
    """Return the ladder with the fewest retries within the limits, among all candidates of the search."""
    best: tuple[float, tuple[int, ...]] | None = None
    for tiers in range(1, OPTIONS.max_tiers + 1):
        ladders = np.array(list(itertools.combinations_with_replacement(OPTIONS.delays_ms, tiers)))
        found = on_truth(ladders, lasts)
        attempts = np.where(limits.kept_by(found), found.attempts, np.inf)
        at = int(np.argmin(attempts))
        if np.isfinite(attempts[at]) and (best is None or attempts[at] < best[0]):
            best = float(attempts[at]), tuple(int(each) for each in ladders[at])
    return best[1] if best else None


def _looser(one: Limits, other: Limits) -> Limits:
    return Limits(min(one.recovery, other.recovery), max(one.median_s, other.median_s), max(one.p95_s, other.p95_s))


def celerys_backoff(lasts: Floats, limits: Limits) -> Figures:
    """Return the figures of Celery's backoff with the fewest retries that recover enough."""
    ladder: list[int] = []
    while len(ladder) < _MOST_RETRIES:
        ladder.append(min(1000 * 2 ** len(ladder), _LONGEST_MS))
        found = on_truth(ladder, lasts)
        if found.recovery >= limits.recovery:
            break
    return found


def rows(each: Tried) -> Iterator[str]:
    """Return the cells of a row of the table."""
    found = each.found
    yield each.world.name
    yield str(each.seed)
    yield " ".join(map(format_ms, each.advised_ms)) if each.advised_ms else "none"
    for name in ("advised", "best", "Celery", "today"):
        yield f"{found[name].attempts:.2f}" if name in found else "none"
    for name in ("advised", "today", "Celery, 3 retries"):
        yield f"{found[name].recovery:.1%}" if name in found else "none"
    yield f"{found['advised'].p95_s:,.0f}" if "advised" in found else "none"
    yield f"{each.limits.p95_s:,.0f}"


HEAD = (
    "failures last",
    "seed",
    "advised",
    *(f"retries, {name}" for name in ("advised", "best", "Celery", "today")),
    *(f"recovered, {name}" for name in ("advised", "today", "Celery's 3")),
    "95th, s",
    "limit",
)


def markdown(found: Sequence[Tried]) -> str:
    """Return the table of every history."""
    return _table([HEAD, ("---",) * len(HEAD), *(tuple(rows(each)) for each in found)])


def summary(found: Sequence[Tried]) -> str:
    """Return the table of retries per failure: for each world the medians of its histories, and the worst of them."""
    names = ("advised", "best", "Celery", "today")
    lines = [("failures last", *names, "advised / best, at worst"), ("---",) * (len(names) + 2)]
    for name, each in itertools.groupby(found, key=lambda one: one.world.name):
        some = [one for one in each if "advised" in one.found]
        medians = [f"{np.median([one.found[which].attempts for one in some]):.2f}" for which in names if some]
        lines.append((name, *medians, f"{max(one.ratio for one in some):.2f}" if some else "nothing is advised"))
    return _table(lines)


def _table(lines: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3, help="Histories of each world.")
    parser.add_argument("--no-jitter", action="store_true", help="Histories of today's ladder alone, without jitter.")
    parser.add_argument("--markdown", type=Path, help="Also write the table to this file.")
    given = parser.parse_args()
    seen = ((TODAY,), 0.0) if given.no_jitter else (PAST, JITTER)
    found = [tried(world, seed, *seen) for world in WORLDS for seed in range(1, given.seeds + 1)]
    text = f"{markdown(found)}\n{summary(found)}"
    print(text)
    if given.markdown:
        given.markdown.write_text(text)


if __name__ == "__main__":
    main()
