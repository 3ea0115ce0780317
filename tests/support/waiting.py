"""How tests wait: for a condition, with a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

SECONDS = 240.0
#: Seconds that a busy machine may take for what takes an idle one none. How long it takes that one, benchmarks measure.
BUSY = 30.0


def wait_for(condition: Callable[[], Any], what: str = "", seconds: float = SECONDS, pause: float = 0.01) -> Any:
    """Return the first true value of ``condition``; fail after ``seconds``."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, f"{what or condition}: not within {seconds:g} s"
        time.sleep(pause)
    return found
