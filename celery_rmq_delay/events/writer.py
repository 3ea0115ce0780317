"""A publisher of events that never blocks.

Events have a separate connection: on the worker's, one publish during a memory or disk alarm makes RabbitMQ stop
reading, and no reject or ack arrives before the alarm is over. Events that the kernel does not accept at once wait in a
bounded buffer, which drops the oldest first.
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
    close_frame,
    methods,
    reply_text,
)

if TYPE_CHECKING:
    from kombu import Connection

logger = logging.getLogger(__name__)

#: The most events, and bytes, that wait for the broker.
MAX_WAITING = 20_000
MAX_WAITING_BYTES = 16 * 1024 * 1024
#: Bytes that are written at once.
_CHUNK = 64 * 1024

_WOULD_BLOCK = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class EventWriter:
    """Publishes to one queue. Only `close` waits for the broker's confirms; any thread may call `write`.

    ``connect`` opens a connection whose default channel is in confirm mode, and declares the queue. It is called in the
    thread of `start`; after a lost connection, in a new thread. Call ``tick`` about every second.
    """

    def __init__(self, connect: Callable[[], Connection], queue: str) -> None:
        self._connect, self._queue = connect, queue
        self._lock = threading.Lock()
        self._connection: Connection | None = None
        self._socket: Any = None
        self._frames = Frames(queue, channel=1, frame_max=4096)
        self._inbox, self._confirms = bytearray(), Confirms()
        #: The bytes written next, and how many the kernel has; all of them are written again on another connection.
        self._head, self._head_events, self._sent = b"", 0, 0
        self._waiting: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._backoff, self._next_try, self._opened_at = Backoff(), 0.0, 0.0
        self._connecting = self._closed = False
        self._dropped = 0

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection."""
        return self._socket is not None

    @property
    def waiting(self) -> int:
        """How many events the kernel has not accepted yet."""
        return len(self._waiting) + self._head_events

    @property
    def unconfirmed(self) -> int:
        """How many events written on this connection the broker has not confirmed."""
        return self._confirms.missing

    def start(self) -> None:
        """Connect, if there is no connection. Blocks; a failure is logged, and `tick` tries again.

        The socket is read first: a connection that the broker has closed would accept the next events and lose them.
        """
        with self._lock:
            if self._socket is not None:
                self._read()
        if self._socket is None and not self._connecting:
            self._connecting = True
            self._open()

    def write(self, *bodies: bytes) -> None:
        """Publish events; they wait where the broker does not accept them at once."""
        with self._lock:
            for body in bodies:
                self._waiting.append(self._frames.publish(body))
                self._waiting_bytes += len(self._waiting[-1])
            if self._socket is not None:
                self._flush()
            self._trim()

    def tick(self) -> None:
        """Write waiting events, read the broker's replies, and reconnect if needed."""
        with self._lock:
            if self._socket is not None:
                self._read()
            if self._socket is not None:  # reading may have found that it is closed
                self._flush()
            dropped, self._dropped = self._dropped, 0
        if dropped:
            logger.warning("%d events were dropped: the broker did not accept them in time. No task is lost", dropped)
        if self._socket is None and not self._connecting and not self._closed and time.monotonic() >= self._next_try:
            self._connecting = True
            threading.Thread(target=self._open, name="rmq-delay-events", daemon=True).start()

    def close(self, timeout: float = 1.0) -> None:
        """Write waiting events and close the connection. Waits up to ``timeout`` seconds for the broker's confirms.

        Unconfirmed events can be lost: when a channel closes, RabbitMQ drops those that a quorum queue has not stored.
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
                logger.warning("%d events are lost: the broker did not accept them before the worker stopped", lost)
            if self.unconfirmed:
                logger.warning("%d events may be lost: the broker did not confirm them in time", self.unconfirmed)
            if self._socket is not None and not self.waiting:
                self._close_cleanly(until)
            self._drop_connection()

    # -- with the lock held ----------------------------------------------------------------------------------------

    def _trim(self) -> None:
        while len(self._waiting) > MAX_WAITING or self._waiting_bytes > MAX_WAITING_BYTES:
            self._waiting_bytes -= len(self._waiting.popleft())
            self._dropped += 1

    def _take_some(self) -> None:
        """Move waiting events into the bytes that are written next."""
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
        """Return why the connection cannot be used any more, from the broker's replies; None if it can."""
        for method, arguments in methods(self._inbox):
            if method in (ACK, NACK):
                self._dropped += self._confirms.answer(method, arguments)
            elif method == RETURNED:
                return f"the queue {self._queue} is missing and will be declared again"
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
            connection.collect()  # closes the socket without a close frame

    def _close_cleanly(self, until: float) -> None:
        """Close with a handshake, so that the broker has read everything that was written."""
        try:
            self._socket.settimeout(max(0.05, until - time.monotonic()))
            self._socket.sendall(close_frame())
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
        except Exception as error:  # noqa: BLE001 - tasks continue without events whatever the error
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
