"""The times at which an operation can start."""

from __future__ import annotations

from datetime import datetime, timedelta

from .. import clock

#: How far in the future an operation can start.
LATEST = timedelta(days=366)


def schedule_problem(moment: datetime) -> str:
    """Return why an operation cannot be scheduled for a time; an empty text where it can."""
    away = moment - clock.now()
    if timedelta(minutes=-1) < away < LATEST:
        return ""
    found = moment.isoformat(sep=" ", timespec="minutes")
    return f"Found {found}: choose a time from now on, within {LATEST.days} days."
