"""The attempts of a task as a timeline, with planned and actual delays. No I/O."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import zip_longest

from ..models import Attempt


@dataclass(frozen=True)
class Step:
    """One attempt; ``waited_ms`` is the time from its end to the next one's start, if known."""

    attempt: Attempt
    number: int
    started_at: datetime
    waited_ms: int | None

    @property
    def late_ms(self) -> int | None:
        """How much longer than planned it waited."""
        planned = self.attempt.delay_ms
        return None if planned is None or self.waited_ms is None else self.waited_ms - planned


def timeline(attempts: Sequence[Attempt]) -> list[Step]:
    """Return the steps of one task's attempts, which must be in order."""
    steps: list[Step] = []
    for attempt, following in zip_longest(attempts, attempts[1:]):
        waited = None
        if following is not None and attempt.delay_ms is not None and following.generation == attempt.generation:
            waited = round((_started(following) - attempt.occurred_at).total_seconds() * 1000)
        steps.append(Step(attempt, attempt.attempt + 1, _started(attempt), waited))
    return steps


def _started(attempt: Attempt) -> datetime:
    return attempt.occurred_at - timedelta(milliseconds=attempt.runtime_ms or 0)
