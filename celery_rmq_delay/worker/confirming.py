"""The connection on which a worker's main process publishes copies: its own, and never waited for.

In a memory or disk alarm RabbitMQ reads nothing more from a connection that publishes. On the consumer's connection one
copy would stop all acks and rejects, and so the worker. This connection is opened to the host that the consumer is
connected to, and ends with the consumer's connection: the originals of what it publishes are unacked there.

Nothing here waits for the broker but `open` and `drain`. Frames that the kernel does not take at once wait in the
process; copies wait unwritten while the broker blocks the connection, and while there is none.
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
from ..exceptions import PublishError

if TYPE_CHECKING:
    from kombu import Connection

    from ..amqp.route import Route

logger = logging.getLogger(__name__)

#: Seconds to wait for confirms at shutdown while the broker blocks the connection: those for what it had read before.
BLOCKED_TIMEOUT = 1.0

#: kombu's name of the driver that speaks to a broker; `MemoryLadder`, in memory, has nothing to wait for.
_WIRE = "py-amqp"
#: Bytes that are handed to the kernel at once.
_CHUNK = 64 * 1024
#: Seconds between two looks at the connection: as a rule, and while the kernel does not take all that is written.
_TICK, _SOON = 1.0, 0.05
#: Seconds during which one message is published at a time, after the broker has ended a channel for one of several.
_CAREFUL = 60.0


class _Writer:
    """Stands for py-amqp's transport where frames are written: takes all of them, and sends what the kernel takes."""

    def __init__(self, transport: Any) -> None:
        self._transport = transport
        self.unsent = bytearray()
        #: Whether a write waits for the kernel, as py-amqp's own does.
        self.blocks = True

    def write(self, data: bytes) -> None:
        """Take ``data``."""
        if self.blocks:
            self._transport.write(data)
        else:
            self.unsent += data
            self.flush()

    def flush(self) -> None:
        """Send as much of it as goes without waiting."""
        try:
            while self.unsent:
                with self._transport.having_timeout(0) as sock:
                    sent = sock.send(self.unsent[:_CHUNK])
                del self.unsent[:sent]
        except TimeoutError:  # that is what py-amqp makes of a socket that would block
            return
        except OSError:
            self._transport.connected = False
            raise


class _Link:
    """One connection to the broker, with a channel that confirms; written and read without waiting once it is open."""

    def __init__(self, source: Connection, name: str) -> None:
        """Connect to the host of ``source``. Blocks."""
        self._name, self.blocked = name, False
        #: How many probes have been answered.
        self.answers = 0
        #: Whether a look is planned for what the kernel has not taken.
        self.is_watched = False
        self.opened_at = time.monotonic()
        given = source.transport_options or {}
        properties = {**given.get("client_properties", {}), "connection_name": name}
        options = {
            **keeps_waiting(given),
            "confirm_publish": False,  # py-amqp would wait for the confirm of a probe, on a socket that does not wait
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
        self.amqp.transport.raise_on_initial_eintr = True  # or py-amqp reads on until there is something, as kombu says
        self.sock.setblocking(False)
        self._writer.blocks = False

    def _frame_writer(self, connection: amqp.Connection, transport: Any) -> Any:
        self._writer = _Writer(transport)
        return method_framing.frame_writer(connection, self._writer)

    @property
    def is_full(self) -> bool:
        """Whether something is written that the kernel has not taken."""
        return bool(self._writer.unsent)

    def turn(self) -> None:
        """Read what has come, and send what is written. Raises what a lost connection raises."""
        while self._reads():
            pass
        self._writer.flush()

    def _reads(self) -> bool:
        if not self.amqp.connected:  # py-amqp would connect again
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
        """Publish to no queue: the broker returns it; one that has an alarm says so instead."""
        self._aside.basic_publish(amqp.Message(), routing_key=self._name, mandatory=True)

    def beat(self) -> None:
        """Send a heartbeat where one is due. Raises `amqp.ConnectionForced` where the broker's are missing."""
        self.amqp.heartbeat_tick()

    def end(self) -> None:
        """Close in good order, within a second, where the broker listens."""
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
            "RabbitMQ has a memory or disk alarm and takes no copies: messages that are to be exhausted, quarantined "
            "or parked by a copy wait unacknowledged in this worker. Other tasks go on."
        )

    def _on_unblocked(self) -> None:
        self.blocked = False
        logger.info("RabbitMQ takes copies again: its alarm is over")


