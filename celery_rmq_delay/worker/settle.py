"""Settling of messages in the worker's main process: copy with confirm, then ack; or leave it to the broker."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timezone
from functools import partial
from typing import TYPE_CHECKING, Any

from celery.worker import state

from .. import headers as h
from ..amqp.backoff import Backoff
from ..amqp.capabilities import Capabilities
from ..amqp.confirms import CONFIRM_TIMEOUT
from ..amqp.copies import copy_of, nack_log_error, parked_copy
from ..amqp.route import Route
from ..events.failures import message_of, type_name
from ..exceptions import NackedError, PublishError, RefusedError, UnroutableError, UnsendableError
from ..names import quarantine
from ..redaction import shortened
from ..retry.delivery import Delivery, RetryPath
from ..topology.native_retry import NativeRetry
from .attempts import Attempts
from .confirming import ConfirmingConnection

if TYPE_CHECKING:
    from celery import Task
    from kombu.message import Message

    from ..app.state import AppState
    from ..events.reporter import Reporter
    from ..topology.exact.base import Topology

logger = logging.getLogger(__name__)

#: Seconds to wait for confirms in a cold shutdown, as Celery itself waits for a silent broker.
COLD_TIMEOUT = 5.0
#: How many acks RabbitMQ sends to a quorum queue before it has the queue's replies.
ACKS_AT_ONCE = 32
#: Seconds to wait for these replies, which wait for a disk: minimum and maximum.
ACKS_SHORTEST, ACKS_LONGEST = 1.0, 5.0
#: Minimum seconds without a delivery after which a quorum queue has delivered all messages that the acks allow.
QUIET = 0.2
_LOST = "The connection of a message for %s was lost: it is delivered again"
#: Seconds until the next attempt to move a message, where the broker did not close the channel.
HOLD_AGAIN = 1.0


def _nothing() -> None:
    """Do nothing: the default of callbacks."""


class Settling:
    """Settles the messages of one consumer. Publishes nothing before `open`."""

    #: The topology of exact delays on the current or the last connection: threads of the pool need no connection.
    _topology: Topology

    def __init__(self, consumer: Any, delay: AppState) -> None:
        self.consumer, self.delay = consumer, delay
        #: The queues whose ladders are applied.
        self.applied: set[str] = set()
        #: Reports messages before they are settled; None if events are off.
        self.reporter: Reporter | None = None
        #: The messages of tasks that wait for another attempt to publish their copy, by identity.
        self._waiting: dict[int, Message] = {}
        #: When the waiting messages of a destination are logged again (seconds of the monotonic clock), and the pauses.
        self._logged: dict[str, tuple[float, Backoff]] = {}
        self.attempts = Attempts(_is_lost)
        #: The minimum number of messages that were delivered on the channel of the origin queues.
        self.delivered = 0
        self._publisher: ConfirmingConnection | None = None
        self._broker = Capabilities((0, 0, 0))
        self._pid = 0
        self._thread = 0

    def open(self, connection: Any) -> ConfirmingConnection:
        """Open the connection for publishing, next to a new connection of the consumer, in this thread. Blocks."""
        self.close()
        self._thread, self._pid = threading.get_ident(), os.getpid()
        self._publisher = publisher = ConfirmingConnection(
            self.consumer, connection, self.on_missing, lock=self.attempts.lock
        )
        publisher.open()
        return publisher

    def close(self) -> None:
        """Stop publishing until the next `open`: the broker requeues the originals."""
        if self._publisher is not None:
            self._publisher.close()

    def on_missing(self, route: Route | None = None) -> None:
        """Declare missing objects to publish to, such as those of ``route``."""

    def return_what_is_left(self) -> None:
        """Return messages that were not started, or wait for another attempt of their copy: the worker stops."""

    def choose(self, connection: Any) -> None:
        """Choose the topology of exact delays that the broker of ``connection`` supports. Raises `TopologyError`."""
        self._topology = self.delay.exact.topology(connection)

    def _in_loop(self) -> bool:
        """Whether this is the main process's event loop, and not a forked child or a thread of the pool.

        Without a hub, `call_soon` waits for the loop's next turn, two seconds, so each thread acts itself.
        """
        return os.getpid() == self._pid and (self.consumer.hub is None or threading.get_ident() == self._thread)

    def _act_in_loop(self, act: Callable[[], object]) -> None:
        if self._in_loop():
            act()
        else:
            self.consumer.call_soon(act)

    def restore_prefetch(self, restore: Callable[..., object], *args: Any) -> None:
        """Restore the prefetch count in the event loop; Celery would do so in the thread that acks a message.

        It waits for a reply, and two threads, or greenlets, that read one connection may both miss it.
        """
        if threading.get_ident() == self._thread:
            restore(*args)
        else:
            self.consumer.call_soon(partial(restore, *args))

    def disconnect(self) -> None:
        """Return the remaining messages, and wait for outstanding confirms as long as operations do.

        Does not wait in an alarm, in which no confirm would arrive.
        """
        if self._publisher is not None:
            for _ in range(2):  # a confirm may release a quarantined task, and a refusal leaves its message
                self.return_what_is_left()
                self._publisher.drain(self.patience)
            self.close()
            if not _is_cold():
                self._let_acks_arrive()

    @property
    def patience(self) -> float:
        """Seconds for which a stopping worker waits for a reply of the broker."""
        return COLD_TIMEOUT if _is_cold() else CONFIRM_TIMEOUT

    def take_the_rest(self) -> None:
        """Receive the messages that quorum queues deliver for the acks so far, before their consumers are cancelled.

        A message that such a queue assigns to a consumer during its cancellation reaches no worker, and is redelivered
        as if a worker had died with it. A consumer with a used-up prefetch count is assigned none. Blocks.
        """
        answered = self._seconds_to_answer()
        if answered is None:
            return
        quiet, now = max(QUIET, 5 * answered), time.monotonic()
        until, latest, delivered = now + quiet, now + 5 * quiet, self.delivered
        with suppress(*self.consumer.connection_errors):
            while (now := time.monotonic()) < min(until, latest):
                with suppress(TimeoutError):
                    self.consumer.connection.drain_events(timeout=until - now)
                if self.delivered != delivered:
                    until, delivered = time.monotonic() + quiet, self.delivered

    def _let_acks_arrive(self) -> None:
        """Wait until RabbitMQ has processed the acks for quorum queues.

        When the channel closes, it drops the acks that it has not sent to them: those messages are delivered again. The
        reliable way, `work_off`, would fetch a message that this worker does not need.
        """
        if self.delivered > ACKS_AT_ONCE and (answered := self._seconds_to_answer()) is not None:
            time.sleep(min(ACKS_LONGEST, max(ACKS_SHORTEST, 5 * answered)))

    def _seconds_to_answer(self) -> float | None:
        """Return how long the broker takes to read all acks and to reply; None without a quorum queue."""
        queue = next((name for name in self.applied if self.delay.is_quorum(name)), None)
        if queue is None:
            return None
        began = time.monotonic()
        try:
            self.consumer.task_consumer.channel.queue_declare(queue, passive=True)
        except self.consumer.connection_errors:
            return None
        return time.monotonic() - began

    def _move_to_quarantine(self, message: Message, delivery: Delivery, retries: int, crashed: int) -> None:
        task_id = message.raw_headers.get("id")
        logger.warning(
            "A worker was lost, or lost its connection, with the task %r of queue %s: moved to the quarantine queue",
            task_id,
            delivery.queue,
            extra={"queue": delivery.queue, "task_id": task_id, "crashes": crashed},
        )
        # Requeued, it would be delivered again at once, as a quarantined task.
        again = partial(self._move_to_quarantine, message, delivery, retries, crashed)
        self._copy_to(quarantine(delivery.queue), message, retries, {h.CRASHES: crashed}, again)

    def move_to_exhausted(
        self,
        message: Message,
        *,
        queue: str,
        retries: int,
        reason: str,
        exception: BaseException,
        traceback: str | None,
        crashes: int = 0,
        before_ack: Callable[[], object] = _nothing,
        after_ack: Callable[[], object] = _nothing,
    ) -> None:
        """Move a message to the exhausted queue: published with confirm, then acked.

        ``before_ack`` is called between confirm and ack, ``after_ack`` after them. While the broker does not accept it,
        it is tried again: rejected, it would run again, or be dropped by a full queue. A message that AMQP cannot
        encode is rejected.
        """
        again = partial(
            self.move_to_exhausted,
            message,
            queue=queue,
            retries=retries,
            reason=reason,
            exception=exception,
            traceback=traceback,
            crashes=crashes,
            before_ack=before_ack,
            after_ack=after_ack,
        )
        now = h.timestamp(datetime.now(timezone.utc))
        text = h.printable(message_of(exception))
        headers = self._forwarded(
            message,
            retries,
            {
                h.QUEUE: queue,
                h.REASON: reason,
                h.EXCEPTION: type_name(exception),
                h.MESSAGE: shortened(text, h.MAX_MESSAGE),
                h.TRACEBACK: h.bounded(h.printable(traceback or ""), h.MAX_TRACEBACK) or None,
                h.ATTEMPTS: retries + 1,
                h.CRASHES: crashes or message.raw_headers.get(h.CRASHES),
                h.EXHAUSTED_AT: now,
                h.WORKER: self.consumer.hostname,
            },
        )
        headers.setdefault(h.FIRST_FAILED, now)
        copy = copy_of(message, headers)
        if self._publisher is not None and not self._publisher.fits(copy):
            headers.pop(h.TRACEBACK, None)
            headers.pop(h.MESSAGE, None)
            copy = copy_of(message, headers)
        self.publish(
            message,
            copy,
            Route("", self.delay.settings.exhausted_queue),
            may_reject=lambda: self.dead_letters(queue),
            again=again,
            before_ack=before_ack,
            after_ack=after_ack,
        )

    def park(
        self,
        message: Message,
        delivery: Delivery,
        task: Task[Any, Any],
        retries: int,
        tier_index: int,
        delay_ms: int | None = None,
        before_ack: Callable[[], object] = _nothing,
    ) -> None:
        """Move a message as it is to the delay queue of ``tier_index``, or to one for an exact delay.

        Published with confirm, then acked; ``before_ack`` is called between the two. While the broker does not accept
        it, it is tried again: rejected, it would wait where its routing key leads, and a full queue would drop it.
        """
        if delay_ms is None:
            ttl_ms = self.delay.ladder(delivery.queue, task).ttl(tier_index, delivery.lane)
            if not self.delay.has_ladder(delivery.queue):
                self.park(message, delivery, task, retries, tier_index, ttl_ms, before_ack)
                return
            if delivery.path is RetryPath.PUBLISH:  # no apply has declared its delay queue
                route = self.delay.plan(delivery.queue, reason_routing=True, tasks=False).route(tier_index, ttl_ms)
            else:
                name = self.delay.delay_queue(delivery.queue, tier_index, ttl_ms)
                route = Route("", name, sorts=self.delay.queue_type(delivery.queue) == "quorum")
        else:
            exact = self.delay.exact
            route = exact.along(self._topology, delay_ms, delivery.queue, "countdown", delay_ms / 1000)
        # The attempt has ended: earlier kills do not count together with later ones.
        headers = self._forwarded(message, retries + 1, {**route.headers, h.CRASHES: None})
        copy = parked_copy(message, headers, route, self._broker)
        again = partial(self.park, message, delivery, task, retries, tier_index, delay_ms, before_ack)
        self.publish(message, copy, route, is_exact=delay_ms is not None, again=again, before_ack=before_ack)

    def _native_retry(self, queue: str, is_quarantined: bool) -> NativeRetry | None:
        """Return how the queue of a delivery holds its retries itself; None if it does not."""
        if is_quarantined or queue in self.delay.differing:
            return None
        return self.delay.native_retry(queue)

    def requeue_for_native_retry(self, message: Message, delivery: Delivery) -> None:
        """Requeue a message to its queue, which holds it for the delay of the next tier."""
        native_retry = self._native_retry(delivery.queue, is_quarantined=False)

        def settle() -> None:
            if native_retry is not None and native_retry.kind == "returned":
                nack_log_error(message, self.consumer.connection_errors)
            else:
                message.reject_log_error(logger, self.consumer.connection_errors, requeue=True)

        self._act_in_loop(settle)

    def _copy_to(
        self,
        queue: str,
        message: Message,
        retries: int,
        more: dict[str, Any],
        again: Callable[[], object] | None = None,
        before_ack: Callable[[], object] = _nothing,
    ) -> None:
        """Move a message to the end of a queue: a copy with ``more`` headers, published with confirm, then acked."""
        copy = copy_of(message, self._forwarded(message, retries, more))
        self.publish(message, copy, Route("", queue), again=again, before_ack=before_ack)

    def _forwarded(self, message: Message, retries: int, more: dict[str, Any]) -> dict[str, Any]:
        raw, info = message.raw_headers, message.delivery_info
        found = h.forwarded(raw, retries=retries, exchange=info["exchange"], routing_key=info["routing_key"], more=more)
        if retries and h.FIRST_FAILED not in found:
            found[h.FIRST_FAILED] = h.timestamp(h.first_death(raw) or datetime.now(timezone.utc))
        return found

    def publish(
        self,
        message: Message,
        copy: Any,
        route: Route,
        *,
        is_exact: bool = False,
        may_reject: Callable[[], bool] | None = None,
        again: Callable[[], object] | None = None,
        before_ack: Callable[[], object] = _nothing,
        after_ack: Callable[[], object] = _nothing,
    ) -> None:
        """Publish ``copy`` along ``route``; ack ``message`` once the broker has it, and requeue it if it refuses.

        If ``may_reject`` then returns true, the message is rejected instead, as its queue keeps it. With ``again``,
        neither happens, unless there is ``may_reject`` and AMQP cannot encode the copy: ``again`` is called after
        `HOLD_AGAIN` seconds, or after growing pauses where each attempt ends the connection. ``before_ack`` is called
        just before the ack, ``after_ack`` after it. ``is_exact``: it is the route of an exact delay, whose first use
        declares the objects that all queues share.
        """
        where = route.where
        message.rmq_delay_moves = True

        def settle(error: PublishError | None) -> None:
            if _is_lost(message):
                logger.warning(_LOST, where)
                return
            if error is None:
                self._logged.pop(where, None)
                before_ack()
                message.ack_log_error(logger, self.consumer.connection_errors)
                after_ack()
            elif again is not None and not (may_reject is not None and isinstance(error, UnsendableError)):
                if hasattr(message, "rmq_delay"):  # not an unreadable message
                    self._waiting[id(message)] = message
                self._log_waiting(where, error)
                if isinstance(error, UnroutableError):
                    self.consumer.call_soon(self.on_missing, route)  # it uses the connection that was just read
                self.consumer.timer.call_after(self._pause(message, error, where), self.consumer.call_soon, (again,))
            else:
                logger.error("%s The message stays where it was.", error, extra={"queue": where})
                message.reject_log_error(logger, self.consumer.connection_errors, not (may_reject and may_reject()))

        def act() -> None:
            publisher = self._publisher
            self._waiting.pop(id(message), None)
            if publisher is None or _is_lost(message):
                logger.warning(_LOST, where)  # do not duplicate it
            else:
                declares = self._topology.frame if is_exact and self.delay.settings.apply_on_start else None
                publisher.publish(copy, route, settle, declares=declares)

        self._act_in_loop(act)  # which may have reconnected before it calls this

    def _log_waiting(self, where: str, error: PublishError) -> None:
        """Log messages that wait for a destination: one line for all of them and all attempts, with back-off."""
        now = time.monotonic()
        again_at, pauses = self._logged.get(where, (now, Backoff(longest=60.0)))
        if now >= again_at:
            self._logged[where] = now + pauses.pause(), pauses
            logger.error("%s The message waits in this worker for another try.", error, extra={"queue": where})

    def _pause(self, message: Message, error: PublishError, where: str) -> float:
        """Return the seconds until the next attempt to move a message.

        They grow where other copies wait for it, and where each attempt adds a message to the exhausted queue.
        """
        adds = isinstance(error, NackedError) and self.delay.dead_letters_refused(where)
        if not (adds or isinstance(error, RefusedError)):
            return HOLD_AGAIN
        pauses: Backoff = vars(message).setdefault("rmq_delay_pauses", Backoff(HOLD_AGAIN))
        return pauses.pause()

    def dead_letters(self, queue: str) -> bool:
        """Whether a rejected message of ``queue`` stays in the broker."""
        return queue in self.applied and self.delay.rejects(queue)


def _is_cold() -> bool:
    """Whether the worker stops without waiting for its tasks."""
    return state.should_terminate not in (None, False)


def _is_lost(message: Message) -> bool:
    """Whether the connection of a message is lost, so that the broker requeues it."""
    channel: Any = message.channel
    return not (channel.is_open and channel.connection.connected)
