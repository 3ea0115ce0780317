"""Whether the history is enough to advise a ladder for one queue or task, and which. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..durations import format_ms
from .ladders import Summary, Today, figures, retry_times, summarise
from .options import Options
from .search import Limits, best_ladder
from .shares import Floats, Intervals, Shares, shares

Ladder = tuple[int, ...]

#: Today's share of recoveries has to be known to within this, apart from chance.
_UNSEEN_TAIL = 0.05


@dataclass(frozen=True)
class Decision:
    """Today's ladder, the advised one, and why. ``advised_ms`` is None where nothing is advised."""

    enough_data: bool
    reason: str
    current: Summary | None = None
    advised_ms: Ladder | None = None
    advised: Summary | None = None


def lacking(intervals: Intervals, options: Options) -> str | None:
    """Return what there is too little of, as a sentence; None: enough."""
    recovered = intervals.spells - intervals.censored
    for found, least, what in (
        (intervals.spells, options.min_spells, "retried failures"),
        (recovered, options.min_recovered, "recoveries"),
    ):
        if found < least:
            return f"not enough data: {found:,} {what}, at least {least:,} are needed"
    if intervals.clusters < options.min_clusters:
        few = "one outage" if intervals.clusters == 1 else f"as few as {intervals.clusters:,} outages"
        return f"not enough data: {few} can have made all the failures, at least {options.min_clusters:,} are needed"
    return None


def decide(intervals: Intervals, today: Today, options: Options) -> Decision:
    """Return the advice for failures whose ladder is what it is ``today``."""
    current_ms, overhead_s = today.ladder_ms, today.overhead_s
    too_few = lacking(intervals, options)
    if too_few:
        return Decision(False, too_few)
    if not current_ms:
        return Decision(False, "not enough data: no failure tells today's ladder")
    if today.is_endless:
        return Decision(False, "today's last tier repeats for ever: no ladder that ends recovers as much")
    estimate = shares(intervals, options)
    grid = options.grid
    current = summarise(current_ms, estimate, grid, overhead_s)
    last = grid.cells(retry_times(np.array(current_ms), overhead_s))[-1]
    if estimate.most[0, last] - estimate.least[0, last] > _UNSEEN_TAIL:
        text = (
            f"not enough data: too few failures reached the last tier of today's ladder ({format_ms(current_ms[-1])})"
        )
        return Decision(False, text, current)
    told = figures(*_retries(current_ms, estimate.least[0], overhead_s, options))
    limits = Limits.of(told, options)
    best = best_ladder(estimate.least[0], grid, overhead_s, limits, options)
    keeps = bool(limits.kept_by(told))
    if best is None and not keeps:
        return Decision(True, f"no ladder keeps the limits, as far as the history sees: {_text(limits)}", current)
    if best is None or best == current_ms:
        return Decision(
            True, "today's ladder is the best, as far as the history can tell", current, current_ms, current
        )
    if keeps and not _is_better(best, current_ms, estimate, overhead_s, options):
        text = "today's ladder is as good as any, as far as the history can tell"
        return Decision(True, text, current, current_ms, current)
    reason = "fewer retries within the limits" if keeps else f"today's ladder breaks the limits: {_text(limits)}"
    return Decision(True, reason, current, best, summarise(best, estimate, grid, overhead_s))


def _is_better(best: Ladder, current: Ladder, estimate: Shares, overhead_s: float, options: Options) -> bool:
    """Tell whether it needs fewer retries in the estimate, and in 97.5 % of the resampled histories."""
    rounds = [
        figures(*_retries(each, estimate.least, overhead_s, options)).attempts.reshape(-1) for each in (current, best)
    ]
    saved = rounds[0] - rounds[1]
    return bool(saved[0] > 0 and (len(saved) < 2 or np.quantile(saved[1:], 0.025) > 0))


def _retries(ladder: Ladder, share: Floats, overhead_s: float, options: Options) -> tuple[Floats, Floats]:
    times = retry_times(np.array(ladder), overhead_s)
    return share[..., options.grid.cells(times)], times


def _text(limits: Limits) -> str:
    return (
        f"at least {limits.recovery:.1%} recovered, median at most {limits.median_s:.4g} s, "
        f"95th percentile at most {limits.p95_s:.4g} s"
    )
