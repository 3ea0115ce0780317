"""Wait for the broker: its counts and statistics follow a change."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TypeVar

T = TypeVar("T")


def poll(seconds: float, inspect: Callable[[], T], pause: float, until: Callable[[T], object] = bool) -> T:
    """Inspect every ``pause`` seconds, for ``seconds`` at most, until the result is as wanted; return the last one."""
    deadline = time.monotonic() + seconds
    while not until(found := inspect()) and time.monotonic() < deadline:
        time.sleep(pause)
    return found


def listed_counts(counts: Mapping[str, int | None]) -> str:
    """Return text with the queues that have any, and how many."""
    return ", ".join(f"{name} ({count})" for name, count in counts.items() if count)
