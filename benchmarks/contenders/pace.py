"""Publish at a steady rate."""

from __future__ import annotations

import time
from collections.abc import Iterator


class Pace:
    """Task numbers from ``first`` on, at most ``per_second`` of them per second; None: as fast as possible.

    ``started`` is when the first one was requested (monotonic seconds): the *n*-th after it was due
    ``n / per_second`` seconds later.
    """

    def __init__(self, count: int, per_second: float | None = None, first: int = 0) -> None:
        self._numbers, self._per_second = range(first, first + count), per_second
        self.started = 0.0

    def __iter__(self) -> Iterator[int]:
        self.started = time.monotonic()
        for done, number in enumerate(self._numbers):
            if self._per_second:
                time.sleep(max(0.0, self.started + done / self._per_second - time.monotonic()))
            yield number
