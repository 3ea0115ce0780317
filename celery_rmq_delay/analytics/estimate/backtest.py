"""Try an advised ladder on failures that the advice does not know: those of the last days. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...history.tables import FIGURES
from .by_attempt import ByAttempt, by_attempt
from .intervals import Intervals, lacking
from .ladders import Figures, Today
from .options import Options
from .search import Ladder, Search
from .shares import shares

_DAY_S = 24 * 3600

#: The held-out part of a history that is shorter than twice `Options.backtest_days`.
_PART = 0.25

#: The limits must hold in this part of the resampled held-out failures, or in the estimate. For a runner-up in most
#: of them, whatever the estimate is: of several ladders one can pass by chance.
_LIKELY, _LIKELY_OF_RUNNER_UP = 0.2, 0.6

#: With less held-out failures than this, chance decides.
_LEAST_FAILURES = 50


@dataclass(frozen=True)
class Backtest:
    """Figures of both ladders on ``failures`` that the advice does not know; ``reason``: why the advised one failed."""

    failures: int
    today: Figures
    advised: Figures
    reason: str | None = None

    @property
    def passed(self) -> bool:
        """Whether the advised ladder meets the limits, and saves something if it must."""
        return self.reason is None


def split(intervals: Intervals, options: Options) -> tuple[Intervals, Intervals | None]:
    """Return the failures that the advice may know, and the held-out ones; None: the history has too few for that."""
    first, last = int(intervals.began.min()), int(intervals.began.max())
    held = min(options.backtest_days * _DAY_S / options.cluster_s, _PART * (last - first + 1))
    is_late = intervals.began > last - held
    known, later = intervals.chosen(~is_late), intervals.chosen(is_late)
    is_enough = lacking(known, options) is None and later.episodes >= _LEAST_FAILURES
    return (known, later) if is_enough else (intervals, None)


def backtest(
    later: Intervals,
    attempts: ByAttempt,
    today: Today,
    advised: Ladder,
    options: Options,
    *,
    must_save: bool,
    is_runner_up: bool,
) -> Backtest:
    """Return the result of both ladders on failures of the last days.

    ``attempts``: how far the number of attempts counts, by all failures. ``must_save``: whether the advised ladder must
    cost less than today's. ``is_runner_up``: a better one has failed.
    """
    estimate = shares(later, options)
    search = Search.of(estimate, by_attempt(later, estimate, options, attempts), today, 0.0, options)
    found = search.figures(np.array([advised]))
    kept = search.keeps_limits(np.array([advised]))[:, 0]
    is_likely = kept.mean() >= (_LIKELY_OF_RUNNER_UP if is_runner_up else _LIKELY)
    reason = None
    if not (is_likely or (kept[0] and not is_runner_up)):
        reason = "breaks the limits"
    elif must_save and search.saving(advised)[0] <= 0:
        reason = "saves nothing"
    now, then = (Figures(*(getattr(each, name)[0, 0] for name in FIGURES)) for each in (search.current, found))
    return Backtest(later.episodes, now, then, reason)
