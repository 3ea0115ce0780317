"""Compare advised ladders, on failures unknown to the advice, with the best ladder and today's; and measure intervals.

    python -m benchmarks ladder_advice                               # some minutes
    python -m benchmarks ladder_advice --histories 40 --markdown table.md
    python -m benchmarks ladder_advice --coverage

The advice comes from one history and is tried on the true lengths of many other failures. The best ladder is found by
trying all ladders of the search on these lengths, within the figures of today's ladder there; it does not end before
today's, as no advice may lose recoveries of which the history does not show when they were possible.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from benchmarks.advice_histories import LATE_S, TRUTHS, Failures, Floats, Seen, seen
from celery_rmq_delay.analytics.estimate.decision import Decision, decide
from celery_rmq_delay.analytics.estimate.intervals import Intervals, by_outage
from celery_rmq_delay.analytics.estimate.ladders import Figures, Today, figures, retry_times
from celery_rmq_delay.analytics.estimate.lateness import Lateness
from celery_rmq_delay.analytics.estimate.options import Options
from celery_rmq_delay.analytics.estimate.search import Limits
from celery_rmq_delay.analytics.estimate.shares import shares
from celery_rmq_delay.history.tables import FIGURES

OPTIONS = Options(bootstrap_rounds=100)
FAILURES = 2_000
LATE = Lateness(((LATE_S,),))

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
#: What the history contains: ladders, and their jitter.
HISTORIES = {
    "one ladder, jitter 0.1": ((TODAY,), 0.1),
    "one ladder, no jitter": ((TODAY,), 0.0),
    "six ladders, jitter 0.25": (PAST, 0.25),
}

#: Failures whose true lengths an advised ladder is tried on.
_KNOWN = 400_000
_KNOWN_AT_ONCE = 20_000


@dataclass(frozen=True)
class Truth:
    """The sorted true lengths of many failures."""

    lasts: Floats

    def figures(self, ladders: Sequence[Sequence[int]]) -> Figures:
        """Return the figures of ladders of one length."""
        times = retry_times(np.array(ladders), LATE)
        return figures(np.searchsorted(self.lasts, times, side="right") / len(self.lasts), times)

    def cost(self, found: Figures, today: Sequence[int] = TODAY) -> Floats:
        """Return the costs of ladders, as the search defines them."""
        return np.asarray(found.attempts + OPTIONS.delay_weight * found.mean_s / self.figures([today]).mean_s)

    def limits(self, today: Sequence[int] = TODAY) -> Limits:
        """Return the limits of today's ladder."""
        return Limits.of(self.figures([today]), OPTIONS)

    def best(self, limits: Limits) -> tuple[int, ...] | None:
        """Return the ladder that costs least within the limits and does not end before today's."""
        ends_s = retry_times(np.array(TODAY), LATE)[-1] * 0.995
        best: tuple[float, tuple[int, ...]] | None = None
        for tiers in range(1, OPTIONS.max_tiers + 1):
            ladders = np.array(list(itertools.combinations_with_replacement(OPTIONS.delays_ms, tiers)))
            ladders = ladders[retry_times(ladders, LATE)[:, -1] >= ends_s]
            found = self.figures(ladders)
            cost = np.where(limits.kept_by(found), self.cost(found), np.inf)
            at = int(np.argmin(cost)) if len(cost) else 0
            if len(cost) and np.isfinite(cost[at]) and (best is None or cost[at] < best[0]):
                best = float(cost[at]), tuple(int(each) for each in ladders[at])
        return best[1] if best else None


