"""A connection to the broker on which nothing waits.

In a memory or disk alarm RabbitMQ stops reading from a connection that publishes, and a peer that is cut off reads
nothing either: written frames fill the kernel's buffers, and a method's reply does not come. On a link, frames that the
kernel does not accept at once wait in the process.

A link is open or blocked; once it is lost or closed it stays so, and `Lasting` opens the next one.
"""

from __future__ import annotations

import errno
import ssl
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from typing import Any, Generic, TypeVar

import amqp
from amqp import method_framing
from kombu import Connection

from .connections import keeps_waiting

#: Seconds after which a connection counts as stable, and the next pause is the first one again.
STABLE = 30.0


class Backoff:
    """Pauses that double, from ``first`` to ``longest`` seconds."""

    def __init__(self, first: float = 1.0, longest: float = 30.0) -> None:
        self._first, self._longest = first, longest
        self._next = first

    def pause(self) -> float:
        """Return the seconds to wait before the next attempt."""
        found, self._next = self._next, min(2 * self._next, self._longest)
        return found

    def reset(self) -> None:
        """Start with the first pause again."""
        self._next = self._first


#: Bytes per send call, and per read of `Link.receive`.
CHUNK = 64 * 1024
#: Errors of a socket on which nothing can be read now. Not TimeoutError: the kernel gave the connection up then.
_WOULD_BLOCK = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class State(Enum):
    """What can be done with a link."""

    OPEN = "open"
    #: The broker has an alarm, and reads nothing.
    BLOCKED = "blocked"
    LOST = "lost"
    CLOSED = "closed"


class _Writer:
    """Replaces py-amqp's transport for frame writes: buffers all frames, and sends what the kernel accepts."""

    def __init__(self, transport: Any) -> None:
        self._transport = transport
        self.unsent = bytearray()
        #: Whether a write blocks, as py-amqp's own does.
        self.blocks = True

    def write(self, data: bytes) -> None:
        if self.blocks:
            self._transport.write(data)
        else:
            self.unsent += data
            self.flush()

    def flush(self) -> None:
        try:
            while self.unsent:
                with self._transport.having_timeout(0) as sock:
                    sent = sock.send(self.unsent[:CHUNK])
                del self.unsent[:sent]
        except TimeoutError:  # py-amqp raises it for a socket that would block
            return
        except OSError:
            self._transport.connected = False
            raise


