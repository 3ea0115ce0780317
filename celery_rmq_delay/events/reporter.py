"""When the worker's main process tells of the messages it settles.

Telling never waits, and an event that cannot be sent is logged and raises nothing. Only the consumer's start and end
wait: to connect, and up to a second for what is left.

What ends a task's story is written before its message is settled. What a later attempt would tell, too, waits a moment
for company: making and writing events one by one is what would cost.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from .encode import EventMaker, Told, Waits
from .queue import connect_events
from .schema import EXHAUSTED, FORWARDED, PARKED, ROLLUP, ROLLUP_SECONDS
from .writer import EventWriter

if TYPE_CHECKING:
    from kombu import Connection
    from kombu.message import Message

    from ..app.state import AppState

logger = logging.getLogger(__name__)

#: Seconds between two looks at the connection.
TICK = 1.0
#: Seconds that an event waits for others, and how many wait at most.
LINGER, MOST_LINGERING = 0.1, 200
_LINGERING = frozenset({PARKED, FORWARDED})

_T = TypeVar("_T")


class Reporter:
    """Sends the events of one consumer."""

    def __init__(self, consumer: Any, delay: AppState) -> None:
        self._consumer, self._delay = consumer, delay
        self._maker = EventMaker(delay, consumer.hostname)
        self._writer = EventWriter(self._connect, delay.settings.names.events)
        self._lock = threading.Lock()
        self._told: list[Told] = []
        self._is_waiting = False
        self._successes: dict[tuple[str, str, int], int] = {}
        self._complained: set[str] = set()
        #: Which series of ticks goes on: a consumer that connects anew may keep the timers of the one before, or not.
        self._series: object = None
        #: The event loop's.
        self._thread = 0

    # -- the consumer's life ---------------------------------------------------------------------------------------

    def start(self) -> None:
        """Connect, with each new connection of the consumer. Blocks; the loop does not run yet."""
        self._writer.start()
        self._thread = threading.get_ident()
        self._series = series = object()
        self._tick_later(series)

    def _tick_later(self, series: object) -> None:
        self._consumer.timer.call_after(TICK, self._tick, (series,))

    def _tick(self, series: object) -> None:
        """Send what waits, and the rollups of slots that are over; look after the connection."""
        if series is not self._series:
            return
        self._tick_later(series)
        self.send()
        self._send_rollups(before=_slot())
        self._guarded("connection", self._writer.tick)

    def close(self) -> None:
        """Send what is left and close the connection. Waits a second at most."""
        self._series = None
        self.send()
        self._send_rollups(before=None)
        self._guarded("connection", self._writer.close)

    def _connect(self) -> Connection:
        return connect_events(self._consumer.connection or self._consumer.app.connection_for_read(), self._delay)

    # -- what is told ----------------------------------------------------------------------------------------------

    def succeeded(self, task: str, queue: str) -> None:
        """Count a first attempt that succeeded."""
        key = task, queue, _slot()
        with self._lock:
            self._successes[key] = self._successes.get(key, 0) + 1

    def tell(
        self,
        kind: str,
        request: Any,
        exception: BaseException | None = None,
        traceback: str | None = None,
        waits: Waits | None = None,
        reason: str | None = None,
        crashes: int = 0,
    ) -> None:
        """Send an event of the task of ``request``, see `Told`; at once, unless a later one would tell as much."""
        told = Told(kind, time.time_ns() // 1000, request, exception, traceback, waits, reason, crashes)
        with self._lock:
            self._told.append(told)
        if kind not in _LINGERING or len(self._told) >= MOST_LINGERING:
            self.send()
        elif not self._is_waiting:
            self._is_waiting = True
            self._guarded("timer", self._send_later)

    def tell_undecodable(self, message: Message, queue: str, exception: BaseException, reason: str) -> None:
        """Send the event of a message that nobody could read."""
        self._write(EXHAUSTED, self._maker.of_undecodable, message, queue, exception, time.time_ns() // 1000, reason)

    def send(self) -> None:
        """Make and write what was told so far."""
        with self._lock:
            self._is_waiting = False
            told, self._told = self._told, []
        made = [self._guarded(each.kind, self._maker.of_task, each) for each in told]
        if made:
            self._guarded("connection", self._writer.write, *filter(None, made))

    def _send_later(self) -> None:
        timer, hub = self._consumer.timer, self._consumer.hub
        if hub is None or threading.get_ident() == self._thread:
            timer.call_after(LINGER, self.send)
        else:  # a thread of the pool: a hub's timer is for the loop's alone
            hub.call_soon(timer.call_after, LINGER, self.send)

    def _send_rollups(self, before: int | None) -> None:
        with self._lock:
            due = [key for key in self._successes if before is None or key[2] < before]
            counted = [(*key, self._successes.pop(key)) for key in due]
        for task, queue, slot, count in counted:
            self._write(ROLLUP, self._maker.of_successes, task, queue, slot, count, uuid.uuid4().hex)

    def _write(self, kind: str, make: Callable[..., bytes], *facts: Any) -> None:
        body = self._guarded(kind, make, *facts)
        if body is not None:
            self._guarded("connection", self._writer.write, body)

    def _guarded(self, what: str, act: Callable[..., _T], *arguments: Any) -> _T | None:
        """Do ``act``; where it fails, log it the first time and return None."""
        try:
            return act(*arguments)
        except Exception:
            if what not in self._complained:
                self._complained.add(what)
                logger.exception(
                    "An event (%s) could not be sent; more of these are not logged. No task is affected", what
                )
            return None


def _slot() -> int:
    return int(time.time() // ROLLUP_SECONDS)