@cache
def truth_of(name: str) -> Truth:
    """Return the true lengths of many failures, of other outages than those of any history."""
    some = (TRUTHS[name](np.random.default_rng([seed, 99]), _KNOWN_AT_ONCE) for seed in range(_KNOWN // _KNOWN_AT_ONCE))
    return Truth(np.sort(np.concatenate([each.lasts for each in some])))


def intervals(failures: Failures, found: Seen, options: Options = OPTIONS) -> Intervals:
    """Return what was seen as the intervals of the estimate, by outage."""
    is_retried = ~np.isnan(found.high) | (found.low > 0)
    low = options.grid.cells(found.low[is_retried])
    high = found.high[is_retried]
    highs = np.where(np.isnan(high), Intervals.OPEN, options.grid.cells(np.nan_to_num(high)))
    began = (failures.began[is_retried] // options.cluster_s).astype(np.int64)
    each = np.column_stack([np.minimum(low, highs - 1), highs, began, found.retries[is_retried].astype(np.int64)])
    (*rows, retries), counts = (part.T for part in np.unique(each, axis=0, return_counts=True))
    return by_outage(Intervals(*rows, counts.astype(float), rows[-1], retries), options)


@dataclass(frozen=True)
class Tried:
    """The advice from one history, on the truth and on the very failures of the history."""

    decision: Decision
    #: Costs, and retries per failure, as multiples of those of the best ladder; today's where nothing is advised.
    cost: float
    retries: float
    #: Limits that are broken on the truth.
    broken: tuple[str, ...]
    #: Recoveries of the history that the advised ladder would lose, and all of them.
    lost: int
    recoveries: int

    @property
    def is_changed(self) -> bool:
        """Whether another ladder than today's is advised."""
        return self.decision.advised is not None and self.decision.advised is not self.decision.current

    @property
    def loses_too_much(self) -> bool:
        """Whether more recoveries are lost than is tolerated."""
        return self.lost > OPTIONS.recovery_tolerance * self.recoveries


def tried(
    name: str,
    seed: int,
    count: int = FAILURES,
    ladders: Sequence[Sequence[int]] = (TODAY,),
    jitter: float = 0.0,
    best: tuple[int, ...] | None = None,
) -> Tried:
    """Return the result of the advice from one history; the first of ``ladders`` is today's."""
    random = np.random.default_rng([seed, count, 1])
    failures, today, truth = TRUTHS[name](random, count), tuple(ladders[0]), truth_of(name)
    found = seen(failures.lasts, random, ladders, jitter)
    decision = decide(intervals(failures, found), Today(today, LATE), OPTIONS)
    advised = decision.advised_ms or today
    on_truth, best_found = truth.figures([advised]), truth.figures([best or today])
    recovered = ~np.isnan(found.high)
    end, todays_end = (retry_times(np.array(each), LATE)[-1] for each in (advised, today))
    return Tried(
        decision,
        cost=float(truth.cost(on_truth, today)[0] / truth.cost(best_found, today)[0]),
        retries=float(on_truth.attempts[0] / best_found.attempts[0]),
        broken=_broken(on_truth, decision, truth.limits(today)) if decision.advised_ms else (),
        lost=int((recovered & (failures.lasts > end) & (failures.lasts <= todays_end)).sum()),
        recoveries=int(recovered.sum()),
    )


def _broken(found: Figures, decision: Decision, own: Limits) -> tuple[str, ...]:
    """Return the limits that a ladder breaks on the truth: worse than the advice states, and than today's ladder is."""
    assert decision.current is not None
    stated = Limits.of(Figures(*(np.array([decision.current[name][0]]) for name in FIGURES)), OPTIONS)
    longer = (
        name
        for name in own.seconds
        if getattr(found, name)[0] > max(stated.seconds[name][0], own.seconds[name][0]) + 1e-9
    )
    fewer = ("recovery",) if found.recovery[0] < min(stated.recovery[0], own.recovery[0]) - 1e-9 else ()
    return (*longer, *fewer)


@dataclass(frozen=True)
class Row:
    """The results of all histories of one truth."""

    name: str
    best: tuple[int, ...]
    found: list[Tried]

    def cells(self) -> tuple[str, ...]:
        """Return the row of the table."""
        truth, changed = truth_of(self.name), [each for each in self.found if each.is_changed]
        retries = [float(truth.figures([ladder]).attempts[0]) for ladder in (TODAY, self.best)]
        costs, more = (np.array([getattr(each, what) for each in self.found]) for what in ("cost", "retries"))
        return (
            self.name,
            f"{len(changed)} of {len(self.found)}",
            *(f"{each:.2f}" for each in (*retries, np.median(costs), costs.max(), np.median(more))),
            str(sum(bool(each.broken) for each in changed)),
            str(sum(each.loses_too_much for each in changed)),
        )


_HEAD = (
    "failures last", "advised in", "retries, today", "retries, best", "cost, advised / best", "at worst",
    "retries, advised / best", "limits broken", "recoveries lost",
)  # fmt: skip


def advice_table(histories: int, ladders: Sequence[Sequence[int]], jitter: float, names: Sequence[str]) -> list[Row]:
    """Return the results for some truths."""
    rows = []
    for name in names:
        best = truth_of(name).best(truth_of(name).limits())
        assert best is not None, "today's ladder is one of those that are tried"
        found = [tried(name, seed, FAILURES, ladders, jitter, best) for seed in range(histories)]
        rows.append(Row(name, best, found))
    return rows


def coverage(name: str, count: int, jitter: float, histories: int) -> Floats:
    """Return for each retry of today's ladder how many of the 95 % intervals contain the true share ended by then."""
    cells = OPTIONS.grid.cells(retry_times(np.array(TODAY), LATE))
    lasts = truth_of(name).lasts
    true = np.searchsorted(lasts, OPTIONS.grid.times[cells], side="right") / len(lasts)
    held = []
    for seed in range(histories):
        random = np.random.default_rng([seed, count, 2])
        failures = TRUTHS[name](random, count)
        low, high = shares(intervals(failures, seen(failures.lasts, random, (TODAY,), jitter)), OPTIONS).band()
        held.append((low[cells] <= true + 1e-9) & (true <= high[cells] + 1e-9))
    return np.mean(held, axis=0)


def coverage_table(histories: int, names: Sequence[str]) -> str:
    """Return the coverage for some truths, with and without jitter, of small and large histories."""
    kinds = [*((count, jitter) for count in (300, 2_000) for jitter in (0.0, 0.1)), (20_000, 0.1)]
    head = ("failures last", *(f"{count:,} failures, {_with(jitter)}" for count, jitter in kinds))
    rows = ((name, *(f"{coverage(name, *kind, histories).mean():.3f}" for kind in kinds)) for name in names)
    return table([head, ("---",) * len(head), *rows])


def _with(jitter: float) -> str:
    return f"jitter {jitter}" if jitter else "no jitter"


def table(lines: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table."""
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def report(histories: int, names: Sequence[str]) -> str:
    """Return the tables of all kinds of histories, and what all rows of each have in common."""
    parts = []
    for kind, (ladders, jitter) in HISTORIES.items():
        rows = advice_table(histories, ladders, jitter, names)
        every = [each for row in rows for each in row.found]
        worst = max(np.median([each.cost for each in row.found]) for row in rows)
        parts.append(
            f"{kind}, {FAILURES:,} failures: cost advised / best {np.median([each.cost for each in every]):.2f} "
            f"(median), {worst:.2f} (worst truth); limits broken in {sum(bool(each.broken) for each in every)}, too "
            f"many recoveries lost in {sum(each.loses_too_much for each in every)} of {len(every)} histories\n\n"
            + table([_HEAD, ("---",) * len(_HEAD), *(row.cells() for row in rows)])
        )
        print(parts[-1], flush=True)
    return "\n".join(parts)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--histories", type=int, default=20, help="Histories of each truth.")
    parser.add_argument("--truth", action="append", choices=list(TRUTHS), help="Only this truth; may be repeated.")
    parser.add_argument("--coverage", action="store_true", help="Measure the intervals instead.")
    parser.add_argument("--markdown", type=Path, help="Also write the tables to this file.")
    given = parser.parse_args()
    names = given.truth or list(TRUTHS)
    if given.coverage:
        text = coverage_table(given.histories, names)
        print(text)
    else:
        text = report(given.histories, names)
    if given.markdown:
        given.markdown.write_text(text)


if __name__ == "__main__":
    main()
