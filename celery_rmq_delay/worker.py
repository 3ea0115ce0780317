"""The worker's main process: what a delivery is, and how a message is settled."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from kombu import Consumer, Queue

from . import headers as h
from .broker import Capabilities, ConfirmingPublisher, capabilities, copy_of
from .crashes import Verdict, crashes, verdict, was_interrupted
from .delivery import KEY, Delivery, Path
from .exceptions import PublishError, TopologyError
from .names import rung_of, rung_queue, suspects
from .topology.apply import drift
from .topology.switch import apply_plan

if TYPE_CHECKING:
    from celery import Task
    from kombu.message import Message

    from .delay import Delay

logger = logging.getLogger(__name__)

#: Seconds to wait for confirms when the worker stops.
SHUTDOWN_TIMEOUT = 5.0
_SUSPECTS_TAG = "rmq-delay-suspects-"


class WorkerSide:
    """What the package keeps for one consumer; made once, connected anew with every connection."""

    def __init__(self, consumer: Any, delay: Delay) -> None:
        self.consumer, self.delay = consumer, delay
        self.applied: set[str] = set()
        self._tags: dict[str, str] = {}
        self._suspects: Consumer | None = None
        self._publisher: ConfirmingPublisher | None = None
        self._broker = Capabilities((0, 0, 0))
        self._pid = 0
        self._thread = 0

    # -- connecting ----------------------------------------------------------------------------------------------

    def connect(self) -> None:
        """Apply the ladders of the consumed queues and start to take suspects. Blocks: the loop does not run yet."""
        self._thread, self._pid = threading.get_ident(), os.getpid()
        connection = self.consumer.connection
        self._broker = capabilities(connection)
        self._publisher = publisher = ConfirmingPublisher(connection)
        handle = self.consumer.create_task_handler()
        channel = connection.channel()
        channel.basic_qos(0, 1, False)
        self._suspects = Consumer(
            channel,
            # The copy of a suspect can arrive before the confirm that lets its original go: run while both are
            # there, it would multiply with each worker that it kills.
            on_message=lambda message: publisher.when_idle(lambda: handle(message)),
            accept=self.consumer.app.conf.accept_content,
            auto_declare=False,
            tag_prefix=_SUSPECTS_TAG,
        )
        self._tags.clear()
        self.applied.clear()
        self.delay.on_declared = self.add_queue
        for name in list(self.consumer.app.amqp.queues.consume_from):
            self.add_queue(name)

    def add_queue(self, name: str) -> None:
        """Apply the ladder of a consumed queue and take its suspects."""
        if name in self.applied or self._suspects is None or not self._in_loop():
            return
        if name not in self.consumer.app.amqp.queues.consume_from or name not in self.delay.origin_queues():
            return
        plan = self.delay.plan(name, reason_routing=self._broker.tells_death_reason)
        with self.consumer.app.connection_for_read() as connection:
            if self.delay.settings.apply_on_start:
                if apply_plan(connection, plan, quick=True):
                    logger.info("Applied the ladder of queue %s", name, extra={"queue": name})
            elif missing := drift(connection, plan.objects()):
                listed = ", ".join(f"{each.kind} {each.name} ({each.problem})" for each in missing[:5])
                raise TopologyError(
                    f"Queue {name!r}: {len(missing)} objects of its ladder are not as planned: {listed}. Rejected "
                    "messages would be lost: run `celery -A proj rmq-delay apply`, or set apply_on_start=True."
                )
        self.applied.add(name)
        self._suspects.add_queue(Queue(suspects(name), no_declare=True))
        self._suspects.consume()

    def _in_loop(self) -> bool:
        """Whether this is the main process's event loop, and not a forked child or a thread of the pool."""
        return os.getpid() == self._pid and (self.consumer.hub is None or threading.get_ident() == self._thread)

    def disconnect(self) -> None:
        """Wait a little for outstanding confirms, so that nothing exhausted is delivered again."""
        if self._publisher is not None:
            self._publisher.drain(SHUTDOWN_TIMEOUT)

    def stop_suspects(self) -> None:
        """Take no more suspects."""
        if self._suspects is not None:
            self._suspects.cancel()

    # -- receiving -----------------------------------------------------------------------------------------------

    def receive(self, message: Message, body: Any, task: Task[Any, Any]) -> Verdict:
        """Read a delivery: put its attempt count, first route and `Delivery` where Celery and the task look.

        Returns what to do with it; a suspect is on its way to the other queue when this returns.
        """
        info, raw = message.delivery_info, message.headers
        queue, among_suspects = self._queue_of(info.get("consumer_tag", ""))
        settings = self.delay.settings.for_queue(queue)
        if settings is None:
            return Verdict.RUN
        rung = 0 if among_suspects else rung_of(queue, info["routing_key"])
        rejections = h.rejections(raw, queue, suspects(queue)) if "x-death" in raw else 0
        retries = h.whole_number(raw.get("retries", (body or {}).get("retries"))) + rejections
        exchange, routing_key = h.first_route(raw, queue, info["exchange"], info["routing_key"])
        interrupted = info["redelivered"] and (
            among_suspects or was_interrupted(raw, redelivered=True, quorum=self._counts(queue), broker=self._broker)
        )
        found = Delivery(queue, rung, raw.get(h.LANE), self._path(queue, task, rejections, among_suspects))
        message.rmq_delay = self
        message.raw_headers = raw
        message.delivery_info = {**info, "exchange": exchange, "routing_key": routing_key, "redelivered": interrupted}
        # Protocol 2 has the task's facts in the headers, protocol 1 in the body.
        facts = {**(body if body else raw), "retries": retries, KEY: found}
        if retries:
            facts["eta"] = None  # it was the first run's
        if body:
            body.update(facts)
        else:
            message.headers = facts
        todo = verdict(raw, interrupted=interrupted, among_suspects=among_suspects, max_crashes=settings.max_crashes)
        if todo is Verdict.SUSPECT:
            self._suspect(message, found, retries, crashes(raw) + (1 if among_suspects else 0))
        return todo

    def _path(self, queue: str, task: Task[Any, Any], rejections: int, among_suspects: bool) -> Path:
        """Return how an unchanged retry gets to its delay queue."""
        if not self.delay.is_planned(queue, task) or queue not in self.applied:
            return Path.PUBLISH
        if (
            among_suspects
            or queue in self.delay.foreign
            or (rejections and rejections >= self.delay.rejections_allowed(queue))
            or (self._broker.flags_returned and not self._is_quorum(queue))
        ):
            return Path.COPY
        return Path.REJECT

    def _is_quorum(self, queue: str) -> bool:
        return self.delay.queue_type(self.consumer.app.amqp.queues.get(queue), queue) == "quorum"

    def _counts(self, queue: str) -> bool:
        """Whether the delivery count tells crashes; in foreign queues nothing is rejected, so that the flag does."""
        return self._is_quorum(queue) and queue not in self.delay.foreign

    def _queue_of(self, tag: str) -> tuple[str, bool]:
        """Return (origin queue, whether the delivery comes from its suspects)."""
        if tag not in self._tags:
            consumers: tuple[Any, ...] = (self.consumer.task_consumer, self._suspects)
            self._tags = {
                tag: queue for consumer in consumers if consumer for queue, tag in consumer._active_tags.items()
            }
        queue = self._tags.get(tag, "")
        return (queue.removesuffix(".suspects"), True) if tag.startswith(_SUSPECTS_TAG) else (queue, False)

    # -- settling ------------------------------------------------------------------------------------------------

    def _suspect(self, message: Message, delivery: Delivery, retries: int, crashed: int) -> None:
        logger.warning(
            "A worker was lost, or lost its connection, with a message of %s: it goes on among the suspects",
            delivery.queue,
            extra={"queue": delivery.queue, "task_id": message.raw_headers.get("id"), "crashes": crashed},
        )
        copy = copy_of(message, self._forwarded(message, retries, {h.CRASHES: crashed}))
        self.publish(message, copy, suspects(delivery.queue), requeue=True)

    def exhaust(
        self,
        message: Message,
        *,
        queue: str,
        retries: int,
        reason: str,
        exception: BaseException,
        traceback: str | None,
        crashes: int = 0,
        done: Callable[[bool], object] = bool,
    ) -> None:
        """Move a message to the exhausted queue: published with confirm, then acked; rejected where that fails.

        ``done`` is called with whether it is there.
        """
        now = h.timestamp(datetime.now(timezone.utc))
        text = h.printable(str(exception))
        headers = self._forwarded(
            message,
            retries,
            {
                h.QUEUE: queue,
                h.REASON: reason,
                h.EXCEPTION: _type_name(exception),
                h.MESSAGE: h.bounded(text, h.MAX_MESSAGE),
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
            self.delay.settings.exhausted_queue,
            requeue=not self._dead_letters(queue),
            done=done,
        )

    def park(self, message: Message, delivery: Delivery, task: Task[Any, Any], retries: int, rung: int) -> None:
        """Move a message as it is to the delay queue of ``rung``: published with confirm, then acked."""
        ladder = self.delay.ladder(delivery.queue, task)
        target = rung_queue(delivery.queue, rung, ladder.ttl(rung, delivery.lane))
        copy = copy_of(message, self._forwarded(message, retries + 1, {}))
        self.publish(message, copy, target, requeue=not self._dead_letters(delivery.queue))

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
        queue: str,
        *,
        requeue: bool = False,
        done: Callable[[bool], object] = bool,
    ) -> None:
        """Publish ``copy`` to ``queue``; ack ``message`` once the broker has it, reject it where the broker has not."""

        def settle(error: PublishError | None) -> None:
            if error is None:
                message.ack_log_error(logger, self.consumer.connection_errors)
            else:
                logger.error("%s The message stays where it was.", error, extra={"queue": queue})
                message.reject_log_error(logger, self.consumer.connection_errors, requeue)
            done(error is None)

        publisher = self._publisher
        if publisher is None or not message.channel.is_open:
            # The broker has taken the message back with its connection, and delivers it again: no copy beside it.
            logger.warning("The connection of a message for %s is gone: it is delivered again", queue)
            return
        if self._in_loop():
            publisher.publish(copy, queue, settle)
        else:
            self.consumer.call_soon(publisher.publish, copy, queue, settle)

    def _dead_letters(self, queue: str) -> bool:
        """Whether a rejected message of ``queue`` stays in the broker."""
        return queue in self.applied and queue not in self.delay.foreign

    def on_decode_error(self, message: Message, error: Exception) -> None:
        """Exhaust what cannot be decoded; Celery would ack it, and it would be lost."""
        logger.critical(
            "Cannot decode a message (%s, %s): %r. It goes to %s.",
            message.content_type,
            message.content_encoding,
            error,
            self.delay.settings.exhausted_queue,
        )
        queue, _ = self._queue_of(message.delivery_info.get("consumer_tag", ""))
        message.raw_headers = getattr(message, "raw_headers", message.headers)
        self.exhaust(message, queue=queue, retries=0, reason="undecodable", exception=error, traceback=None)


def _type_name(exception: BaseException) -> str:
    kind = type(exception)
    wrapped = getattr(exception, "exc_cls_name", None)  # celery.utils.serialization.UnpickleableExceptionWrapper
    if wrapped:
        return str(wrapped)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
