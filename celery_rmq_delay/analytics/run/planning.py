"""Plan a run, and report it: its options, the days that it computes, reads and advises on, its figures. No I/O."""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import date, datetime, timedelta, timezone
from typing import Any

from ...tables import table
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
    """The days that a run computes, reads, advises on; a task ``waiting`` since before these has lost its end."""

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


@dataclass
class Report:
    """The figures of a run; seconds by stage, files left out by reason, sizes in bytes, seconds by wrong clock."""

    run: str
    input: str
    output: str
    started_at: datetime
    first_day: str | None = None
    last_day: str | None = None
    read_from: str | None = None
    advice_from: str | None = None
    files: int = 0
    bytes_read: int = 0
    left_out: dict[str, int] = field(default_factory=dict)
    rows_in: int = 0
    quarantined: dict[str, int] = field(default_factory=dict)
    duplicates: int = 0
    events: int = 0
    clocks: dict[str, float] = field(default_factory=dict)
    tables: dict[str, int] = field(default_factory=dict)
    bytes_written: int = 0
    compacted: dict[str, int] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @contextmanager
    def stage(self, name: str, log: Callable[[str], None]) -> Iterator[None]:
        """Time a stage, and log that it begins and how long it took."""
        began = time.monotonic()
        log(f"{name} ...")
        yield
        self.seconds[name] = round(self.seconds.get(name, 0.0) + time.monotonic() - began, 2)
        log(f"{name}: {self.seconds[name]:.1f} s")

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {**asdict(self), "started_at": self.started_at.isoformat()}

    def text(self) -> str:
        """Return the report as a table for a terminal."""
        facts: list[tuple[str, object]] = [
            ("days", "none" if self.first_day is None else f"{self.first_day} to {self.last_day}"),
            ("read from", self.read_from),
            ("advice from", self.advice_from),
            ("files", self.files),
            ("bytes read", self.bytes_read),
            *[(f"files left out: {reason}", count) for reason, count in sorted(self.left_out.items())],
            ("rows in", self.rows_in),
            *[(f"quarantined: {reason}", count) for reason, count in sorted(self.quarantined.items())],
            ("duplicates", self.duplicates),
            ("events", self.events),
            *[(f"clock of {worker}", f"{seconds:+.1f} s") for worker, seconds in self.clocks.items()],
            *[(f"days of {name}", count) for name, count in self.tables.items()],
            ("bytes written", self.bytes_written),
            *[(f"compacted: {name}", count) for name, count in self.compacted.items()],
            *[(f"seconds: {name}", f"{seconds:.1f}") for name, seconds in self.seconds.items()],
        ]
        return "\n".join([table(("run", self.run), facts, right={self.run}), *[f"note: {note}" for note in self.notes]])
