"""Ranges of days in UTC, and the folder names of days in the history and the tables. No I/O."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, timedelta

from ..exceptions import AnalyticsError

#: The days that curves and advice cover.
ADVICE_DAYS = 30

_FOLDER = re.compile(r"day=(\d{4}-\d{2}-\d{2})")


@dataclass(frozen=True)
class Days:
    """All days from ``first`` to ``last``, both included. Raises `AnalyticsError` if ``last`` is earlier."""

    first: date
    last: date

    def __post_init__(self) -> None:
        if self.last < self.first:
            raise AnalyticsError(f"days: found {self.first} to {self.last}. The first day must not be after the last.")

    def __iter__(self) -> Iterator[date]:
        return (self.first + timedelta(days=number) for number in range(len(self)))

    def __len__(self) -> int:
        return (self.last - self.first).days + 1

    def __contains__(self, day: object) -> bool:
        return isinstance(day, date) and self.first <= day <= self.last

    def __str__(self) -> str:
        return str(self.first) if self.first == self.last else f"{self.first} to {self.last}"

    def since(self, earlier: timedelta) -> Days:
        """Return these days, extended into the past by ``earlier``, rounded up to whole days."""
        return self.extended(-(-earlier // timedelta(days=1)), 0)

    def extended(self, before: int, after: int) -> Days:
        """Return these days, extended by ``before`` and ``after`` days, within the range of `date`."""
        first = self.first - timedelta(days=min(before, (self.first - date.min).days))
        return Days(first, self.last + timedelta(days=min(after, (date.max - self.last).days)))


def day_of(folder: str) -> date | None:
    """Return the day that a folder such as ``day=2026-01-31`` is for; None for any other name."""
    match = _FOLDER.fullmatch(folder)
    try:
        return date.fromisoformat(match[1]) if match else None
    except ValueError:
        return None


def parse_day(text: str, option: str) -> date:
    """Return the day that ``text`` names. Raises `AnalyticsError`, which names ``option``."""
    try:
        return date.fromisoformat(text)
    except ValueError as error:
        raise AnalyticsError(f"{option}: found {text!r}. Write a day as 2026-01-31.") from error
