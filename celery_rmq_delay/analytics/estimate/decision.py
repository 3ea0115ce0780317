"""Decide whether the history is sufficient to advise a ladder for a queue or task, and which one. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np

from ...durations import format_ms
from .backtest import Backtest, backtest, split
from .by_attempt import ATTEMPTS, ByAttempt, by_attempt
from .counted import least_reach, lost_by_number, lost_recoveries
from .intervals import Floats, Intervals, Ints, lacking
from .ladders import Summary, Today, ends, summarise
from .lateness import Lateness, early_sentence, lateness_of
from .options import Options
from .search import Ladder, Limits, Search
from .shares import Shares, shares

#: Today's share of recoveries must be known to within this, apart from sampling error.
_UNSEEN_TAIL = 0.05

#: Limits of the search after the best ladder has failed its backtest: backtests, and ladders (the cheapest ones).
_MOST_TRIALS, _MOST_RUNNERS_UP = 5, 500

#: If less than this part of the failures recovers, or more recovers when it is requeued, later attempts may succeed.
_HARDLY = 0.05

#: The tiers to try then, as multiples of today's last one.
_LATER = (6, 36)

#: A ladder that ends after this part of today's ends when today's does.
_SAME_END = 0.995


@dataclass(frozen=True)
class Decision:
    """Today's ladder, the advised one, and the reason. ``advised_ms`` is None if nothing is advised.

    ``current``, ``advised``: the figures by the estimate; those of ``current`` are counts if ``is_counted``. ``lost``:
    counted recoveries that the advised ladder may lose. ``attempts``: how far the number of attempts counts; None: it
    was not estimated. ``refused_ms``: the best ladder found, if it is not advised as
    it failed its backtest. ``backtest``: that of the advised ladder, else of the refused one. ``learn``: what would
    show whether a better ladder exists; None if the history shows enough.
    """

    enough_data: bool
    reason: str
    current: Summary | None = None
    advised_ms: Ladder | None = None
    advised: Summary | None = None
    lost: int | None = None
    refused_ms: Ladder | None = None
    backtest: Backtest | None = None
    learn: str | None = None
    is_counted: bool = False
    attempts: ByAttempt | None = None


def decide(
    intervals: Intervals,
    today: Today,
    options: Options,
    *,
    late_s: Floats | None = None,
    counted: Summary | None = None,
    is_only_ladder: bool = False,
    revived: int = 0,
) -> Decision:
    """Return the advice for failures with the ladder of ``today``.

    ``late_s``: of the same rows, see `lateness_of`; None: it is that of ``today``. ``counted``: today's
    figures as the history counts them. ``is_only_ladder``: all failures had today's ladder. ``revived``: how many
    exhausted tasks recovered when they were requeued.
    """
    found = _decision(intervals, today, options, late_s, counted, is_only_ladder)
    is_low = intervals.recoveries < _HARDLY * intervals.episodes
    if found.enough_data and is_low:
        share = intervals.recoveries / intervals.episodes
        found = replace(found, reason=f"{found.reason}; only {share:.1%} of the failures recover by their last attempt")
    longer = _longer(today.ladder_ms, options)
    is_enough = intervals.episodes >= options.min_episodes and not today.is_endless
    if longer and is_enough and (is_low or revived >= _HARDLY * intervals.episodes):
        later = f"; {revived:,} exhausted tasks recovered when they were requeued" if revived else ""
        learn = (
            f"the last attempt comes {format_ms(sum(today.ladder_ms))} after the first, and the history does not show "
            f"whether later ones succeed{later}: use a longer ladder for a while, such as {_named(longer)}"
        )
        return replace(found, learn=learn)
    return found


def _decision(
    intervals: Intervals,
    today: Today,
    options: Options,
    late_s: Floats | None,
    counted: Summary | None,
    is_only_ladder: bool,
) -> Decision:
    """Return the advice, without a proposal to try later attempts."""
    too_few = lacking(intervals, options)
    if too_few:
        return Decision(False, too_few, counted, is_counted=counted is not None)
    if not today.ladder_ms:
        return Decision(False, "not enough data: today's ladder is not known from any failure")
    if today.is_endless:
        reason = "today's last tier repeats without a limit: no ladder that ends recovers as much"
        return Decision(False, reason, counted, is_counted=counted is not None)
    if late_s is not None and (early := early_sentence(late_s, intervals)):
        return Decision(False, early)
    estimate = shares(intervals, options)
    if late_s is not None:
        today = replace(today, late=lateness_of(late_s, intervals, estimate))
    attempts = by_attempt(intervals, estimate, options)
    current = summarise(today.ladder_ms, estimate, options.grid, today.late, attempts)
    is_counted = False
    if counted is not None:
        # Whether the recovered share can be the estimated one: their intervals overlap.
        _, low, high = counted["recovery"]
        _, least, most = current["recovery"]
        is_counted = not (low > most or high < least)
    if counted is not None and not is_counted and is_only_ladder:
        return Decision(False, _contradiction(counted, current), counted, is_counted=True)
    # Else failures were of another kind while another ladder was in force: only estimates can be compared.
    shown = counted if counted is not None and is_counted else current
    found = _advised(intervals, estimate, attempts, today, shown, options)
    return replace(found, is_counted=is_counted, attempts=attempts)


def _longer(ladder: Ladder, options: Options) -> Ladder | None:
    """Return a ladder with later attempts, to learn whether they succeed; None: there is no longer delay."""
    if not ladder:
        return None
    later = ([each for each in options.delays_ms if each >= times * ladder[-1]] for times in _LATER)
    found = sorted({each[0] for each in later if each})
    return (*ladder, *found) if found else None


def _contradiction(counted: Summary, estimated: Summary) -> str:
    found, (likely, low, high) = counted["recovery"][0], estimated["recovery"]
    return (
        f"with today's ladder {found:.1%} of the failures recovered, but {likely:.1%} by the estimate ({low:.1%} to "
        f"{high:.1%}): other ladders cannot be estimated either. A usual cause are retries that end much later than "
        "planned, for example as workers are busy during an outage"
    )


def _advised(
    intervals: Intervals, estimate: Shares, attempts: ByAttempt, today: Today, current: Summary, options: Options
) -> Decision:
    """Return the advice from an estimate; ``current``: today's figures, as they are shown."""
    late = today.late
    last = _end(today.ladder_ms, late, options)
    if (estimate.most[0, last] - estimate.least[0, last]).mean() > _UNSEEN_TAIL:
        tier = format_ms(today.ladder_ms[-1])
        text = f"not enough data: too few failures reached the last tier of today's ladder ({tier})"
        return Decision(False, text, current)
    known, later = split(intervals, options)
    least_s = _least_end(intervals, estimate, attempts.weight, today, options)
    if later is None:
        search = Search.of(estimate, attempts, today, least_s, options)
    else:
        earlier = shares(known, options)
        search = Search.of(earlier, by_attempt(known, earlier, options, attempts), today, least_s, options)
    found = _decided(search, current)
    if later is not None and found.advised_ms and found.advised_ms != today.ladder_ms:
        found = _tried(found, found.advised_ms, search, later, today)
    found = replace(found, learn=_learn(search, found.advised_ms or found.refused_ms or today.ladder_ms))
    if found.advised_ms in (None, today.ladder_ms):
        return found
    reach = _end(found.advised_ms, late, options)
    pairs = set(zip(reach.tolist(), last.tolist(), strict=True))
    lost = sum(lost_recoveries(intervals, estimate, *each) for each in pairs)
    lost += lost_by_number(intervals, len(found.advised_ms), len(today.ladder_ms), attempts.weight)
    advised = summarise(found.advised_ms, estimate, options.grid, late, attempts)
    reason = found.reason
    is_fewer = advised["recovery"][0] < current["recovery"][0] - options.recovery_tolerance
    if is_fewer and options.min_recovery is not None:
        fewer = f"{advised['recovery'][0]:.1%} of the failures recover instead of {current['recovery'][0]:.1%}"
        reason += f'; {fewer}, which "min_recovery" allows'
    return replace(found, reason=reason, advised=advised, lost=math.ceil(lost))


