"""Publishing at a steady rate."""

from __future__ import annotations

import time
from collections.abc import Iterator


def paced(count: int, per_second: float | None) -> Iterator[int]:
    """Yield 0 up to ``count``, at most ``per_second`` of them in a second; None is as fast as can be."""
    started = time.monotonic()
    for number in range(count):
        if per_second:
            time.sleep(max(0.0, started + number / per_second - time.monotonic()))
        yield number
