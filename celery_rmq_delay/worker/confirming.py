"""A separate `Link` on which a worker's main process publishes copies.

On the consumer's connection one copy would, in an alarm, stop all acks and rejects, and so the worker. This connection
is opened to the consumer's host, and ends with the consumer's connection, on which the originals of the copies are
unacked.

Only `open` and the methods for the shutdown wait for the broker. Copies wait unwritten while the broker blocks the
connection, and while there is none.
"""

from __future__ import annotations

import logging
import select
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import amqp
from kombu import Connection

from ..amqp.confirms import ChannelEndedError, ConfirmingPublisher, confirming_channel
from ..amqp.connections import beside, named
from ..amqp.link import Lasting, Link, State
from ..amqp.objects import Objects
from ..amqp.route import Route
from ..exceptions import PublishError

logger = logging.getLogger(__name__)

#: Seconds to wait for confirms at shutdown while the broker blocks the connection: only for what it has already read.
BLOCKED_TIMEOUT = 1.0

#: kombu's name of the driver for a real broker; `MemoryLadder`, in memory, never blocks.
_WIRE = "py-amqp"
#: Seconds between two checks of the connection: usually, and while the kernel does not accept all written data.
_TICK, _SOON = 1.0, 0.05
#: Seconds of publishing one message at a time, after the broker has closed a channel with several unconfirmed.
_CAREFUL = 60.0


class _Link(Link):
    """A link with a confirming channel, which can ask whether the broker has an alarm."""

    def __init__(self, source: Connection, name: str) -> None:
        """Connect to the host of ``source``. Blocks."""
        self._name = name
        #: Number of answered probes.
        self.answers = 0
        #: Whether a check of unsent data is scheduled.
        self.is_watched = False
        options = named(source.transport_options, name)
        super().__init__(beside(source, transport_options=options, heartbeat=source.heartbeat), self._connect)
        #: Kept, as a closed socket has none.
        self.fileno: int = self.sock.fileno()

    def _connect(self, connection: Connection) -> None:
        connection.connect()
        self.channel = confirming_channel(connection)
        self._aside: Any = connection.channel()
        self._aside.events["basic_return"].add(self._on_answer)

    def probe(self) -> None:
        """Publish an unroutable message: the broker returns it, or blocks the connection if it has an alarm."""
        self._aside.basic_publish(amqp.Message(), routing_key=self._name, mandatory=True)

    def _on_answer(self, *_: Any) -> None:
        self.answers += 1

    def _on_blocked(self, reason: str) -> None:
        super()._on_blocked(reason)
        logger.warning(
            "RabbitMQ has a memory or disk alarm and accepts no copies: messages that are to be exhausted, "
            "quarantined or parked by a copy wait unacknowledged in this worker. Other tasks continue."
        )

    def _on_unblocked(self) -> None:
        super()._on_unblocked()
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
        #: The thread of the event loop, which opens the first link.
        self._thread = threading.get_ident()
        self._errors: tuple[type[BaseException], ...] = (*consumer.connection_errors, amqp.ChannelError)
        self._name = f"celery_rmq_delay copies of {consumer.hostname}"
        self._lock = lock
        self._publisher = ConfirmingPublisher(may_write=self._may_write)
        self._link: _Link | None = None
        self._lasting = Lasting(lambda: _Link(source, self._name), self._hand_over, self._log, first=0.2)
        #: Whether copies use the consumer's connection.
        self._shared = False
        self._careful_until = 0.0
        #: Callbacks of `after_pending`; their exceptions are no errors of this connection.
        self._due: deque[Callable[[], None]] = deque()

    def open(self) -> None:
        """Connect before the event loop runs. Blocks; a failed attempt is logged and repeated later."""
        self._shared = self._source.transport.driver_name != _WIRE
        if self._shared:
            self._publisher.attach(confirming_channel(self._source))
            return
        self._lasting.open()

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
        return self._link is not None and self._link.state is State.BLOCKED

    def probe(self) -> None:
        """Check whether the broker has an alarm: `is_blocked` is updated a moment later, and until it is over."""
        link = self._link
        if link is not None and link.state is State.OPEN:
            self._safely(link.probe)

    def _may_write(self) -> bool:
        link = self._link
        if link is None or not link.takes_more:
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
            if link is not None and link is self._link and link.unsent and not (self.is_blocked or link.is_watched):
                link.is_watched = True
                self._consumer.timer.call_after(_SOON, self._watch, (link,))
        while self._due:
            self._due.popleft()()

    def _turn(self, link: _Link) -> None:
        def act() -> None:
            if link is self._link:  # without a hub another thread may have lost it meanwhile
                link.turn()
                self._publisher.flush()

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
        while link is self._link:
            try:
                select.select([link.sock], [], [], _TICK)
            except (OSError, ValueError):  # it is closed, which `_turn` detects
                time.sleep(_SOON)
            self._turn(link)

    # -- connecting ------------------------------------------------------------------------------------------------

    def _adopt(self, link: _Link) -> None:
        with self._lock:
            if self._lasting.is_closed:
                link.end()
                return
            self._link = link
            hub = self._consumer.hub
            if hub is not None:
                hub.add_reader(link.fileno, self._turn, link)
            else:
                threading.Thread(target=self._read_on, args=(link,), name="rmq-delay-confirms", daemon=True).start()
            self._consumer.timer.call_after(_TICK, self._tick, (link,))
            self._safely(lambda: self._publisher.attach(link.channel))

    def _lose(self, link: _Link, error: BaseException) -> None:
        self._drop(link)
        link.drop()
        is_refusal = isinstance(error, ChannelEndedError) and self._publisher.written == 1
        if isinstance(error, ChannelEndedError):
            if is_refusal:
                self._publisher.refuse(error)  # which logs the cause
            else:
                self._careful_until = time.monotonic() + _CAREFUL
            if error.reply_code == amqp.NotFound.code:
                self._on_missing()
        pause = self._lasting.again(link, refused=is_refusal)
        if not is_refusal:
            self._log(error, pause)

    def _drop(self, link: _Link) -> None:
        """Stop using a connection. Remove it from the hub first: its file descriptor may be reused."""
        self._link = None
        if self._consumer.hub is not None:
            self._consumer.hub.remove(link.fileno)

    def _log(self, error: BaseException, pause: float) -> None:
        text = "No connection for publishing copies (%r): %d wait. Trying again in %g s"
        logger.warning(text, error, self.waiting, pause)

    def _hand_over(self, link: _Link) -> None:
        if self._consumer.hub is None or threading.get_ident() == self._thread:
            self._adopt(link)
        else:
            self._consumer.call_soon(self._adopt, link)

    # -- the end ---------------------------------------------------------------------------------------------------

    def drain(self, timeout: float) -> None:
        """Wait for all confirms, up to ``timeout`` seconds from one to the next. Blocks: for the worker's shutdown.

        While the broker blocks the connection, the timeout is `BLOCKED_TIMEOUT`; without a connection returns at once.
        """
        waiting, since = self.waiting, time.monotonic()
        while waiting and (link := self._link) is not None:
            self._turn(link)
            limit = min(timeout, BLOCKED_TIMEOUT) if self.is_blocked else timeout
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
        while link is self._link and link.answers == answers and not self.is_blocked and time.monotonic() < until:
            time.sleep(0.01)
            self._turn(link)
        return link is self._link and link.answers > answers and not self.is_blocked

    def close(self) -> None:
        """Stop publishing: the broker requeues the originals of waiting copies."""
        with self._lock:
            self._lasting.close()
            link = self._link
            if link is not None:
                self._drop(link)
                link.end()
