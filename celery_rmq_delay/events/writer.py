"""A publisher of events that never blocks.

Events have a `Link` of their own: on the worker's connection, one publish during a memory or disk alarm makes RabbitMQ
stop reading, and no reject or ack arrives before the alarm is over. Events that the kernel does not accept at once wait
in a bounded buffer, which drops the oldest first.
"""

from __future__ import annotations

import logging
import select
import threading
import time
from collections import deque
from collections.abc import Callable

from ..amqp.link import CHUNK, Lasting, Link
from .frames import ACK, CHANNEL_CLOSE, CONNECTION_CLOSE, NACK, RETURNED, Confirms, Frames, methods, reply_text

logger = logging.getLogger(__name__)

#: The most events, and bytes, that wait for the broker.
MAX_WAITING = 20_000
MAX_WAITING_BYTES = 16 * 1024 * 1024


class EventWriter:
    """Publishes to one queue. Only `close` waits for the broker's confirms; any thread may call `write`.

    ``connect`` opens a link whose default channel is in confirm mode, and declares the queue. It is called in the
    thread of `start`; after a lost connection, in a new thread. Call ``tick`` about every second.
    """

    def __init__(self, connect: Callable[[], Link], queue: str) -> None:
        self._queue = queue
        self._lock = threading.Lock()
        self._link: Link | None = None
        self._lasting = Lasting(connect, self._adopt, self._log)
        self._frames = Frames(queue, channel=1, frame_max=4096)
        self._inbox, self._confirms = bytearray(), Confirms()
        #: The frames that the link has, of so many events; they are written again on another one unless all are sent.
        self._head, self._head_events = b"", 0
        self._waiting: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._dropped = 0

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection."""
        return self._link is not None

    @property
    def waiting(self) -> int:
        """How many events the kernel has not accepted yet."""
        return len(self._waiting) + self._head_events

    @property
    def unconfirmed(self) -> int:
        """How many events written on this connection the broker has not confirmed."""
        return self._confirms.missing

    def start(self) -> None:
        """Connect, if there is no connection. Blocks; a failure is logged, and tried again.

        The socket is read first: a connection that the broker has closed would accept the next events and lose them.
        """
        with self._lock:
            self._read()
        if self._link is None:
            self._lasting.open()

    def write(self, *bodies: bytes) -> None:
        """Publish events; they wait where the broker does not accept them at once."""
        with self._lock:
            for body in bodies:
                self._waiting.append(self._frames.publish(body))
                self._waiting_bytes += len(self._waiting[-1])
            self._flush()
            self._trim()

    def tick(self) -> None:
        """Write waiting events and read the broker's replies."""
        with self._lock:
            self._read()
            self._flush()
            dropped, self._dropped = self._dropped, 0
        if dropped:
            logger.warning("%d events were dropped: the broker did not accept them in time. No task is lost", dropped)

    def close(self, timeout: float = 1.0) -> None:
        """Write waiting events and close the connection. Waits up to ``timeout`` seconds for the broker's confirms.

        Unconfirmed events can be lost: when a channel closes, RabbitMQ drops those that a quorum queue has not stored.
        """
        until = time.monotonic() + timeout
        self._lasting.close()
        with self._lock:
            self._flush()
            self._read()
            while (link := self._link) and (self.waiting or self.unconfirmed) and time.monotonic() < until:
                writers = [link.sock] if self.waiting else []
                select.select([link.sock], writers, [], max(0.0, until - time.monotonic()))
                self._flush()
                self._read()
            if self.waiting or self._dropped:
                lost = self.waiting + self._dropped
                logger.warning("%d events are lost: the broker did not accept them before the worker stopped", lost)
            if self.unconfirmed:
                logger.warning("%d events may be lost: the broker did not confirm them in time", self.unconfirmed)
            if link is not None and not self._inbox:
                link.end(max(0.05, until - time.monotonic()))
            elif link is not None:  # in the middle of a frame, which py-amqp could not read
                link.drop()
            self._forget()

    # -- with the lock held ----------------------------------------------------------------------------------------

    def _trim(self) -> None:
        while len(self._waiting) > MAX_WAITING or self._waiting_bytes > MAX_WAITING_BYTES:
            self._waiting_bytes -= len(self._waiting.popleft())
            self._dropped += 1

    def _take_some(self) -> None:
        """Move waiting events into the frames that are written next."""
        size, frames = 0, list[bytes]()
        while self._waiting and size < CHUNK:
            frames.append(self._waiting.popleft())
            size += len(frames[-1])
        self._waiting_bytes -= size
        self._head, self._head_events = b"".join(frames), len(frames)

    def _flush(self) -> None:
        if self._link is None:
            return
        try:
            self._link.write()
            while not self._link.unsent:
                self._confirms.published += self._head_events
                self._head, self._head_events = b"", 0
                if not self._waiting:
                    return
                self._take_some()
                self._link.write(self._head)
        except (OSError, ValueError) as error:
            self._lost(f"it broke ({error})")

    def _read(self) -> None:
        try:
            while self._link is not None and (data := self._link.receive()):
                self._inbox += data
                if problem := self._problem():
                    self._lost(problem)
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
        link = self._link
        self._forget()
        if link is not None:
            link.drop()
        if not self._lasting.is_closed:
            self._lasting.again(link)

    def _forget(self) -> None:
        self._link = None
        self._inbox.clear()
        self._confirms = Confirms()

    def _log(self, error: Exception, pause: float) -> None:
        logger.warning("No connection for events (%r): trying again in %g s", error, pause)

    def _adopt(self, link: Link) -> None:
        with self._lock:
            if self._lasting.is_closed:
                link.end()
                return
            channel = link.connection.default_channel
            self._frames = Frames(self._queue, channel.channel_id, channel.connection.frame_max)
            self._link = link
            try:
                link.write(self._head)
            except OSError as error:
                self._lost(f"it broke ({error})")
            self._flush()
