"""Tasks that put their messages back at once, over and over: for the log and for the doctor."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass

logger = logging.getLogger(__name__)

#: The remote-control command by which workers return their loops.
COMMAND = "rmq_delay_requeues"
#: From so many requeues in a row on, a message is in a loop.
LOOP = 100
#: Seconds after the last requeue in which a loop is still one.
RECENT = 60.0


@dataclass
class Loop:
    """A task that requeues its messages: ``most`` is how often in a row it did so with one of them."""

    queue: str
    task: str
    most: int
    #: When it did so last: seconds of the monotonic clock.
    at: float


class Requeues:
    """What one worker has seen of ``Reject(requeue=True)``."""

    def __init__(self) -> None:
        self._loops: dict[tuple[str, str], Loop] = {}

    def add(self, queue: str, task: str, times: int) -> None:
        """Note that a message was requeued ``times`` times in a row; log the 100th time, the 1000th and so on."""
        if times < LOOP:
            return
        now, known = time.monotonic(), self._loops.get((queue, task))
        most = max(times, known.most) if known and now - known.at < RECENT else times
        self._loops[queue, task] = Loop(queue, task, most, now)
        if str(times).rstrip("0") == "1":
            logger.warning(
                "Task %s has requeued a message in queue %s %d times in a row with Reject(requeue=True), which does "
                "not wait: call self.retry() instead.",
                task,
                queue,
                times,
                extra={"queue": queue},
            )

    def loops(self) -> list[Loop]:
        """Return the loops of the last `RECENT` seconds."""
        return [loop for loop in self._loops.values() if time.monotonic() - loop.at < RECENT]
