"""A separate, non-blocking connection on which a worker's main process publishes copies.

In a memory or disk alarm RabbitMQ stops reading from a connection that publishes. On the consumer's connection one copy
would stop all acks and rejects, and so the worker. This connection is opened to the consumer's host, and ends with the
consumer's connection, on which the originals of the copies are unacked.

Only `open` and the methods for the shutdown wait for the broker. Frames that the kernel does not accept at once wait in
the process; copies wait unwritten while the broker blocks the connection, and while there is none.
"""

from __future__ import annotations

import errno
import logging
import select
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import amqp
from amqp import method_framing

from ..amqp.backoff import STABLE, Backoff
from ..amqp.confirms import ChannelEndedError, ConfirmingPublisher, confirming_channel
from ..amqp.connections import beside, keeps_waiting

if TYPE_CHECKING:
    from kombu import Connection

    from ..amqp.objects import Objects
    from ..amqp.route import Route
    from ..exceptions import PublishError

logger = logging.getLogger(__name__)

#: Seconds to wait for confirms at shutdown while the broker blocks the connection: only for what it has already read.
BLOCKED_TIMEOUT = 1.0

#: kombu's name of the driver for a real broker; `MemoryLadder`, in memory, never blocks.
_WIRE = "py-amqp"
#: Bytes per send call.
_CHUNK = 64 * 1024
#: Seconds between two checks of the connection: usually, and while the kernel does not accept all written data.
_TICK, _SOON = 1.0, 0.05
#: Seconds of publishing one message at a time, after the broker has closed a channel with several unconfirmed.
_CAREFUL = 60.0


class _Writer:
    """Replaces py-amqp's transport for frame writes: buffers all frames, and sends what the kernel accepts."""

    def __init__(self, transport: Any) -> None:
        self._transport = transport
        self.unsent = bytearray()
        #: Whether a write blocks, as py-amqp's own does.
        self.blocks = True

    def write(self, data: bytes) -> None:
        """Send or buffer ``data``."""
        if self.blocks:
            self._transport.write(data)
        else:
            self.unsent += data
            self.flush()

    def flush(self) -> None:
        """Send as much buffered data as possible without waiting."""
        try:
            while self.unsent:
                with self._transport.having_timeout(0) as sock:
                    sent = sock.send(self.unsent[:_CHUNK])
                del self.unsent[:sent]
        except TimeoutError:  # py-amqp raises it for a socket that would block
            return
        except OSError:
            self._transport.connected = False
            raise


class _Link:
    """One connection to the broker with a confirming channel; non-blocking once it is open."""

    def __init__(self, source: Connection, name: str) -> None:
        """Connect to the host of ``source``. Blocks."""
        self._name, self.blocked = name, False
        #: Number of answered probes.
        self.answers = 0
        #: Whether a check of unsent data is scheduled.
        self.is_watched = False
        self.opened_at = time.monotonic()
        given = source.transport_options or {}
        properties = {**given.get("client_properties", {}), "connection_name": name}
        options = {
            **keeps_waiting(given),
            "confirm_publish": False,  # py-amqp would wait for the confirm of a probe, on a non-blocking socket
            "client_properties": properties,
            "frame_writer": self._frame_writer,
            "on_blocked": self._on_blocked,
            "on_unblocked": self._on_unblocked,
        }
        self.connection = beside(source, transport_options=options, heartbeat=source.heartbeat)
        try:
            self.connection.connect()
            self.channel = confirming_channel(self.connection)
            self._aside: Any = self.connection.channel()
            self._aside.events["basic_return"].add(self._on_answer)
        except BaseException:
            self.connection.collect()
            raise
        self.amqp: Any = self.connection.connection
        self.sock: Any = self.amqp.transport.sock
        self.fileno: int = self.sock.fileno()
        self.amqp.transport.raise_on_initial_eintr = True  # as kombu does: py-amqp would read again until there is data
        self.sock.setblocking(False)
        self._writer.blocks = False

    def _frame_writer(self, connection: amqp.Connection, transport: Any) -> Any:
        self._writer = _Writer(transport)
        return method_framing.frame_writer(connection, self._writer)

    @property
    def is_full(self) -> bool:
        """Whether unsent data is buffered."""
        return bool(self._writer.unsent)

    def turn(self) -> None:
        """Read received frames and send buffered data. Raises the errors of a lost connection."""
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

    def probe(self) -> None:
        """Publish an unroutable message: the broker returns it, or blocks the connection if it has an alarm."""
        self._aside.basic_publish(amqp.Message(), routing_key=self._name, mandatory=True)

    def beat(self) -> None:
        """Send a heartbeat if one is due. Raises `amqp.ConnectionForced` if the broker's are missing."""
        self.amqp.heartbeat_tick()

    def end(self) -> None:
        """Close the connection cleanly, within a second, if the broker reads from it; else drop it."""
        if self.amqp.connected and not self.blocked and not self.is_full:
            self.sock.settimeout(1.0)
            self.connection.close()
        else:
            self.connection.collect()

    def _on_answer(self, *_: Any) -> None:
        self.answers += 1

    def _on_blocked(self, _reason: str) -> None:
        self.blocked = True
        logger.warning(
            "RabbitMQ has a memory or disk alarm and accepts no copies: messages that are to be exhausted, "
            "quarantined or parked by a copy wait unacknowledged in this worker. Other tasks continue."
        )

    def _on_unblocked(self) -> None:
        self.blocked = False
        logger.info("RabbitMQ accepts copies again: its alarm is over")


