"""Tasks that requeue their messages repeatedly without a delay: for the log and `doctor`."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass

logger = logging.getLogger(__name__)

#: The remote-control command by which workers return their loops.
COMMAND = "rmq_delay_requeues"
#: A message is in a loop after this many requeues in a row.
LOOP = 100
#: Seconds after the last requeue until a loop is over.
RECENT = 60.0


@dataclass
class Loop:
    """A task that requeues its messages: ``most`` is how often in a row it did so with one of them."""

    queue: str
    task: str
    most: int
    #: Time of its last requeue, in seconds of the monotonic clock.
    at: float


class Requeues:
    """The messages that one worker has requeued for ``Reject(requeue=True)``."""

    def __init__(self) -> None:
        self._loops: dict[tuple[str, str], Loop] = {}

    def add(self, queue: str, task: str, times: int) -> None:
        """Record that a message was requeued ``times`` times in a row; log the 100th time, the 1000th and so on."""
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
