"""A worker's consumer of quarantined tasks: one at a time per queue, and none that has to wait for the pool.

A quarantined task that waits for the pool when its worker is killed looks like the task that killed it. So a worker
whose pool is full moves a quarantined task to the end of its queue, and takes no more until a process is free.
Meanwhile it starts no other tasks, as the pool would stay full. Then quarantined tasks run first for a moment, and the
held messages follow for as long: many quarantined tasks use half of the pool's time, not all of it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any

from celery.worker import state
from kombu import Consumer, Queue
from kombu.message import Message

from ..names import quarantine
from .confirming import ConfirmingConnection

#: The prefix of the consumer tags of quarantined tasks.
TAG = "rmq-delay-quarantine-"
#: Seconds between two checks for a free process.
_POLL = 0.02
#: Seconds for which quarantined tasks run first when a process is free: after one has started, and before.
_TURN, _FIRST = 0.25, 1.0


class Quarantine:
    """Consumes quarantined tasks on one connection: ``handle`` receives them, ``refuse`` the unreadable ones."""

    def __init__(
        self,
        consumer: Any,
        publisher: ConfirmingConnection,
        handle: Callable[[Message], None],
        refuse: Callable[[Message, Exception], None],
    ) -> None:
        self._channel = channel = consumer.connection.channel()
        channel.basic_qos(0, 1, False)
        self._celery, self._publisher = consumer, publisher
        self._consumer: Any = Consumer(
            channel,
            # The copy of a quarantined task can arrive before the confirm upon which its original is acked: run while
            # both exist, it would multiply with each worker that it kills.
            on_message=lambda message: publisher.after_pending(lambda: handle(message)),
            on_decode_error=refuse,
            accept=consumer.app.conf.accept_content,
            auto_declare=False,
            tag_prefix=TAG,
        )
        #: Whether the event loop runs: earlier deliveries would reach a pool that does not accept tasks yet.
        self._started = False
        #: The queues whose quarantined tasks wait for a free process.
        self._waiting: set[Queue] = set()
        #: Held deliveries of other queues, in their order; and whether they are being handled now.
        self._held: deque[Callable[[], object]] = deque()
        self._lets_go = False
        #: Whether a check is scheduled.
        self._polls = False
        #: In seconds of the monotonic clock: since when quarantined tasks run first, None if they do not; and from when
        #: on other deliveries are held for waiting quarantined tasks.
        self._first_since: float | None = None
        self._holds_from = 0.0
        #: Whether one of the quarantined tasks that run first was sent to the pool.
        self._begun = False

    @property
    def tags(self) -> dict[str, str]:
        """The consumer tags by queue name."""
        tags: dict[str, str] = self._consumer._active_tags
        return tags

    def start(self) -> None:
        """Start consuming, now that the event loop runs."""
        if not self._started:
            self._started = True
            self._consumer.consume()

    def add(self, name: str) -> None:
        """Consume the quarantined tasks of an origin queue."""
        self._consumer.add_queue(Queue(quarantine(name), no_declare=True))
        if self._started:
            self._consumer.consume()

    def takes(self, name: str) -> bool:
        """Whether the quarantined tasks of an origin queue are consumed, or will be."""
        queue = quarantine(name)
        return queue in self.tags or any(each.name == queue for each in self._waiting)

    def cancel_queue(self, name: str) -> None:
        """Stop consuming the quarantined tasks of an origin queue."""
        self._waiting = {queue for queue in self._waiting if queue.name != quarantine(name)}
        self._consumer.cancel_by_queue(quarantine(name))

    def cancel(self) -> None:
        """Stop consuming quarantined tasks."""
        self._started = True  # `start` then does nothing
        self._waiting.clear()
        self._first_since = None
        self._consumer.cancel()

    def forget(self) -> None:
        """Drop waiting deliveries: the connection is lost, and the broker delivers them again."""
        self._held.clear()
        self._waiting.clear()
        self._first_since = None

    # -- when the pool is full -------------------------------------------------------------------------------------

    @property
    def have_room(self) -> bool:
        """Whether the pool starts a task at once, or the broker accepts no copy of a task that would wait."""
        scaler = getattr(self._celery.controller, "autoscaler", None)
        most = scaler.max_concurrency if scaler else self._celery.pool.num_processes
        return (busy := self._busy) < most or not busy or self._publisher.is_blocked

    @property
    def _busy(self) -> int:
        pool = self._celery.pool
        jobs = getattr(getattr(pool, "_pool", None), "_cache", None)
        if jobs is not None:  # prefork's: before Celery 5.7 the requests below miss some, and keep others forever
            return sum(not job.ready() for job in list(jobs.values()))
        waiting = getattr(getattr(pool, "executor", None), "_work_queue", None)  # of threads
        return len(state.reserved_requests | state.active_requests) + (waiting.qsize() if waiting is not None else 0)

    def wait_for_room(self, name: str) -> None:
        """Stop consuming quarantined tasks, while one is unacked, until a process is free. Waits for no reply."""
        queue = next((each for each in self._consumer.queues if each.name == quarantine(name)), None)
        tag = self.tags.pop(quarantine(name), None)
        if queue is None or tag is None:  # its consumer was cancelled since
            return
        self._channel.basic_cancel(tag, nowait=True)
        self._channel.callbacks.pop(tag, None)
        if not self._waiting and self._first_since is None:
            self._holds_from = max(self._holds_from, time.monotonic())
        self._waiting.add(queue)
        self._poll_later()

    @property
    def holds(self) -> bool:
        """Whether a delivery of another queue has to wait."""
        if self._lets_go or not (self._waiting or self._first_since is not None):
            return False
        return time.monotonic() >= self._holds_from

    def hold(self, act: Callable[[], object]) -> None:
        """Hold a delivery of another queue; ``act`` is called when it may continue."""
        self._held.append(act)

    def let_go(self) -> None:
        """Continue with the held deliveries. If one raises, those after it stay held."""
        self._lets_go = True
        try:
            while self._held:
                self._held.popleft()()
        finally:
            self._lets_go = False

    def note_begun(self) -> None:
        """Record that a quarantined task was sent to the pool: other tasks follow in a moment."""
        self._begun = True

    def _poll_later(self) -> None:
        if not self._polls:
            self._polls = True
            self._celery.timer.call_after(_POLL, self._celery.call_soon, (self._poll,))

    def _poll(self) -> None:
        self._polls, now = False, time.monotonic()
        try:
            if self._waiting and self.have_room:
                waiting, self._waiting = self._waiting, set()
                for queue in waiting:
                    self._consumer._basic_consume(queue)  # with a new tag: a quorum queue may still know the old one
                if self._first_since is None and now >= self._holds_from:
                    self._first_since, self._begun = now, False
            if self._first_since is not None and now - self._first_since >= (_TURN if self._begun else _FIRST):
                self._holds_from = now + (now - self._first_since)
                self._first_since = None
                self.let_go()
            elif self._held and not self.holds:
                self.let_go()
        finally:  # Celery without an event loop logs an exception here, and continues
            if self._waiting or self._first_since is not None or self._held:
                self._poll_later()