class ConfirmingConnection:
    """Publishes with confirm on a separate connection, for one connection of the consumer.

    Confirms call back in the thread of the consumer's event loop; without a hub (gevent, eventlet, Windows), in a
    thread that reads this connection. A lost connection is reopened with back-off, and unconfirmed messages are
    published again: only those that the broker had received on the lost connection can be duplicated.

    ``on_missing`` is called when an exchange or queue is missing. A refused message has to wait before it is published
    again, as each refusal ends the connection, on which other copies wait. ``lock``, a reentrant one, is held in each
    use of the connection: without a hub several threads use it. Callers may hold it, too, but no other lock that
    callbacks need.
    """

    def __init__(
        self, consumer: Any, source: Connection, on_missing: Callable[[], object] = bool, *, lock: Any
    ) -> None:
        self._consumer, self._source, self._on_missing = consumer, source, on_missing
        self._errors: tuple[type[BaseException], ...] = (*consumer.connection_errors, amqp.ChannelError)
        self._name = f"celery_rmq_delay copies of {consumer.hostname}"
        self._lock = lock
        self._publisher = ConfirmingPublisher(None, self._may_write)
        self._link: _Link | None = None
        self._backoff = Backoff(first=0.2)
        #: Whether copies use the consumer's connection.
        self._shared = False
        self._careful_until = 0.0
        #: Callbacks of `after_pending`; their exceptions are no errors of this connection.
        self._due: deque[Callable[[], None]] = deque()
        self._closed = False

    def open(self) -> None:
        """Connect before the event loop runs. Blocks; a failed attempt is logged and repeated later."""
        self._shared = self._source.transport.driver_name != _WIRE
        if self._shared:
            self._publisher.attach(self._source, confirming_channel(self._source))
            return
        try:
            self._adopt(_Link(self._source, self._name))
        except self._errors as error:
            self._try_later(error)

    # -- publishing ------------------------------------------------------------------------------------------------

    def publish(
        self,
        message: amqp.Message,
        route: Route,
        done: Callable[[PublishError | None], None],
        *,
        declares: Callable[[], Objects] | None = None,
    ) -> None:
        """Publish ``message`` along ``route`` as soon as the broker accepts it; see `ConfirmingPublisher.publish`."""
        self._safely(lambda: self._publisher.publish(message, route, done, declares=declares))

    def fits(self, message: amqp.Message) -> bool:
        """Return whether the properties of ``message`` fit into one AMQP frame, as they must."""
        return self._publisher.fits(message)

    def after_pending(self, callback: Callable[[], None]) -> None:
        """Call back as soon as all publishes so far are confirmed or refused; at once if they already are."""
        self._safely(lambda: self._publisher.after_pending(lambda: self._due.append(callback)))

    @property
    def waiting(self) -> int:
        """Number of publishes without a confirm."""
        return self._publisher.waiting

    @property
    def is_blocked(self) -> bool:
        """Whether the broker is known to have an alarm."""
        return self._link is not None and self._link.blocked

    def probe(self) -> None:
        """Check whether the broker has an alarm: `is_blocked` is updated a moment later, and until it is over."""
        link = self._link
        if link is not None and not link.blocked:
            self._safely(link.probe)

    def _may_write(self) -> bool:
        link = self._link
        if link is None or link.blocked or link.is_full:
            return self._shared
        return not self._publisher.written or time.monotonic() >= self._careful_until

    # -- reading and writing ---------------------------------------------------------------------------------------

    def _safely(self, act: Callable[[], None]) -> None:
        """Call ``act``; handle the errors of a lost connection here."""
        with self._lock:
            link = self._link
            try:
                act()
            except self._errors as error:
                if link is None or link is not self._link:
                    raise
                self._lose(link, error)
            if link is not None and link is self._link and link.is_full and not (link.blocked or link.is_watched):
                link.is_watched = True
                self._consumer.timer.call_after(_SOON, self._watch, (link,))
        while self._due:
            self._due.popleft()()

    def _turn(self, link: _Link) -> None:
        """Read received frames, and write waiting copies if possible."""

        def act() -> None:
            link.turn()
            self._publisher.flush()

        if link is self._link:
            self._safely(act)

    def _watch(self, link: _Link) -> None:
        link.is_watched = False
        self._turn(link)

    def _tick(self, link: _Link) -> None:
        if link is self._link:
            self._consumer.timer.call_after(_TICK, self._tick, (link,))
            self._safely(link.beat)
            self._turn(link)

    def _read_on(self, link: _Link) -> None:
        """Read as long as the connection is in use: in a thread, without a hub."""
        while link is self._link:
            try:
                select.select([link.sock], [], [], _TICK)
            except (OSError, ValueError):  # it is closed, which `_turn` detects
                time.sleep(_SOON)
            self._turn(link)

    # -- connecting ------------------------------------------------------------------------------------------------

    def _adopt(self, link: _Link) -> None:
        with self._lock:
            if self._closed:
                link.end()
                return
            self._link = link
            hub = self._consumer.hub
            if hub is not None:
                hub.add_reader(link.fileno, self._turn, link)
            else:
                threading.Thread(target=self._read_on, args=(link,), name="rmq-delay-confirms", daemon=True).start()
            self._consumer.timer.call_after(_TICK, self._tick, (link,))
            self._safely(lambda: self._publisher.attach(link.connection, link.channel))

    def _lose(self, link: _Link, error: BaseException) -> None:
        self._drop(link)
        link.connection.collect()
        level = logging.WARNING
        if time.monotonic() - link.opened_at > STABLE:
            self._backoff.reset()
        if isinstance(error, ChannelEndedError):
            if self._publisher.written == 1:
                self._publisher.refuse(error)  # which logs the cause
                self._backoff.reset()
                level = logging.DEBUG
            else:
                self._careful_until = time.monotonic() + _CAREFUL
            if error.reply_code == amqp.NotFound.code:
                self._on_missing()
        self._try_later(error, level)

    def _drop(self, link: _Link) -> None:
        """Stop using a connection. Remove it from the hub first: its file descriptor may be reused."""
        self._link = None
        if self._consumer.hub is not None:
            self._consumer.hub.remove(link.fileno)

    def _try_later(self, error: BaseException, level: int = logging.WARNING) -> None:
        if self._closed:
            return
        pause = self._backoff.pause()
        logger.log(
            level, "No connection for publishing copies (%r): %d wait. Trying again in %g s", error, self.waiting, pause
        )
        self._consumer.timer.call_after(pause, self._open_beside)

    def _open_beside(self) -> None:
        # Connecting blocks, which the event loop must not.
        threading.Thread(target=self._open_again, name="rmq-delay-copies", daemon=True).start()

    def _open_again(self) -> None:
        try:
            act: tuple[Callable[[Any], None], Any] = self._adopt, _Link(self._source, self._name)
        except Exception as error:  # noqa: BLE001 - the next attempt may succeed
            act = self._try_later, error
        if self._consumer.hub is None:
            act[0](act[1])
        else:
            self._consumer.call_soon(*act)

    # -- the end ---------------------------------------------------------------------------------------------------

    def drain(self, timeout: float) -> None:
        """Wait for all confirms, up to ``timeout`` seconds from one to the next. Blocks: for the worker's shutdown.

        While the broker blocks the connection, the timeout is `BLOCKED_TIMEOUT`; without a connection returns at once.
        """
        waiting, since = self.waiting, time.monotonic()
        while waiting and (link := self._link) is not None:
            self._turn(link)
            limit = min(timeout, BLOCKED_TIMEOUT) if link.blocked else timeout
            if self.waiting < waiting:
                waiting, since = self.waiting, time.monotonic()
            elif time.monotonic() - since >= limit:
                break
            else:
                time.sleep(0.01)
        if self.waiting:
            logger.warning("%d publishes without a confirm at shutdown: their tasks are delivered again", self.waiting)

    def takes_copies(self, timeout: float) -> bool:
        """Return whether the broker accepts copies; wait up to ``timeout`` seconds. Blocks: for the worker's shutdown.

        A broker with an alarm may read written copies after the alarm, long after the connection has closed.
        """
        link = self._link
        if link is None:
            return self._shared
        answers, until = link.answers, time.monotonic() + timeout
        self.probe()
        while link is self._link and link.answers == answers and not link.blocked and time.monotonic() < until:
            time.sleep(0.01)
            self._turn(link)
        return link is self._link and link.answers > answers and not link.blocked

    def close(self) -> None:
        """Stop publishing: the broker requeues the originals of waiting copies."""
        with self._lock:
            self._closed = True
            link = self._link
            if link is not None:
                self._drop(link)
                link.end()
