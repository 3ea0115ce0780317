"""Settling of messages in the worker's main process: copy with confirm, then ack; or leave it to the broker."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from kombu.message import Message

from .. import headers as h
from ..amqp.capabilities import capabilities
from ..amqp.copies import nack_log_error
from ..amqp.link import Backoff
from ..amqp.route import Route
from ..app.state import AppState
from ..events.reporter import Reporter
from ..exceptions import NackedError, PublishError, RefusedError, UnroutableError, UnsendableError
from ..names import quarantine
from ..topology.native_retry import NativeRetry
from .confirming import ConfirmingConnection
from .copies import Copies, Copy, Failure
from .flight import Attempts, InFlight, Owed

#: A message is in a loop after this many requeues in a row.
LOOP = 100
#: Seconds after the last requeue until a loop is over.
_RECENT = 60.0


class Requeues:
    """The messages that one worker has requeued for ``Reject(requeue=True)``: for the log and `doctor`."""

    def __init__(self) -> None:
        self._loops: dict[tuple[str, str], dict[str, Any]] = {}

    def add(self, queue: str, task: str, times: int) -> None:
        """Record that a message was requeued ``times`` times in a row; log the 100th time, the 1000th and so on."""
        if times < LOOP:
            return
        now, known = time.monotonic(), self._loops.get((queue, task))
        most = max(times, known["most"]) if known and now - known["at"] < _RECENT else times
        self._loops[queue, task] = {"queue": queue, "task": task, "most": most, "at": now}
        if str(times).rstrip("0") == "1":
            text = (
                "Task %s has requeued a message in queue %s %d times in a row with Reject(requeue=True), which does "
                "not wait: call self.retry() instead."
            )
            logger.warning(text, task, queue, times, extra={"queue": queue})

    def loops(self) -> list[dict[str, Any]]:
        """Return the loops of the last minute: ``most`` is how often in a row a task requeued a message."""
        return [loop for loop in self._loops.values() if time.monotonic() - loop["at"] < _RECENT]


logger = logging.getLogger(__name__)

_LOST = "The connection of a message for %s was lost: it is delivered again"
#: Seconds until the next attempt to move a message, where the broker did not close the channel.
HOLD_AGAIN = 1.0


def _nothing() -> None:
    """Do nothing: the default of callbacks."""


class Settling:
    """Settles the messages of one consumer. Publishes nothing before `open`.

    ``on_missing`` is called, in the event loop, with the route of a copy that no queue takes, or without one.

    Where a copy replaces a message, the message is acked once the broker has confirmed the copy. Until the broker takes
    the copy, it is published again: the message would otherwise run again, look like one of a worker that died, or be
    dropped by a full queue.
    """

    def __init__(self, consumer: Any, delay: AppState, on_missing: Callable[..., object]) -> None:
        self.consumer, self.delay, self._on_missing = consumer, delay, on_missing
        self.attempts = Attempts()
        self.copies = Copies(delay)
        self.requeues = Requeues()
        #: The queues whose ladders are applied.
        self.applied: set[str] = set()
        #: Reports messages before they are settled; None if events are off.
        self.reporter: Reporter | None = None
        #: The messages to move to the end of their queue if the worker stops now, in their order: their tasks have not
        #: started, or were ended by a cold shutdown, or their copy waits for another attempt.
        self.to_return: dict[InFlight, None] = {}
        #: The minimum number of messages that were delivered on the channel of the origin queues.
        self.delivered = 0
        self.publisher: ConfirmingConnection | None = None
        #: When the waiting messages of a destination are logged again (seconds of the monotonic clock), and the pauses.
        self._logged: dict[str, tuple[float, Backoff]] = {}
        self._pid = self._thread = 0

    def open(self, connection: Any) -> ConfirmingConnection:
        """Open the connection for publishing, next to a new connection of the consumer, in this thread. Blocks."""
        self.close()
        self._thread, self._pid = threading.get_ident(), os.getpid()
        self.attempts.connect()
        self.copies.broker = capabilities(connection)
        self.applied.clear()
        self.to_return.clear()
        lock, missing = self.attempts.lock, self._on_missing
        self.publisher = publisher = ConfirmingConnection(self.consumer, connection, missing, lock=lock)
        publisher.open()
        return publisher

    def close(self) -> None:
        """Stop publishing until the next `open`: the broker requeues the originals."""
        if self.publisher is not None:
            self.publisher.close()

    def in_loop(self) -> bool:
        """Whether this is the event loop, and no child or thread of the pool; without a hub each thread acts itself."""
        return os.getpid() == self._pid and (self.consumer.hub is None or threading.get_ident() == self._thread)

    def _act_in_loop(self, act: Callable[[], object]) -> None:
        if self.in_loop():
            act()
        else:
            self.consumer.call_soon(act)

    def restore_prefetch(self, restore: Callable[..., object], *args: Any) -> None:
        """Restore the prefetch count in the event loop: two threads that read one may both miss the reply."""
        if threading.get_ident() == self._thread:
            restore(*args)
        else:
            self.consumer.call_soon(partial(restore, *args))

    def received(self, message: Message) -> None:
        """Count a delivery."""
        self.delivered = max(self.delivered, message.delivery_tag)  # quarantined tasks have a separate channel

    def started(self, flight: InFlight) -> None:
        """Record that the task of a message runs, or that the message is settled without running it."""
        flight.owed = Owed.OUTCOME
        self.to_return.pop(flight, None)

    def abandon(self, flight: InFlight) -> None:
        """Record that a cold shutdown has ended the process of a task: its message returns as if it had not run."""
        self.to_return[flight] = None

    def dead_letters(self, queue: str) -> bool:
        """Whether a rejected message of ``queue`` stays in the broker."""
        return queue in self.applied and self.delay.rejects(queue)

    def native_retry(self, queue: str) -> NativeRetry | None:
        """Return how an origin queue holds its retries itself; None if it does not."""
        return None if queue in self.delay.differing else self.delay.native_retry(queue)

    # -- where messages go -----------------------------------------------------------------------------------------

    def requeue_for_native_retry(self, flight: InFlight) -> None:
        """Requeue a message to its queue, which holds it for the delay of the next tier."""
        native_retry, message = self.native_retry(flight.queue), flight.message

        def settle() -> None:
            if native_retry is not None and native_retry.kind == "returned":
                nack_log_error(message, self.consumer.connection_errors)
            else:
                message.reject_log_error(logger, self.consumer.connection_errors, requeue=True)

        self._act_in_loop(settle)

    def requeue(self, flight: InFlight, task: str, before_ack: Callable[[], object]) -> None:
        """Move a message that its task rejects with ``requeue=True`` to the end of its origin queue."""
        times = h.whole_number(flight.headers.get(h.REQUEUED)) + 1
        self.requeues.add(flight.queue, task, times)
        self.copy_to(flight.queue, flight, {h.REQUEUED: times, h.CRASHES: None}, before_ack=before_ack)

    def quarantine(self, flight: InFlight, crashed: int) -> None:
        """Move a message whose worker was lost to the quarantine queue, or to its end."""
        task_id, queue = flight.headers.get("id"), flight.queue
        text = "A worker was lost, or lost its connection, with the task %r of queue %s: moved to the quarantine queue"
        logger.warning(text, task_id, queue, extra={"queue": queue, "task_id": task_id, "crashes": crashed})
        self.copy_to(quarantine(flight.queue), flight, {h.CRASHES: crashed})

    def exhaust(
        self,
        flight: InFlight,
        failure: Failure,
        before_ack: Callable[[], object] = _nothing,
        after_ack: Callable[[], object] = _nothing,
    ) -> None:
        """Move a message to the exhausted queue. One that AMQP cannot encode is rejected."""
        fits = None if self.publisher is None else self.publisher.fits
        self.publish(
            flight,
            partial(self.copies.exhausted, flight, failure, self.consumer.hostname, fits),
            may_reject=lambda: self.dead_letters(flight.queue),
            before_ack=before_ack,
            after_ack=after_ack,
        )

    def copy_to(
        self,
        queue: str,
        flight: InFlight,
        more: dict[str, Any],
        *,
        again: bool = True,
        before_ack: Callable[[], object] = _nothing,
    ) -> None:
        """Move a message to the end of a queue, with ``more`` headers."""
        self.publish(flight, partial(self.copies.to_queue, flight, queue, more), again=again, before_ack=before_ack)

    # -- copy, confirm, ack ----------------------------------------------------------------------------------------

    def publish(
        self,
        flight: InFlight,
        make: Callable[[], Copy],
        *,
        again: bool = True,
        may_reject: Callable[[], bool] | None = None,
        before_ack: Callable[[], object] = _nothing,
        after_ack: Callable[[], object] = _nothing,
    ) -> None:
        """Publish the copy that ``make`` returns, and ack the message once the broker has it.

        If the broker refuses it, a new one is made and published after `HOLD_AGAIN` seconds, or after growing pauses
        where each attempt ends the connection. Without ``again``, or if AMQP cannot encode the copy and there is
        ``may_reject``, the message is requeued; rejected if ``may_reject`` returns true, as its queue keeps it.
        ``before_ack`` is called just before the ack, ``after_ack`` after it.
        """
        message, (copy, route, is_exact) = flight.message, make()
        flight.owed = Owed.COPY

        def settle(error: PublishError | None) -> None:
            if flight.is_lost:
                logger.warning(_LOST, route.where)
            elif error is None:
                self._logged.pop(route.where, None)
                before_ack()
                message.ack_log_error(logger, self.consumer.connection_errors)
                after_ack()
            elif again and not (may_reject is not None and isinstance(error, UnsendableError)):
                once_more = partial(
                    self.publish, flight, make, may_reject=may_reject, before_ack=before_ack, after_ack=after_ack
                )
                self._wait(flight, error, route, once_more)
            else:
                logger.error("%s The message stays where it was.", error, extra={"queue": route.where})
                message.reject_log_error(logger, self.consumer.connection_errors, not (may_reject and may_reject()))

        def act() -> None:
            publisher = self.publisher
            self.to_return.pop(flight, None)
            if publisher is None or flight.is_lost:
                logger.warning(_LOST, route.where)  # do not duplicate it
            else:
                declares = self.copies.topology.frame if is_exact and self.delay.settings.apply_on_start else None
                publisher.publish(copy, route, settle, declares=declares)

        self._act_in_loop(act)  # which may have reconnected before it calls this

    def _wait(self, flight: InFlight, error: PublishError, route: Route, again: Callable[[], object]) -> None:
        """Call ``again`` after a pause, which grows where each attempt costs more than itself."""
        where = route.where
        if flight.is_managed:  # not an unreadable message
            self.to_return[flight] = None
        now = time.monotonic()
        again_at, pauses = self._logged.get(where, (now, Backoff(longest=60.0)))
        if now >= again_at:  # one line for all messages that wait for a destination, and all attempts
            self._logged[where] = now + pauses.pause(), pauses
            logger.error("%s The message waits in this worker for another try.", error, extra={"queue": where})
        if isinstance(error, UnroutableError):
            self.consumer.call_soon(self._on_missing, route)  # it uses the connection that was just read
        pause = HOLD_AGAIN
        # Other copies wait for the next connection, or a full queue adds a message to the exhausted queue.
        if isinstance(error, RefusedError) or (
            isinstance(error, NackedError) and self.delay.dead_letters_refused(where)
        ):
            flight.pauses = flight.pauses or Backoff(HOLD_AGAIN)
            pause = flight.pauses.pause()
        self.consumer.timer.call_after(pause, self.consumer.call_soon, (again,))
