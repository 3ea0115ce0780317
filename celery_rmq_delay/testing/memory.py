"""The in-memory ladder: tasks go through all their tiers in one process, without a broker and without waiting."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

from celery import Celery
from celery.canvas import Signature
from celery.concurrency.base import BasePool
from celery.exceptions import TaskRevokedError
from celery.worker import state
from kombu.utils.imports import symbol_by_name

from ..app.inventory import origin_queues
from ..app.state import AppState, state_of
from ..durations import parse_ms
from ..exceptions import NotFinishedError
from ..worker.trace import imported
from .recorder import Recorder, Stories
from .redirection import redirected, results_in_memory
from .story import TaskStory
from .virtual_broker import Timed, VirtualBroker
from .virtual_transport import BROKERS, NAME

#: Steps of Celery's consumer that talk to other workers.
_OPTIONS = {"without_mingle": True, "without_gossip": True, "without_heartbeat": True, "task_events": False}

#: How many messages one call of `MemoryLadder.run` may deliver.
MOST_DELIVERIES = 10_000


class MemoryLadder(Stories):
    """Runs the tasks of an app through their ladders: real app, real worker code, a broker and a clock in memory.

        with MemoryLadder(app) as ladder:
            story = ladder.run(charge.s(7))
        assert story.waits == [10, 60]

    Inside the block all messages of the app stay in memory, and run when `run` or `advance` is called, or when a test
    waits for a result. Nothing sleeps: the clock of the ladder jumps to the next due message. The computer's clock,
    which tasks read, does not change.

    Results are kept in memory, events are not sent, time limits and rate limits have no effect. Needs
    ``celery_rmq_delay.install(app)``.
    """

    def __init__(self, app: Celery) -> None:
        """Take an app that `install` was called with. Raises `RmqDelayError` otherwise."""
        self._app, self._delay = app, state_of(app)
        settings = self._delay.settings
        super().__init__(Recorder(app, AppState(app, settings), lambda: self.now))
        self._silent = replace(settings, events=replace(settings.events, wanted=False))
        self._broker = VirtualBroker()
        self._consumer: Any = None
        self._delivered = 0

    def _take_over(self, stack: ExitStack) -> None:
        host = f"memory-{uuid.uuid4().hex}"
        BROKERS[host] = self._broker
        stack.enter_context(self._delay.apart(self._silent))
        stack.enter_context(redirected(self._app, hostname=host, transport=NAME))
        stack.enter_context(results_in_memory(self._app, self.run))
        stack.enter_context(self._recorder.recording())
        self._consumer = self._start()
        stack.callback(self._stop)

    @property
    def now(self) -> float:
        """Seconds since the start of the ladder, by its clock."""
        return self._broker.now_ms / 1000

    def send(self, task: Signature[Any]) -> TaskStory:
        """Send a task (``charge.s(7)``) and run its first attempt. Chains and groups can be sent, too."""
        result: Any = task.apply_async()
        self.advance(0)
        return self.story(result)

    def run(self, task: Signature[Any] | None = None) -> TaskStory:
        """Send ``task``, if there is one, and run until no message is left; return its story.

        Raises `NotFinishedError` if there is no end, as with ``repeat_last`` and a task that never succeeds.
        """
        result: Any = task.apply_async() if task is not None else None
        self._delivered = 0
        while self._deliver() or self._jump():
            pass
        return self.story(result) if result is not None else TaskStory("", "no task was given")

    def advance(self, delay: str | float | timedelta) -> None:
        """Advance the clock by ``delay`` (as in the settings: ``"90s"``, seconds, a timedelta); run due messages."""
        self._delivered = 0
        to_ms = self._broker.now_ms + (parse_ms(delay, "delay") if delay else 0)
        while self._deliver() or self._jump(to_ms):
            pass
        self._broker.advance(to_ms)
        while self._deliver():
            pass

    def _start(self) -> Any:
        app: Any = self._app
        origin_queues(self._delay)
        pool = _Pool(limit=1, app=app)
        consumer = symbol_by_name(app.conf.worker_consumer)(
            on_task_request=lambda request: _execute(request, pool),
            hostname="memory@ladder",
            pool=pool,
            app=app,
            timer=_Timer(self._broker),
            controller=SimpleNamespace(state=state, semaphore=None, use_eventloop=False, app=app),
            worker_options=_OPTIONS,
            disable_rate_limits=True,
            initial_prefetch_count=0,
        )
        consumer.loop = lambda *_: None  # this class is the loop
        pool.start()
        consumer.blueprint.start(consumer)
        consumer.task_consumer.on_message = consumer.create_task_handler()
        consumer.task_consumer.consume()
        consumer.perform_pending_operations()
        return consumer

    def _stop(self) -> None:
        self._consumer.blueprint.stop(self._consumer)
        self._consumer.shutdown()

    def _deliver(self) -> bool:
        """Deliver one message to the worker, which runs it; return whether there was any."""
        consumer = self._consumer
        for name in [name for name in self._app.amqp.queues if not consumer.task_consumer.consuming_from(name)]:
            consumer.add_task_queue(name)
        found = self._broker.deliver_next()
        consumer.perform_pending_operations()
        if found:
            self._count()
        return found

    def _count(self) -> None:
        self._delivered += 1
        if self._delivered > MOST_DELIVERIES:
            unfinished = "\n".join(str(story) for story in self.stories if not story.is_finished)[:2000]
            raise NotFinishedError(
                f"Not finished after {MOST_DELIVERIES} deliveries. For tasks that are retried without a limit use "
                f"advance() instead of run().\n{unfinished}"
            )

    def _jump(self, to_ms: int | None = None) -> bool:
        """Move the clock to the next due message, at most to ``to_ms``; return whether there was one."""
        due = self._broker.next_ms()
        if due is None or (to_ms is not None and due > to_ms):
            return False
        self._broker.advance(due)
        return True


def _execute(request: Any, pool: BasePool) -> None:
    try:
        request.execute_using_pool(pool)
    except TaskRevokedError:
        request.acknowledge()
    except BaseException:  # ends the test; Celery would still count the task as running
        state.task_ready(request)
        raise


class _Pool(BasePool):
    """Runs a task in the calling thread. Exceptions that end the test (an interrupt, ``pytest.fail``) are raised."""

    @property
    def raises(self) -> tuple[Any, ...]:
        """The classes of exceptions that the tracer is to raise."""
        return KeyboardInterrupt, imported("_pytest.outcomes", "OutcomeException")

    def on_apply(
        self, target: Callable[..., Any], args: Any, kwargs: Any, *, callback: Callable[[Any], None],
        accept_callback: Callable[[int, float], None], **_: Any,
    ) -> None:  # fmt: skip
        accept_callback(os.getpid(), time.monotonic())
        callback(target(*args, **kwargs))

    def terminate_job(self, pid: int, signal: Any = None) -> None:
        """Do nothing: no task runs when this can be called."""


class _Timer:
    """The part of Celery's timers that a consumer uses, on the ladder's clock."""

    def __init__(self, broker: VirtualBroker) -> None:
        self._broker = broker

    def call_at(self, eta: float, fun: Callable[..., Any], args: Any = (), *_: Any, **__: Any) -> Timed:
        # At a time of the computer's monotonic clock, converted to the ladder's.
        return self.call_after(eta - time.monotonic(), fun, args)

    def call_after(self, secs: float, fun: Callable[..., Any], args: Any = (), *_: Any, **__: Any) -> Timed:
        return self._broker.at(self._broker.now_ms + max(0, round(secs * 1000)), lambda: fun(*args))

    def cancel(self, entry: Timed) -> None:
        entry.cancelled = True

    def clear(self) -> None:
        """Do nothing: the timer ends with the ladder."""