class ConfirmingConnection:
    """Publishes with confirm on a connection of its own, for one connection of the consumer.

    The confirm calls back in the thread of the consumer's event loop; without a hub (gevent, eventlet, Windows), in a
    thread that reads this connection. A connection that is lost is opened again, with back-off, and what has no answer
    yet is published again: only what the lost one had taken without an answer can be doubled.

    ``on_missing`` is called when the broker has ended the channel: something that is published to may be missing.
    """

    def __init__(self, consumer: Any, source: Connection, on_missing: Callable[[], object] = bool) -> None:
        self._consumer, self._source, self._on_missing = consumer, source, on_missing
        self._errors: tuple[type[BaseException], ...] = (*consumer.connection_errors, amqp.ChannelError)
        self._name = f"celery_rmq_delay copies of {consumer.hostname}"
        #: Without a hub several threads come here.
        self._lock = threading.RLock()
        self._publisher = ConfirmingPublisher(None, self._may_write)
        self._link: _Link | None = None
        self._backoff = Backoff(first=0.2)
        #: Whether copies go over the consumer's connection.
        self._shared = False
        self._careful_until = 0.0
        #: What `after_pending` is to call: what that raises is none of this connection's.
        self._due: deque[Callable[[], None]] = deque()
        self._closed = False

    def open(self) -> None:
        """Connect, before the event loop runs. Blocks; a failure is logged and tried again later."""
        self._shared = self._source.transport.driver_name != _WIRE
        if self._shared:
            self._publisher.attach(self._source, confirming_channel(self._source))
            return
        try:
            self._adopt(_Link(self._source, self._name))
        except self._errors as error:
            self._try_later(error)

    # -- publishing ------------------------------------------------------------------------------------------------

    def publish(self, message: amqp.Message, route: Route, done: Callable[[PublishError | None], None]) -> None:
        """Publish ``message`` along ``route``, as soon as the broker takes it."""
        self._safely(lambda: self._publisher.publish(message, route, done))

    def fits(self, message: amqp.Message) -> bool:
        """Return whether the properties of ``message`` fit into one AMQP frame, as they have to."""
        return self._publisher.fits(message)

    def after_pending(self, callback: Callable[[], None]) -> None:
        """Call back as soon as each publish until now has its answer, whatever comes after; at once where all have."""
        self._safely(lambda: self._publisher.after_pending(lambda: self._due.append(callback)))

    @property
    def waiting(self) -> int:
        """How many publishes have no answer yet."""
        return self._publisher.waiting

    @property
    def is_blocked(self) -> bool:
        """Whether the broker is known to have an alarm."""
        return self._link is not None and self._link.blocked

    def probe(self) -> None:
        """Find out whether the broker has an alarm; `is_blocked` says so in a moment, and until it is over."""
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
        """Do ``act``; what the loss of the connection raises is no matter of the caller's."""
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
        """Read what has come, and write what may be written."""

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
        """Read for as long as the connection is in use: in a thread, where there is no hub."""
        while link is self._link:
            try:
                select.select([link.sock], [], [], _TICK)
            except (OSError, ValueError):  # it is closed, which the turn finds, too
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
        refused = isinstance(error, ChannelEndedError) and self._publisher.written == 1
        if isinstance(error, ChannelEndedError):
            if refused:
                self._publisher.refuse(PublishError(f"The broker refused a message: {error.reply_text}."))
            else:
                self._careful_until = time.monotonic() + _CAREFUL
            self._on_missing()
        if refused or time.monotonic() - link.opened_at > STABLE:
            self._backoff.reset()
        self._try_later(error)

    def _drop(self, link: _Link) -> None:
        """Use a connection no more. Its number may soon be another one's: the hub forgets it first."""
        self._link = None
        if self._consumer.hub is not None:
            self._consumer.hub.remove(link.fileno)

    def _try_later(self, error: BaseException) -> None:
        if self._closed:
            return
        pause = self._backoff.pause()
        logger.warning(
            "No connection to publish copies on (%r): %d wait. Trying again in %g s", error, self.waiting, pause
        )
        self._consumer.timer.call_after(pause, self._open_beside)

    def _open_beside(self) -> None:
        # It waits for the broker, which the loop must not.
        threading.Thread(target=self._open_again, name="rmq-delay-copies", daemon=True).start()

    def _open_again(self) -> None:
        try:
            act: tuple[Callable[[Any], None], Any] = self._adopt, _Link(self._source, self._name)
        except Exception as error:  # noqa: BLE001 - whatever it is, the next attempt may succeed
            act = self._try_later, error
        if self._consumer.hub is None:
            act[0](act[1])
        else:
            self._consumer.call_soon(*act)

    # -- the end ---------------------------------------------------------------------------------------------------

    def drain(self, timeout: float) -> None:
        """Wait up to ``timeout`` seconds between answers until all have come. Blocks: for the worker's shutdown.

        While the broker blocks the connection it is `BLOCKED_TIMEOUT`; without a connection nothing can come.
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
        """Ask the broker, and wait up to ``timeout`` seconds for its answer. Blocks: for the worker's shutdown.

        What is written to one that has an alarm may be read when the alarm is over, long after the connection.
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
        """Publish nothing more: the originals of what waits are the broker's again."""
        with self._lock:
            self._closed = True
            link = self._link
            if link is not None:
                self._drop(link)
                link.end()
