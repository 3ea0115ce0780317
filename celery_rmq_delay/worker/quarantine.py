"""A worker's consumer of quarantined tasks: one at a time of each queue, and none that has to wait for the pool.

A quarantined task that waits for the pool when its worker is killed looks like the one that killed it. So a worker
whose pool is full moves a quarantined task to the end of its queue, and takes no more until a process is free.
Meanwhile it hands nothing else to the pool, which would stay full otherwise. Then quarantined tasks come first for a
moment, and what was held follows them for as long: many quarantined tasks take half of the pool's time, and not all of
it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from celery.worker import state
from kombu import Consumer, Queue

from ..names import quarantine

if TYPE_CHECKING:
    from kombu.message import Message

    from .confirming import ConfirmingConnection

#: What the consumer tags of quarantined tasks begin with.
TAG = "rmq-delay-quarantine-"
#: Seconds between two looks for a free process.
_LOOK = 0.02
#: For how many seconds quarantined tasks come first when there is one: where the first of them has come, and where none
#: has.
_TURN, _FIRST = 0.25, 1.0


class Quarantine:
    """Takes quarantined tasks on one connection of the consumer.

    ``handle`` receives each of them, and ``refuse`` those that cannot be read.
    """

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
            # The copy of a quarantined task can arrive before the confirm that lets its original go: run while both are
            # there, it would multiply with each worker that it kills.
            on_message=lambda message: publisher.after_pending(lambda: handle(message)),
            on_decode_error=refuse,
            accept=consumer.app.conf.accept_content,
            auto_declare=False,
            tag_prefix=TAG,
        )
        #: Whether the event loop runs: what is delivered before would meet a pool that does not take tasks yet.
        self._started = False
        #: The queues whose quarantined tasks wait for a free process.
        self._waiting: set[Queue] = set()
        #: Other deliveries, in their order, that are received later; and whether that happens now.
        self._held: deque[Callable[[], object]] = deque()
        self._lets_go = False
        #: Whether a look is planned.
        self._looks = False
        #: In seconds of the monotonic clock: since when quarantined tasks come first, None where they do not; and from
        #: when on others are held for quarantined tasks that wait.
        self._first_since: float | None = None
        self._holds_from = 0.0
        #: Whether one of the quarantined tasks that come first has been handed to the pool.
        self._begun = False

    @property
    def tags(self) -> dict[str, str]:
        """The consumer tags by the names of their queues."""
        tags: dict[str, str] = self._consumer._active_tags
        return tags

    def start(self) -> None:
        """Begin, now that the event loop runs."""
        if not self._started:
            self._started = True
            self._consumer.consume()

    def add(self, name: str) -> None:
        """Take the quarantined tasks of an origin queue."""
        self._consumer.add_queue(Queue(quarantine(name), no_declare=True))
        if self._started:
            self._consumer.consume()

    def takes(self, name: str) -> bool:
        """Whether the quarantined tasks of an origin queue are taken, or will be."""
        queue = quarantine(name)
        return queue in self.tags or any(each.name == queue for each in self._waiting)

    def cancel_queue(self, name: str) -> None:
        """Take no more quarantined tasks of an origin queue."""
        self._waiting = {queue for queue in self._waiting if queue.name != quarantine(name)}
        self._consumer.cancel_by_queue(quarantine(name))

    def cancel(self) -> None:
        """Take no more quarantined tasks."""
        self._started = True  # and never begin
        self._waiting.clear()
        self._first_since = None
        self._consumer.cancel()

    def forget(self) -> None:
        """Drop what waits: the connection is lost, and the broker delivers it again."""
        self._held.clear()
        self._waiting.clear()
        self._first_since = None

    # -- when the pool is full -------------------------------------------------------------------------------------

    @property
    def have_room(self) -> bool:
        """Whether the pool starts a task at once; also where the broker takes no copy of a task that would wait."""
        scaler = getattr(self._celery.controller, "autoscaler", None)
        most = scaler.max_concurrency if scaler else self._celery.pool.num_processes
        return (busy := self._busy) < most or not busy or self._publisher.is_blocked

    @property
    def _busy(self) -> int:
        """How many tasks the pool has, of lost connections, too."""
        pool = self._celery.pool
        jobs = getattr(getattr(pool, "_pool", None), "_cache", None)
        if jobs is not None:  # prefork's: before Celery 5.7 the requests below miss some, and keep others for ever
            return sum(not job.ready() for job in list(jobs.values()))
        waiting = getattr(getattr(pool, "executor", None), "_work_queue", None)  # of threads
        return len(state.reserved_requests | state.active_requests) + (waiting.qsize() if waiting is not None else 0)

    def wait_for_room(self, name: str) -> None:
        """Take no more quarantined tasks of an origin queue until a process is free. Waits for no answer of the broker.

        For the time when one of them is unacked: the consumer, whose prefetch is used up, is assigned none meanwhile.
        """
        queue = next((each for each in self._consumer.queues if each.name == quarantine(name)), None)
        tag = self.tags.pop(quarantine(name), None)
        if queue is None or tag is None:  # its consumer was cancelled since
            return
        self._channel.basic_cancel(tag, nowait=True)
        self._channel.callbacks.pop(tag, None)
        if not self._waiting and self._first_since is None:
            self._holds_from = max(self._holds_from, time.monotonic())
        self._waiting.add(queue)
        self._look_later()

    @property
    def holds(self) -> bool:
        """Whether a delivery of another queue has to wait."""
        if self._lets_go or not (self._waiting or self._first_since is not None):
            return False
        return time.monotonic() >= self._holds_from

    def hold(self, act: Callable[[], object]) -> None:
        """Let a delivery of another queue wait; ``act`` is called when it may go on."""
        self._held.append(act)

    def let_go(self) -> None:
        """Let what was held go on. Where one raises, the others after it stay held."""
        self._lets_go = True
        try:
            while self._held:
                self._held.popleft()()
        finally:
            self._lets_go = False

    def note_begun(self) -> None:
        """Note that a quarantined task has been handed to the pool: others are next in a moment."""
        self._begun = True

    def _look_later(self) -> None:
        if not self._looks:
            self._looks = True
            self._celery.timer.call_after(_LOOK, self._celery.call_soon, (self._look,))

    def _look(self) -> None:
        self._looks, now = False, time.monotonic()
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
        finally:  # Celery without an event loop logs what is raised here, and goes on
            if self._waiting or self._first_since is not None or self._held:
                self._look_later()
