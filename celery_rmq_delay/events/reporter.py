"""Emits events about the messages that the worker's main process settles.

Emitting never waits; an event that cannot be sent is logged and raises nothing. Only the consumer's start and stop
wait: for the connection, and up to a second for the remaining events.

The last event of a task is written before its message is settled. Events that a later attempt would repeat are encoded
and written in groups: one by one costs more CPU.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from .. import headers as h
from .encode import EventMaker, PendingEvent, Waits
from .queue import connect_events
from .schema import EXHAUSTED, FORWARDED, PARKED, ROLLUP, ROLLUP_SECONDS
from .writer import EventWriter

if TYPE_CHECKING:
    from kombu.message import Message

    from ..amqp.link import Link
    from ..app.state import AppState

logger = logging.getLogger(__name__)

#: Seconds between two checks of the connection.
TICK = 1.0
#: Seconds that an event waits for others, and the most that wait.
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
        self._pending: list[PendingEvent] = []
        self._is_waiting = False
        self._successes: dict[tuple[str, str, int], int] = {}
        self._logged: set[str] = set()
        #: The current series of ticks: after a reconnect the timers of the connection before may still run, or not.
        self._series: object = None
        #: The event loop's thread.
        self._thread = 0

    # -- the consumer's life ---------------------------------------------------------------------------------------

    def start(self) -> None:
        """Connect; called for each new connection of the consumer. Blocks: the event loop does not run yet."""
        self._writer.start()
        self._thread = threading.get_ident()
        self._series = series = object()
        self._tick_later(series)

    def _tick_later(self, series: object) -> None:
        self._consumer.timer.call_after(TICK, self._tick, (series,))

    def _tick(self, series: object) -> None:
        """Send pending events and the rollups of slots that are over; check the connection."""
        if series is not self._series:
            return
        self._tick_later(series)
        self.send()
        self._send_rollups(before=_slot())
        self._guarded("connection", self._writer.tick)

    def close(self) -> None:
        """Send pending events and close the connection. Waits a second at most."""
        self._series = None
        self.send()
        self._send_rollups(before=None)
        self._guarded("connection", self._writer.close)

    def _connect(self) -> Link:
        return connect_events(self._consumer.connection or self._consumer.app.connection_for_read(), self._delay)

    # -- events -----------------------------------------------------------------------------------------------------

    def succeeded(self, task: str, queue: str) -> None:
        """Count a first attempt that succeeded."""
        key = task, queue, _slot()
        with self._lock:
            self._successes[key] = self._successes.get(key, 0) + 1

    def emit(
        self,
        kind: str,
        request: Any,
        exception: BaseException | None = None,
        traceback: str | None = None,
        waits: Waits | None = None,
        reason: str | None = None,
        crashes: int = 0,
    ) -> None:
        """Send an event of the task of ``request``, see `PendingEvent`; parked ones wait up to `LINGER` s."""
        event = PendingEvent(kind, time.time_ns() // 1000, request, exception, traceback, waits, reason, crashes)
        with self._lock:
            self._pending.append(event)
        if kind not in _LINGERING or len(self._pending) >= MOST_LINGERING:
            self.send()
        elif not self._is_waiting:
            self._is_waiting = True
            self._guarded("timer", self._send_later)

    def emit_undecodable(
        self, message: Message, headers: h.Headers, queue: str, exception: BaseException, reason: str
    ) -> None:
        """Send the event of a message that could not be decoded; ``headers`` as received."""
        at_us = time.time_ns() // 1000
        self._write(EXHAUSTED, self._maker.of_undecodable, message, headers, queue, exception, at_us, reason)

    def send(self) -> None:
        """Encode and write all pending events."""
        with self._lock:
            self._is_waiting = False
            pending, self._pending = self._pending, []
        made = [self._guarded(each.kind, self._maker.of_task, each) for each in pending]
        if made:
            self._guarded("connection", self._writer.write, *filter(None, made))

    def _send_later(self) -> None:
        timer, hub = self._consumer.timer, self._consumer.hub
        if hub is None or threading.get_ident() == self._thread:
            timer.call_after(LINGER, self.send)
        else:  # a thread of the pool: only the loop's thread may use the hub's timer
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
        """Call ``act``; if it fails, log the first failure of ``what`` and return None."""
        try:
            return act(*arguments)
        except Exception:
            if what not in self._logged:
                self._logged.add(what)
                logger.exception(
                    "An event (%s) could not be sent; further failures are not logged. No task is affected", what
                )
            return None


def _slot() -> int:
    return int(time.time() // ROLLUP_SECONDS)