def _decided(search: Search, current: Summary) -> Decision:
    """Return the decision about the best ladder of a search, without its figures."""
    best = search.best()
    if not search.is_within:
        breaks = (
            "today's ladder breaks the limits" if best else "no ladder meets the limits, as far as the history shows"
        )
        return Decision(True, f"{breaks}: {_text(search.limits)}", current, best)
    if best is not None and best != search.today and _saves(search, best):
        return Decision(True, "fewer retries or less delay, within the limits", current, best)
    least = search.options.least_saving
    reason = f"today's ladder is as good as any, as far as the history shows: no other saves {least:.0%} of its cost"
    return Decision(True, reason, current, search.today, current)


def _tried(found: Decision, best: Ladder, search: Search, later: Intervals, today: Today) -> Decision:
    """Return the decision for the ``best`` ladder, or for the first runner-up that passes its backtest."""
    trials: dict[int, Backtest] = {}
    for ladder in islice(search.within_limits(), _MOST_RUNNERS_UP):
        first = ladder[0]
        if first in trials or ladder == search.today:
            continue
        if search.is_within and not _saves(search, ladder):
            break
        kind = {"must_save": search.is_within, "is_runner_up": ladder != best}
        trial = backtest(later, search.attempts, today, ladder, search.options, **kind)
        if trial.passed and ladder == best:
            return replace(found, backtest=trial)
        if trial.passed:
            reason = f"{found.reason}; {_named(best)} costs less, but failed its backtest"
            return replace(found, reason=reason, advised_ms=ladder, refused_ms=best, backtest=trial)
        trials[first] = trial
        if len(trials) == _MOST_TRIALS:
            break
    trial = trials[best[0]]
    reason = (
        f"keep today's tiers: {_named(best)} failed its backtest: on the last {trial.failures:,} failures, which the "
        f"advice does not know, it {trial.reason}"
    )
    return replace(found, reason=reason, advised_ms=None, refused_ms=best, backtest=trial)


