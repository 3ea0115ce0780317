"""What a run is asked for, and the days that come of it: to compute, to read, to advise on. No I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta, timezone

from ..days import Days
from ..estimate.options import Options as Estimate

#: Queue -> ladders in ms.
Ladders = Mapping[str, Sequence[tuple[int, ...]]]

ADVICE_DAYS = 30
LOOKBACK = timedelta(days=7)


@dataclass(frozen=True, kw_only=True)
class Run:
    """What to compute. ``first`` and ``last``: days; None is the first that the history has, and the last one by today.

    ``lookback``: how far before ``first`` files are read, for tasks that failed before.
    ``estimate``: None leaves curves and advice out; they are of the ``advice_days`` days that end with the last one.
    ``ladders``: queues and their ladders in ms for ``what_if``.
    """

    input: str
    output: str
    first: date | None = None
    last: date | None = None
    lookback: timedelta = LOOKBACK
    compact: bool = True
    estimate: Estimate | None = field(default_factory=Estimate)
    advice_days: int = ADVICE_DAYS
    ladders: Ladders = field(default_factory=dict)
    now: datetime = field(default_factory=lambda: datetime.now(timezone.utc))


@dataclass(frozen=True)
class Plan:
    """Days of a run: those that it computes, those that it reads, and those whose episodes curves and advice are of.

    ``waiting``: a task that still waits has failed in these; of one that failed before, the end was lost.
    """

    days: Days
    read: Days
    advice: Days
    waiting: Days

    @property
    def is_newest(self) -> bool:
        """Whether the history has no later days: then all folders of days to come are read, as nobody else tells."""
        return self.read.last == date.max

    def earlier(self, days: Days) -> Days | None:
        """Return those of the days that runs before have computed."""
        if days.first >= self.days.first:
            return None
        return Days(days.first, self.days.first - timedelta(days=1))


def planned(present: Sequence[date], what: Run) -> Plan | None:
    """Return the plan for a history with folders for ``present``; None where there is nothing to compute.

    Days that are named are computed even if they have no files: then they end empty. Raises `AnalyticsError` for days
    the wrong way around.
    """
    by_now = [day for day in present if day <= what.now.date()]
    first = what.first or min(by_now, default=None)
    last = what.last or max(by_now, default=None)
    if first is None or last is None or (last < first and None in (what.first, what.last)):
        return None
    days, end = Days(first, last), Days(last, last)
    # What became of an attempt of the last day may stand in the folder of the next one.
    until = last + timedelta(days=1) if last < max(by_now, default=date.min) else date.max
    advice = end.since(timedelta(days=what.advice_days - 1))
    return Plan(days, Days(days.since(what.lookback).first, until), advice, waiting_in(advice, what.lookback))


def waiting_in(days: Days, lookback: timedelta = LOOKBACK) -> Days:
    """Return the last ones of ``days``: of what failed before them and still waits, the end was lost."""
    return Days(max(days.first, Days(days.last, days.last).since(lookback).first), days.last)