class Link:
    """One connection to the broker; non-blocking once it is open.

    :param connection: not yet open. A transport in memory, which never blocks, has no socket.
    :param connect: opens it; it may wait for the broker, for instance to declare what is published to.
    :param patience: seconds that a method may wait for its reply; with 0 none may be called that has one.

    Opening it blocks, and raises the errors of ``connect``.
    """

    def __init__(
        self, connection: Connection, connect: Callable[[Connection], object], *, patience: float = 0.0
    ) -> None:
        self.connection, self.state = connection, State.OPEN
        connection.transport_options = {
            **keeps_waiting(connection.transport_options or {}),
            "confirm_publish": False,  # py-amqp would wait for each confirm
            "frame_writer": self._frame_writer,
            "on_blocked": self._on_blocked,
            "on_unblocked": self._on_unblocked,
        }
        self._writer: _Writer | None = None
        try:
            connect(connection)
        except BaseException:
            connection.collect()
            raise
        self.opened_at = time.monotonic()
        self.amqp: Any = connection.connection
        self.sock: Any = getattr(getattr(self.amqp, "transport", None), "sock", None)
        if self._writer is not None:
            self.amqp.transport.raise_on_initial_eintr = True  # as kombu does: py-amqp would read until there is data
            self.sock.settimeout(patience)
            self._writer.blocks = False

    def _frame_writer(self, connection: amqp.Connection, transport: Any) -> Any:
        self._writer = _Writer(transport)
        return method_framing.frame_writer(connection, self._writer)

    @property
    def unsent(self) -> int:
        """How many bytes the kernel has not accepted yet."""
        return len(self._writer.unsent) if self._writer is not None else 0

    @property
    def takes_more(self) -> bool:
        """Whether what is published now can leave the process at once."""
        return self.state is State.OPEN and not self.unsent

    def write(self, frames: bytes = b"") -> None:
        """Send encoded frames, after those that are unsent. Raises OSError where the connection is lost."""
        if self._writer is not None:
            self._writer.write(frames)

    def turn(self) -> None:
        """Read received frames and send unsent ones. Raises the errors of a lost connection."""
        if self._writer is not None:
            while self._reads():
                pass
            self._writer.flush()

    def _reads(self) -> bool:
        if not self.amqp.connected:  # py-amqp would reconnect
            raise amqp.RecoverableConnectionError("The connection is closed")
        try:
            self.amqp.drain_events(timeout=0)
        except TimeoutError:
            return False
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EINTR):
                return False
            raise
        return True

    def receive(self) -> bytes | None:
        """Return received bytes, past py-amqp; None where there are none. Raises OSError where the peer has closed."""
        try:
            data: bytes = self.sock.recv(CHUNK)
        except _WOULD_BLOCK:
            return None
        if not data:
            raise ConnectionResetError("the broker closed it")
        return data

    def beat(self) -> None:
        """Send a heartbeat if one is due. Raises `amqp.ConnectionForced` if the broker's are missing."""
        self.amqp.heartbeat_tick()

    def drop(self) -> None:
        """Give the connection up, without a close: it is lost."""
        self.state = State.LOST
        self.connection.collect()

    def end(self, timeout: float = 1.0) -> None:
        """Close the connection, cleanly within ``timeout`` seconds where the broker reads from it."""
        if self._writer is not None and self.takes_more and self.amqp.connected:
            with suppress(OSError, amqp.AMQPError):
                self.sock.settimeout(timeout)
                self.amqp.close()
        self.state = State.CLOSED
        self.connection.collect()
        self.connection.release()  # it does not connect again by itself

    def _on_blocked(self, _reason: str) -> None:
        self.state = State.BLOCKED

    def _on_unblocked(self) -> None:
        self.state = State.OPEN


L = TypeVar("L", bound=Link)


class Lasting(Generic[L]):
    """Opens the next link where one is lost: after a pause, which doubles, in a thread of its own.

    :param connect: returns an open link. Blocks.
    :param adopt: takes a link into use, in the thread that has opened it.
    :param log: called with the error of a failed attempt, and the pause in seconds until the next one.
    :param first: the first pause, in seconds.
    """

    def __init__(
        self,
        connect: Callable[[], L],
        adopt: Callable[[L], None],
        log: Callable[[Exception, float], None],
        *,
        first: float = 1.0,
    ) -> None:
        self._connect, self._adopt, self._log = connect, adopt, log
        self._backoff = Backoff(first)
        self._closed = threading.Event()
        #: The present attempt: one that was overtaken ends.
        self._attempt: object = None

    @property
    def is_closed(self) -> bool:
        """Whether no link is to be used any more."""
        return self._closed.is_set()

    def open(self) -> None:
        """Open a link now. Blocks; a failure is logged, and there is another attempt."""
        self._attempt = attempt = object()
        self._try(attempt)

    def again(self, lost: L | None = None, *, refused: bool = False) -> float:
        """Open the next link after a pause, and return that pause in seconds.

        :param lost: the link before, if there was one: after a stable one the first pause follows.
        :param refused: the broker works and has refused a message: the first pause, too.
        """
        if refused or (lost is not None and time.monotonic() - lost.opened_at > STABLE):
            self._backoff.reset()
        self._attempt = attempt = object()
        pause = self._backoff.pause()
        threading.Thread(target=self._later, args=(attempt, pause), name="rmq-delay-link", daemon=True).start()
        return pause

    def close(self) -> None:
        """Open no more links."""
        self._closed.set()

    def _later(self, attempt: object, pause: float) -> None:
        if not self._closed.wait(pause):
            self._try(attempt)

    def _try(self, attempt: object) -> None:
        if attempt is not self._attempt:
            return
        try:
            link = self._connect()
        except Exception as error:  # noqa: BLE001 - the next attempt may succeed
            if attempt is self._attempt and not self.is_closed:
                self._log(error, self.again())
            return
        if attempt is self._attempt and not self.is_closed:
            self._adopt(link)
        else:
            link.end()
