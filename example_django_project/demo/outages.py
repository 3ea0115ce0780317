"""Schedules of when a partner's server works and when it does not."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from enum import Enum


class Mood(Enum):
    """How a server behaves."""

    UP = "up"
    FLAKY = "flaky"
    SLOW = "slow"
    DOWN = "down"


@dataclass
class Schedule:
    """Phases with durations in seconds, repeated. Time begins with `start`; before, the server is up."""

    phases: tuple[tuple[Mood, float], ...]
    _started: float | None = field(default=None, init=False)

    def start(self) -> None:
        """Start the first phase."""
        self._started = time.monotonic()

    def now(self) -> tuple[Mood, float]:
        """Return the mood and the seconds until the next one."""
        if self._started is None:
            return Mood.UP, 0.0
        return self.at(time.monotonic() - self._started)

    def at(self, seconds: float) -> tuple[Mood, float]:
        """Return the mood ``seconds`` after the start and the seconds until the next one."""
        within = seconds % sum(length for _, length in self.phases)
        for mood, length in self.phases:
            if within < length:
                return mood, length - within
            within -= length
        return self.phases[0]


def payment_outages() -> Schedule:
    """The schedule of the payment gateway."""
    return Schedule(
        ((Mood.UP, 3), (Mood.DOWN, 6), (Mood.FLAKY, 6), (Mood.SLOW, 3), (Mood.UP, 22)),
    )


def mail_outages() -> Schedule:
    """The schedule of the mail server."""
    return Schedule(((Mood.UP, 7), (Mood.DOWN, 7), (Mood.SLOW, 4), (Mood.UP, 22)))


def feed_outages() -> Schedule:
    """The schedule of the suppliers: away for the first seconds."""
    return Schedule(((Mood.DOWN, 5), (Mood.UP, 35)))
