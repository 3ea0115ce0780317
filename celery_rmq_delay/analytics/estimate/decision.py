"""Decide whether the history is sufficient to advise a ladder for a queue or task, and which one. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ...durations import format_ms
from .counted import lost_recoveries
from .ladders import Summary, Today, figures, retry_times, summarise
from .options import Options
from .search import Limits, best_ladder
from .shares import Floats, Intervals, Shares, shares

Ladder = tuple[int, ...]

#: Today's share of recoveries must be known to within this, apart from sampling error.
_UNSEEN_TAIL = 0.05


@dataclass(frozen=True)
class Decision:
    """Today's ladder, the advised one, and the reason. ``advised_ms`` is None if nothing is advised.

    ``refused_ms``: the best ladder found, if it is not advised because it may lose ``lost`` of the counted recoveries,
    more than is tolerated.
    """

    enough_data: bool
    reason: str
    current: Summary | None = None
    advised_ms: Ladder | None = None
    advised: Summary | None = None
    refused_ms: Ladder | None = None
    lost: int | None = None


def lacking(intervals: Intervals, options: Options) -> str | None:
    """Return a sentence about which data is insufficient; None: there is enough."""
    for found, least, what in (
        (intervals.episodes, options.min_episodes, "retried failures"),
        (intervals.recoveries, options.min_recovered, "recoveries"),
    ):
        if found < least:
            return f"not enough data: {found:,} {what}, at least {least:,} are needed"
    if intervals.clusters < options.min_clusters:
        few = "one outage" if intervals.clusters == 1 else f"as few as {intervals.clusters:,} outages"
        return f"not enough data: {few} may have caused all failures, at least {options.min_clusters:,} are needed"
    return None


def decide(intervals: Intervals, today: Today, options: Options) -> Decision:
    """Return the advice for failures with the ladder and overhead of ``today``."""
    current_ms, overhead_s = today.ladder_ms, today.overhead_s
    too_few = lacking(intervals, options)
    if too_few:
        return Decision(False, too_few)
    if not current_ms:
        return Decision(False, "not enough data: today's ladder is not known from any failure")
    if today.is_endless:
        return Decision(False, "today's last tier repeats without a limit: no ladder that ends recovers as much")
    estimate = shares(intervals, options)
    grid = options.grid
    current = summarise(current_ms, estimate, grid, overhead_s)
    last = _reach(current_ms, overhead_s, options)
    if estimate.most[0, last] - estimate.least[0, last] > _UNSEEN_TAIL:
        text = (
            f"not enough data: too few failures reached the last tier of today's ladder ({format_ms(current_ms[-1])})"
        )
        return Decision(False, text, current)
    current_figures = figures(*_retries(current_ms, estimate.least[0], overhead_s, options))
    limits = Limits.of(current_figures, options)
    best = best_ladder(estimate.least[0], grid, overhead_s, limits, options)
    keeps = bool(limits.kept_by(current_figures))
    if best is None and not keeps:
        return Decision(True, f"no ladder meets the limits, as far as the history shows: {_text(limits)}", current)
    if best is None or best == current_ms:
        return Decision(True, "today's ladder is the best, as far as the history shows", current, current_ms, current)
    if keeps and not _is_better(best, current_ms, estimate, overhead_s, options):
        text = "today's ladder is as good as any, as far as the history shows"
        return Decision(True, text, current, current_ms, current)
    lost = _lost(best, last, intervals, estimate, overhead_s, options)
    if lost > options.recovery_tolerance * intervals.recoveries:
        text = _refusal(best, lost, intervals.recoveries, overhead_s, options)
        return Decision(False, text, current, refused_ms=best, lost=math.ceil(lost))
    reason = "fewer retries within the limits" if keeps else f"today's ladder breaks the limits: {_text(limits)}"
    return Decision(True, reason, current, best, summarise(best, estimate, grid, overhead_s))


def _is_better(best: Ladder, current: Ladder, estimate: Shares, overhead_s: float, options: Options) -> bool:
    """Return whether ``best`` needs fewer retries in the estimate, and in 97.5 % of the resampled histories."""
    rounds = [
        figures(*_retries(each, estimate.least, overhead_s, options)).attempts.reshape(-1) for each in (current, best)
    ]
    saved = rounds[0] - rounds[1]
    return bool(saved[0] > 0 and (len(saved) < 2 or np.quantile(saved[1:], 0.025) > 0))


def _lost(
    best: Ladder, last: int, intervals: Intervals, estimate: Shares, overhead_s: float, options: Options
) -> float:
    """Return how many counted recoveries the ladder may lose that today's, which ends in the cell ``last``, does not.

    It is 0 if the ladder reaches as far as today's, or if the user has set ``min_recovery``.
    """
    reach = _reach(best, overhead_s, options)
    if reach >= last or options.min_recovery is not None:
        return 0.0
    return lost_recoveries(intervals, estimate, reach)


def _reach(ladder: Ladder, overhead_s: float, options: Options) -> int:
    """Return the cell of the grid in which the last retry ends."""
    return int(options.grid.cells(retry_times(np.array(ladder), overhead_s))[-1])


def _refusal(best: Ladder, lost: float, recoveries: int, overhead_s: float, options: Options) -> str:
    ends_s = retry_times(np.array(best), overhead_s)[-1]
    return (
        f"keep today's tiers: the best ladder found, {' '.join(map(format_ms, best))}, ends after {ends_s:.4g} s and "
        f"may lose {math.ceil(lost):,} of the {recoveries:,} recoveries that were counted ({lost / recoveries:.2%}); "
        f"at most {options.recovery_tolerance:.2%} is tolerated"
    )


def _retries(ladder: Ladder, share: Floats, overhead_s: float, options: Options) -> tuple[Floats, Floats]:
    times = retry_times(np.array(ladder), overhead_s)
    return share[..., options.grid.cells(times)], times


def _text(limits: Limits) -> str:
    return (
        f"at least {limits.recovery:.1%} recovered, median at most {limits.median_s:.4g} s, "
        f"95th percentile at most {limits.p95_s:.4g} s"
    )
