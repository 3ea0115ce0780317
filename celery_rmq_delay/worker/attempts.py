"""The attempts of a worker whose messages the broker may take back: after a time-out, or with a lost connection.

The broker delivers such a message again, to any worker, although the attempt still runs here, or has ended here with an
outcome that could not be applied. Where this worker receives it, the attempt *adopts* the message: it goes on with it,
and its outcome settles it. So nothing runs twice in one worker, and no task is blamed for a worker that lives.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from .. import headers as h

if TYPE_CHECKING:
    from kombu.message import Message

#: Task id, retries, generation, and how often its task has requeued the message: the same for one attempt.
Key = tuple[Any, int, int, int]
#: How many ended attempts are kept whose outcome could not be applied, and how many keys of cancelled ones.
_MOST = 1000
#: How many attempts are kept whose outcome was applied, and the bytes of their messages: nothing shows whether the
#: broker has read an ack before it lost the connection.
_MOST_SETTLED, _MOST_BYTES = 200, 8 * 2**20


class Attempt(Protocol):
    """What is kept of an attempt: a `RetryableRequest`."""

    @property
    def key(self) -> Key:
        """What identifies it among all deliveries."""

    @property
    def message(self) -> Message:
        """The message that its outcome settles."""

    @property
    def size(self) -> int:
        """The bytes of the message's body."""


def key_of(task_id: Any, retries: int, headers: h.Headers) -> Key:
    """Return what identifies an attempt; ``headers``: those of its message as received."""
    return task_id, retries, h.generation(headers), h.whole_number(headers.get(h.REQUEUED))


class Attempts:
    """The attempts that run, that have ended, and that Celery has cancelled.

    ``is_lost``: whether the channel of a message is lost. Threads of the pool use it, too.
    """

    def __init__(self, is_lost: Callable[[Message], bool]) -> None:
        self._is_lost = is_lost
        #: Held while an attempt is settled, or adopts a message.
        self.lock = threading.RLock()
        self._running: dict[Key, Attempt] = {}
        self._ended: OrderedDict[Key, Attempt] = OrderedDict()
        self._settled: OrderedDict[Key, Attempt] = OrderedDict()
        self._bytes = 0
        self._cancelled: OrderedDict[Key, None] = OrderedDict()

    def begin(self, request: Attempt) -> None:
        """Record that an attempt runs."""
        with self.lock:
            self._running[request.key] = request

    def end(self, request: Attempt) -> None:
        """Record that an attempt has ended; `settle` follows."""
        with self.lock:
            self._running.pop(request.key, None)
            _keep(self._ended, request.key, request)

    def settle(self, request: Attempt) -> None:
        """Record that the outcome of an attempt was applied, unless the connection of its message is lost."""
        with self.lock:
            if not self._is_lost(request.message) and self._ended.pop(request.key, None) is request:
                self._settled[request.key] = request
                self._bytes += request.size
                while len(self._settled) > _MOST_SETTLED or self._bytes > _MOST_BYTES:
                    self._bytes -= self._settled.popitem(last=False)[1].size

    def cancel(self, request: Attempt) -> None:
        """Record that Celery has ended an attempt, for example as the connection was lost: its worker lives."""
        with self.lock:
            self._running.pop(request.key, None)
            _keep(self._cancelled, request.key, None)

    def was_cancelled(self, key: Key) -> bool:
        """Return, once, whether this worker has cancelled an attempt whose message is delivered again."""
        return bool(self._cancelled) and self._cancelled.pop(key, self) is None

    def of(self, key: Key) -> Attempt | None:
        """Return the attempt to which a message that is delivered again belongs; None if there is none here."""
        with self.lock:
            found = self._running.get(key) or self._ended.get(key) or self._settled.get(key)
            return found if found is not None and self._is_lost(found.message) else None

    def adopt(self, request: Attempt) -> bool:
        """Record that an attempt goes on with another message; return whether it has ended."""
        with self.lock:
            if self._running.get(request.key) is request:
                return False
            if self._settled.pop(request.key, None) is not None:
                self._bytes -= request.size
            return True


def _keep(known: OrderedDict[Key, Any], key: Key, value: Any) -> None:
    known[key] = value
    if len(known) > _MOST:
        known.popitem(last=False)
