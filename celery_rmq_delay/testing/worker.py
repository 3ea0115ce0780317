"""Runs a worker of an app in a thread of the test, on a real broker."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from celery import Celery, _state, signals
from celery.canvas import Signature
from celery.contrib.testing.worker import start_worker, test_worker_started
from celery.result import AsyncResult

from ..app.inventory import origin_queues
from ..app.state import state_of
from ..exceptions import NotFinishedError
from .clock import LadderClock
from .recorder import Recorder, Stories
from .redirection import redirected, results_in_memory
from .story import DelayLike, TaskStory

#: Seconds to wait for the end of a task, and of the worker.
TIMEOUT = 60.0

#: Seconds between two turns of the worker's loop.
_TURN = 0.02


class BrokerLadder(Stories):
    """Runs the tasks of an app through their ladders in a real broker, with Celery's own worker in a thread.

        with BrokerLadder(app, broker_url) as ladder:
            story = ladder.run(charge.s(7))
        assert story.waits == [10, 60]

    Inside the block all connections of the app lead to ``broker_url``, results are kept in memory, and a
    `LadderClock` shortens the delays: stories show them as in the settings. The worker consumes the queues that the
    app's settings and routes name, and ``queues``.
    """

    def __init__(
        self, app: Celery, broker_url: str, *, shortest: DelayLike = "20ms", longest: DelayLike = "200ms",
        pool: str = "solo", concurrency: int = 1, queues: Sequence[str] = (),
    ) -> None:  # fmt: skip
        """Take an app that `install` was called with.

        ``shortest`` and ``longest`` are those of the clock. ``pool``: ``solo`` or ``threads``, as tasks in other
        processes cannot be recorded.
        """
        #: The clock that shortens the delays; also for use in other processes.
        self.clock = LadderClock(app, shortest=shortest, longest=longest)
        super().__init__(Recorder(app, self.clock.planned, time.monotonic))
        self._app, self._url, self._queues = app, broker_url, queues
        self._worker: dict[str, Any] = {"pool": pool, "concurrency": concurrency}

    def _take_over(self, stack: ExitStack) -> None:
        redirection = redirected(self._app, hostname=self._url), results_in_memory(self._app)
        for context in (self.clock, *redirection, self._recorder.recording(), _as_it_was(), _awake(self._app)):
            stack.enter_context(context)
        origin_queues(state_of(self._app), self._queues)  # creates queues that are only named
        queues: Any = self._app.amqp.queues
        queues.select(list(queues))
        stack.enter_context(start_worker(self._app, perform_ping_check=False, shutdown_timeout=TIMEOUT, **self._worker))

    def send(self, task: Signature[Any]) -> AsyncResult[Any]:
        """Send a task (``charge.s(7)``)."""
        result: AsyncResult[Any] = task.apply_async()
        return result

    def run(self, task: Signature[Any], timeout: float = TIMEOUT) -> TaskStory:
        """Send a task, wait for its end and return its story. Raises `NotFinishedError` after ``timeout`` seconds."""
        return self.wait(self.send(task), timeout)

    def wait(
        self, task: AsyncResult[Any] | str, timeout: float = TIMEOUT,
        until: Callable[[TaskStory], bool] = lambda story: story.is_finished,
    ) -> TaskStory:  # fmt: skip
        """Wait until a task has ended, or ``until`` is true for its story, and return the story.

        Raises `NotFinishedError` after ``timeout`` seconds.
        """
        if not self._recorder.wait_for(lambda: until(self.story(task)), timeout):
            raise NotFinishedError(f"Waited {timeout:g} s for\n{self.story(task)}")
        return self.story(task)


@contextmanager
def _as_it_was() -> Iterator[None]:
    """Restore the logging and the default app after Celery's test worker."""

    def leave_logging_alone(**_: Any) -> None:
        """Do nothing: with a receiver, Celery does not configure logging."""

    known: Any = _state  # its stubs lack it
    default = known.default_app
    signals.setup_logging.connect(leave_logging_alone)
    try:
        yield
    finally:
        signals.setup_logging.disconnect(leave_logging_alone)
        known.default_app = default


@contextmanager
def _awake(app: Celery) -> Iterator[None]:
    """Make the worker's loop turn often: it sends the acks of tasks, which would wait for the next event."""

    def turn(sender: Any, worker: Any, **_: Any) -> None:
        if sender is app:
            worker.timer.call_repeatedly(_TURN, lambda: None)

    test_worker_started.connect(turn)
    try:
        yield
    finally:
        test_worker_started.disconnect(turn)
