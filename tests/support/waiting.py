"""Waiting for a condition, with a deadline."""

import random
import time
from collections.abc import Callable
from typing import Any

SECONDS = 240.0
#: Seconds that a busy machine may take for work that takes an idle one none. Benchmarks measure the latter.
BUSY = 30.0


class Pauses:
    """Pauses of the test process after some of its waits, as on a busy machine; none unless ``seconds`` is set.

    No test may depend on being in time: each should pass with them.
    """

    MOST = 10
    """For one test: some wait for hundreds of messages."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._dice, self._left = random.Random(), self.MOST

    def begin(self, test: str) -> None:
        self._dice.seed(test)
        self._left = self.MOST

    def pause(self) -> None:
        """Pause for up to ``seconds``, one time in three."""
        if self.seconds and self._left and self._dice.random() < 1 / 3:
            self._left -= 1
            time.sleep(self._dice.uniform(0, self.seconds))


PAUSES = Pauses()


def wait_for(condition: Callable[[], Any], what: str = "", seconds: float = SECONDS, pause: float = 0.01) -> Any:
    """Return the first true value of ``condition``; fail after ``seconds``."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, f"{what or condition}: not within {seconds:g} s"
        time.sleep(pause)
    PAUSES.pause()
    return found
