"""Events on their way to the broker: written without ever waiting.

They have a connection of their own. On the worker's, one publish during a memory or disk alarm makes RabbitMQ stop
reading, and then no reject and no ack gets through before the alarm is over. What the kernel does not take at once
waits here, within bounds; the oldest is dropped first.
"""

from __future__ import annotations

import logging
import select
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..amqp.backoff import STABLE, Backoff
from .frames import (
    ACK,
    CHANNEL_CLOSE,
    CONNECTION_CLOSE,
    CONNECTION_CLOSED,
    NACK,
    RETURNED,
    Confirms,
    Frames,
    goodbye,
    methods,
    reply_text,
)

if TYPE_CHECKING:
    from kombu import Connection

logger = logging.getLogger(__name__)

#: What waits for the broker at most: events, and bytes.
MAX_WAITING = 20_000
MAX_WAITING_BYTES = 16 * 1024 * 1024
#: Bytes that are written at once.
_CHUNK = 64 * 1024

_WOULD_BLOCK = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class EventWriter:
    """Publishes to one queue. No method but `close` waits for the broker's confirms; any thread may call `write`.

    ``connect`` opens a connection whose default channel confirms, and declares the queue; it is called in the thread of
    `start`, and after a loss in one of its own. ``tick`` has to be called every second or so.
    """

    def __init__(self, connect: Callable[[], Connection], queue: str) -> None:
        self._connect, self._queue = connect, queue
        self._lock = threading.Lock()
        self._connection: Connection | None = None
        self._socket: Any = None
        self._frames = Frames(queue, channel=1, frame_max=4096)
        self._inbox, self._confirms = bytearray(), Confirms()
        #: What is written next, and how much of it the kernel has; it is written anew on another connection.
        self._head, self._head_events, self._sent = b"", 0, 0
        self._waiting: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._backoff, self._next_try, self._opened_at = Backoff(), 0.0, 0.0
        self._connecting = self._closed = False
        self._dropped = 0

    @property
    def is_connected(self) -> bool:
        """Whether events go to a broker at the moment."""
        return self._socket is not None

    @property
    def waiting(self) -> int:
        """How many events the kernel has not taken yet."""
        return len(self._waiting) + self._head_events

    @property
    def unconfirmed(self) -> int:
        """How many events the kernel has taken, and the broker has not answered for; of this connection."""
        return self._confirms.missing

    def start(self) -> None:
        """Connect, if there is no connection. Blocks; a failure is logged and tried again later.

        One that the broker has closed meanwhile would still take the next events, and lose them: it is looked at first.
        """
        with self._lock:
            if self._socket is not None:
                self._read()
        if self._socket is None and not self._connecting:
            self._connecting = True
            self._open()

    def write(self, *bodies: bytes) -> None:
        """Publish events; they wait where the broker does not take them at once."""
        with self._lock:
            for body in bodies:
                self._waiting.append(self._frames.publish(body))
                self._waiting_bytes += len(self._waiting[-1])
            if self._socket is not None:
                self._flush()
            self._trim()

    def tick(self) -> None:
        """Write what waits, look at what the broker says, connect anew where that is needed."""
        with self._lock:
            if self._socket is not None:
                self._read()
            if self._socket is not None:  # what was read may have been the end
                self._flush()
            dropped, self._dropped = self._dropped, 0
        if dropped:
            logger.warning("%d events were dropped: the broker did not take them in time. No task is affected", dropped)
        if self._socket is None and not self._connecting and not self._closed and time.monotonic() >= self._next_try:
            self._connecting = True
            threading.Thread(target=self._open, name="rmq-delay-events", daemon=True).start()

    def close(self, timeout: float = 1.0) -> None:
        """Write what waits and close the connection. Waits up to ``timeout`` seconds for the broker's confirms.

        What the broker has read is not safe yet: a channel that is closed forgets what a quorum queue has not taken.
        """
        until = time.monotonic() + timeout
        with self._lock:
            self._closed = True
            while self._socket is not None and (self.waiting or self.unconfirmed) and time.monotonic() < until:
                self._flush()
                if self._socket is not None:
                    self._read()
                if self._socket is not None and (self.waiting or self.unconfirmed):
                    writers = [self._socket] if self.waiting else []
                    select.select([self._socket], writers, [], max(0.0, until - time.monotonic()))
            if self.waiting or self._dropped:
                lost = self.waiting + self._dropped
                logger.warning("%d events are lost: the broker did not take them before the end", lost)
            if self.unconfirmed:
                logger.warning("%d events may be lost: the broker did not confirm them in time", self.unconfirmed)
            if self._socket is not None and not self.waiting:
                self._say_goodbye(until)
            self._drop_connection()

    # -- with the lock held ----------------------------------------------------------------------------------------

    def _trim(self) -> None:
        while len(self._waiting) > MAX_WAITING or self._waiting_bytes > MAX_WAITING_BYTES:
            self._waiting_bytes -= len(self._waiting.popleft())
            self._dropped += 1

    def _take_some(self) -> None:
        """Make what is written next of what waits."""
        size, frames = 0, list[bytes]()
        while self._waiting and size < _CHUNK:
            frames.append(self._waiting.popleft())
            size += len(frames[-1])
        self._waiting_bytes -= size
        self._head, self._head_events, self._sent = b"".join(frames), len(frames), 0

    def _flush(self) -> None:
        try:
            while self._head or self._waiting:
                if not self._head:
                    self._take_some()
                self._sent += self._socket.send(self._head[self._sent :] if self._sent else self._head)
                if self._sent >= len(self._head):
                    self._confirms.published += self._head_events
                    self._head, self._head_events = b"", 0
        except _WOULD_BLOCK:
            return
        except (OSError, ValueError) as error:
            self._lost(f"it broke ({error})")

    def _read(self) -> None:
        try:
            while data := self._socket.recv(65_536):
                self._inbox += data
                if problem := self._problem():
                    self._lost(problem)
                    return
            self._lost("the broker closed it")
        except _WOULD_BLOCK:
            return
        except (OSError, ValueError) as error:
            self._lost(f"it broke ({error})")

    def _problem(self) -> str | None:
        """Return why the connection is of no more use, by what the broker has sent."""
        for method, arguments in methods(self._inbox):
            if method in (ACK, NACK):
                self._dropped += self._confirms.answer(method, arguments)
            elif method == RETURNED:
                return f"the queue {self._queue} is gone; it is declared anew"
            elif method in (CONNECTION_CLOSE, CHANNEL_CLOSE):
                return f"the broker closed it ({reply_text(arguments)})"
        return None

    def _lost(self, why: str) -> None:
        doubt = f". {self.unconfirmed} were not confirmed and may be lost" if self.unconfirmed else ""
        logger.warning("Events wait for a new connection: %s%s", why, doubt)
        if time.monotonic() - self._opened_at > STABLE:
            self._backoff.reset()
        self._next_try = time.monotonic() + self._backoff.pause()
        self._sent = 0
        self._drop_connection()

    def _drop_connection(self) -> None:
        connection, self._connection, self._socket = self._connection, None, None
        self._inbox.clear()
        self._confirms = Confirms()
        if connection is not None:
            connection.collect()  # closes the socket without a word

    def _say_goodbye(self, until: float) -> None:
        """Close in good order, so that the broker has read everything that was written."""
        try:
            self._socket.settimeout(max(0.05, until - time.monotonic()))
            self._socket.sendall(goodbye())
            while data := self._socket.recv(65_536):
                self._inbox += data
                if any(method == CONNECTION_CLOSED for method, _ in methods(self._inbox)):
                    return
        except (OSError, ValueError):
            return

    # -- connecting ------------------------------------------------------------------------------------------------

    def _open(self) -> None:
        try:
            connection = self._connect()
        except Exception as error:  # noqa: BLE001 - whatever it is, tasks go on without events
            pause = self._backoff.pause()
            logger.warning("No connection for events (%r): trying again in %g s", error, pause)
            self._next_try = time.monotonic() + pause
            self._connecting = False
            return
        with self._lock:
            self._connection, self._connecting = connection, False
            self._opened_at = time.monotonic()
            if self._closed:
                self._drop_connection()
                return
            opened: Any = connection.default_channel
            self._frames = Frames(self._queue, opened.channel_id, opened.connection.frame_max)
            self._socket = opened.connection.transport.sock
            self._socket.setblocking(False)
            self._flush()
