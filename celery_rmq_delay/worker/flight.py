"""Messages between delivery and ack, and the attempts that hold them: where they came from, and what is owed."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from enum import Enum
from typing import Any

from kombu.message import Message

from .. import headers as h
from ..amqp.link import Backoff
from ..retry.decision import Arrival
from ..retry.delivery import Delivery

#: Task id, task, retries, generation, how often its task has requeued the message, and a hash of its body.
Key = tuple[Any, str, int, int, int, int]
#: The attribute of kombu's message that holds its `InFlight` while Celery's consumer handles it.
ATTRIBUTE = "rmq_delay_flight"


class Owed(Enum):
    """What this worker owes for a message that is neither acked nor rejected."""

    #: A decision: it was only received.
    DECISION = "decision"
    #: A start: it was handed to Celery.
    START = "start"
    #: An outcome: its task runs here, or has ended.
    OUTCOME = "outcome"
    #: An ack, once the broker has confirmed its copy; until then the copy is published again.
    COPY = "copy"


class InFlight:
    """One delivery of a message. The attributes after ``is_managed`` are set where that is true."""

    __slots__ = (
        *("attempt", "came", "delivery", "headers", "is_managed", "is_quarantined", "key", "message", "owed"),
        *("pauses", "queue", "retries", "settling"),
    )

    #: Whether its queue has a ladder, so that this package settles it, and not Celery.
    is_managed: bool
    delivery: Delivery
    #: What identifies its attempt among all deliveries.
    key: Key
    #: The `Settling` of its consumer.
    settling: Any

    def __init__(self, message: Message, queue: str = "", *, is_quarantined: bool = False) -> None:
        self.message = message
        #: The origin queue, and whether it was delivered from its quarantine queue.
        self.queue, self.is_quarantined = queue, is_quarantined
        #: Its headers as received, and the `delivery_info` of this delivery.
        self.headers: dict[str, Any] = message.headers
        self.came: dict[str, Any] = message.delivery_info
        self.owed = Owed.DECISION
        self.is_managed = False
        #: How many retries came before its attempt.
        self.retries = 0
        #: The request of this worker that goes on with it, where it was delivered before.
        self.attempt: Any = None
        #: The growing pauses between the attempts to publish its copy.
        self.pauses: Backoff | None = None

    @property
    def is_lost(self) -> bool:
        """Whether its connection is lost, so that the broker delivers it again."""
        channel: Any = self.message.channel
        return not (channel.is_open and channel.connection.connected)

    def manage(self, settling: Any, found: Arrival, task_id: Any, task: str) -> None:
        """Record that this package settles it, and what it is."""
        self.is_managed, self.settling = True, settling
        self.delivery, self.retries = found.delivery, found.retries
        raw, requeued = self.headers, h.whole_number(self.headers.get(h.REQUEUED))
        self.key = task_id, task, found.retries, h.generation(raw), requeued, hash(self.message.body)


def flight_of(message: Message) -> InFlight:
    """Return the `InFlight` that a message brings along; a new one where it did not come through the intake."""
    found = getattr(message, ATTRIBUTE, None)
    return found if isinstance(found, InFlight) else InFlight(message)


#: Maximum numbers of ended attempts whose outcome could not be applied, of cancelled attempts, and of messages that
#: look the same; and of messages that have not ended.
_MOST = 1000
_MOST_MET = 10_000
#: How many attempts are kept whose outcome was applied, and the bytes of their messages: nothing shows whether the
#: broker has read an ack before it lost the connection.
_MOST_SETTLED, _MOST_BYTES = 200, 8 * 2**20
#: Seconds: an outcome that was applied so long before a new connection was read by the broker, and a message is no
#: longer that of an applied outcome if it comes so long after it.
_READ_BY_THEN, _COMES_BY_THEN = 10.0, 60.0


class Attempts:
    """The attempts, each a `RetryableRequest`, that run, have ended, or were cancelled; threads of the pool use it.

    The broker may take a message back, after a time-out or with a lost connection, and delivers it again, to any
    worker, although the attempt still runs here, or has ended here with an outcome that could not be applied. Where
    this worker receives it, the attempt *adopts* the message: its outcome settles it. So no attempt runs twice in one
    worker, and no task is blamed for a worker that lives.

    Two messages can look the same: a task id may be used again, with the same arguments. Each of them has to run: where
    both were received, an attempt whose outcome was applied adopts neither, and at worst one of them runs once more.
    """

    def __init__(self) -> None:
        #: Held while an attempt is settled, or adopts a message; and by the connection for copies.
        self.lock = threading.RLock()
        self._running: dict[Key, Any] = {}
        self._ended: OrderedDict[Key, Any] = OrderedDict()
        #: Attempts whose outcome was applied, with the monotonic time of their end.
        self._settled: OrderedDict[Key, tuple[Any, float]] = OrderedDict()
        self._bytes = 0
        self._cancelled: OrderedDict[Key, None] = OrderedDict()
        #: The messages that were received and have not ended, and those of which there was more than one.
        self._met: OrderedDict[Key, None] = OrderedDict()
        self._alike: OrderedDict[Key, None] = OrderedDict()
        self._connected_at = 0.0

    def connect(self) -> None:
        """Record that the worker has a new connection."""
        with self.lock:
            self._connected_at = time.monotonic()
            for key in [key for key, (_, at) in self._settled.items() if self._connected_at - at > _READ_BY_THEN]:
                self._forget_settled(key)

    def meet(self, key: Key) -> None:
        """Record that a message was received for the first time: it belongs to no attempt before."""
        with self.lock:
            if key in self._met or key in self._running:
                _keep(self._alike, key, None)
            self._ended.pop(key, None)
            self._forget_settled(key)
            _keep(self._met, key, None, _MOST_MET)

    def begin(self, request: Any) -> None:
        """Record that an attempt runs."""
        with self.lock:
            self._running[request.flight.key] = request

    def end(self, request: Any) -> None:
        """Record that an attempt has ended; `settle` follows."""
        with self.lock:
            self._running.pop(request.flight.key, None)
            self._met.pop(request.flight.key, None)
            _keep(self._ended, request.flight.key, request)

    def settle(self, request: Any) -> None:
        """Record that the outcome of an attempt was applied, unless the connection of its message is lost."""
        with self.lock:
            if request.flight.is_lost or self._ended.pop(request.flight.key, None) is not request:
                return
            if request.flight.key not in self._alike:
                self._forget_settled(request.flight.key)
                self._settled[request.flight.key] = request, time.monotonic()
                self._bytes += _size(request)
                while len(self._settled) > _MOST_SETTLED or self._bytes > _MOST_BYTES:
                    self._forget_settled(next(iter(self._settled)))

    def cancel(self, request: Any) -> None:
        """Record that Celery has ended an attempt, for example as the connection was lost: its worker lives."""
        with self.lock:
            self._running.pop(request.flight.key, None)
            _keep(self._cancelled, request.flight.key, None)

    def was_cancelled(self, key: Key) -> bool:
        """Return, once, whether this worker has cancelled an attempt whose message is delivered again."""
        return bool(self._cancelled) and self._cancelled.pop(key, self) is None

    def of(self, key: Key) -> Any:
        """Return the attempt to which a message that is delivered again belongs; None if there is none here."""
        with self.lock:
            found = self._running.get(key) or self._ended.get(key)
            if found is None and time.monotonic() - self._connected_at < _COMES_BY_THEN:
                found, _ = self._settled.get(key, (None, 0.0))
            return found if found is not None and found.flight.is_lost else None

    def adopt(self, request: Any) -> bool:
        """Record that an attempt goes on with another message; return whether it has ended."""
        with self.lock:
            if self._running.get(request.flight.key) is request:
                return False
            self._forget_settled(request.flight.key)
            return True

    def _forget_settled(self, key: Key) -> None:
        if (known := self._settled.pop(key, None)) is not None:
            self._bytes -= _size(known[0])


def _keep(known: OrderedDict[Key, Any], key: Key, value: Any, most: int = _MOST) -> None:
    known[key] = value
    if len(known) > most:
        known.popitem(last=False)


def _size(request: Any) -> int:
    return len(request.flight.message.body or b"")
