"""Plan a run: its options, and the days that it computes, reads and advises on. No I/O."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta, timezone

from ..days import ADVICE_DAYS, Days
from ..estimate.options import Options as Estimate
from ..tables.bursts import DAYS_AFTER, DAYS_BEFORE

#: Queue -> ladders in ms.
Ladders = Mapping[str, Sequence[tuple[int, ...]]]

LOOKBACK = timedelta(days=7)
KEEP_RUNS = timedelta(days=1)

#: Incidents change on days that depend on a computed day, and these depend on days around them.
DAYS_AROUND = DAYS_BEFORE + DAYS_AFTER


@dataclass(frozen=True, kw_only=True)
class Run:
    """The options of a run. ``first`` and ``last``: days; None: the first in the history, and the last one up to today.

    ``lookback``: how far before ``first`` files are read, for tasks that failed earlier.
    ``estimate``: None omits curves and advice, which cover the ``advice_days`` days up to and including the last one.
    ``ladders``: queues and their ladders in ms for ``what_if``.
    ``keep_runs``: how long the tables of a run remain readable after another one was published.
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
    keep_runs: timedelta = KEEP_RUNS
    now: datetime = field(default_factory=lambda: datetime.now(timezone.utc))


@dataclass(frozen=True)
class Plan:
    """The days that a run computes, those that it reads, and those whose episodes curves and advice use.

    ``waiting``: a task that is still waiting failed in these days; if it failed earlier, its end was lost.
    """

    days: Days
    read: Days
    advice: Days
    waiting: Days

    @property
    def around(self) -> Days:
        """The days on which the incidents depend that a run renews."""
        return self.days.extended(DAYS_AROUND, DAYS_AROUND)

    @property
    def is_newest(self) -> bool:
        """Whether the history has no later days: then the folders of all future days are read, too."""
        return self.read.last == date.max

    def renewed(self, present: Container[date]) -> Days:
        """Return the days whose incidents a run writes: the computed ones, and those ``present`` that depend on them.

        A day without failures ends the days that are renewed.
        """
        furthest, day = self.days.extended(DAYS_AFTER, DAYS_BEFORE), timedelta(days=1)
        first, last = self.days.first, self.days.last
        while first > furthest.first and first - day in present:
            first -= day
        while last < furthest.last and last + day in present:
            last += day
        return Days(first, last)

    def earlier(self, days: Days) -> Days | None:
        """Return the part of ``days`` that is before the computed days."""
        if days.first >= self.days.first:
            return None
        return Days(days.first, self.days.first - timedelta(days=1))

    def later(self, days: Days) -> Days | None:
        """Return the part of ``days`` that is after the computed days."""
        if days.last <= self.days.last:
            return None
        return Days(self.days.last + timedelta(days=1), days.last)


def planned(present: Sequence[date], what: Run) -> Plan | None:
    """Return the plan for a history with folders for the days ``present``; None if there is nothing to compute.

    Of days set explicitly those without files become empty, if the history has files of any of them or of the days
    after them, which can have late events. Raises `AnalyticsError` if the first day is after the last.
    """
    by_now = [day for day in present if day <= what.now.date()]
    first = what.first or min(by_now, default=None)
    last = what.last or max(by_now, default=None)
    if first is None or last is None or (last < first and None in (what.first, what.last)):
        return None
    days, end = Days(first, last), Days(last, last)
    # The outcome of an attempt of the last day may be in the folder of the next day, and the incidents of the next days
    # depend on the last one.
    until = last + timedelta(days=DAYS_AROUND) if last < max(by_now, default=date.min) else date.max
    if not any(day in Days(first, until) for day in present):
        return None
    advice = end.since(timedelta(days=what.advice_days - 1))
    return Plan(days, Days(days.since(what.lookback).first, until), advice, waiting_in(advice, what.lookback))


def waiting_in(days: Days, lookback: timedelta = LOOKBACK) -> Days:
    """Return the last of ``days``: if a task failed before them and is still waiting, its end was lost."""
    return Days(max(days.first, Days(days.last, days.last).since(lookback).first), days.last)