def _saves(search: Search, ladder: Ladder) -> bool:
    """Return whether a ladder saves enough in the estimate, and something in 97.5 % of the resampled histories."""
    saved = search.saving(ladder)
    return bool(saved[0] >= search.options.least_saving and (len(saved) < 2 or np.quantile(saved[1:], 0.025) > 0))


def _learn(search: Search, advised: Ladder) -> str | None:
    """Return how to learn whether another ladder is better: it saves much more if failures end as in the estimate."""
    if search.attempts.favoured == ATTEMPTS:
        return None
    by_time = replace(search, likely=search.likely[:1], prudent=search.likely[:1], least_s=0.0, attempts=ByAttempt())
    best = by_time.best()
    if best is None or by_time.saving(best)[0] - by_time.saving(advised)[0] < search.options.least_saving:
        return None
    question = f"attempts at other times would show whether {_named(best)} is better"
    if search.attempts.weight:
        # Jitter moves the times, and hardly the number of attempts until then.
        return f"{question}, if time counts and not their number: use another ladder for a while"
    return f'{question}: set "jitter" of the queue to 0.2 or more for a week, or use another ladder for a while'


def _least_end(intervals: Intervals, estimate: Shares, weight: float, today: Today, options: Options) -> Floats:
    """Return the seconds after which a ladder must end so as not to lose more counted recoveries than is tolerated.

    Ladders of 1, 2, ... tiers are the rows; infinite: they lose more by their number of retries, which counts in the
    part ``weight`` of the failures. The seconds differ with the lateness of tasks: one number for each of its points.
    Today's ladder loses none. If the user has set the least share that is recovered, no recoveries are counted.
    """
    if options.min_recovery is not None:
        return np.zeros(1)
    # As many as exceed the tolerance by chance in 2.5 % of histories: the variance of a count is the count.
    most = (math.sqrt(options.recovery_tolerance * intervals.recoveries + 1) - 1) ** 2
    last = _end(today.ladder_ms, today.late, options)
    ends_s = ends(np.array(today.ladder_ms), today.late)[:, 0]
    retries = np.arange(1, options.max_tiers + 1)
    left = [most - lost_by_number(intervals, each, len(today.ladder_ms), weight) for each in retries.tolist()]
    found = np.full((len(retries), len(last)), np.inf)
    for allowed in {each for each in left if each >= 0}:
        # Few tasks are as late as a point: what all of them lose is the sum.
        cells = set(last.tolist())
        reach = {each: least_reach(intervals, estimate, each, allowed / len(cells)) for each in cells}
        first = np.array([reach[each] for each in last.tolist()])
        found[np.array(left) == allowed] = np.where(first == last, ends_s * _SAME_END, options.grid.times[first])
    return found


def _end(ladder: Ladder, late: Lateness, options: Options) -> Ints:
    """Return the cell of the grid in which the last retry ends, at each point of the lateness."""
    return options.grid.cells(ends(np.array(ladder), late)[:, 0])


def _named(ladder: Ladder) -> str:
    return " ".join(map(format_ms, ladder))


def _text(limits: Limits) -> str:
    most = (
        f"{name.removesuffix('_s')} at most {seconds.item(0):.4g} s"
        for name, seconds in limits.seconds.items()
        if np.isfinite(seconds.item(0))
    )
    return ", ".join([f"at least {limits.recovery.item(0):.1%} recovered", *most])
