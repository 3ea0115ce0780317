"""A worker of the user's app in a thread of the test, on a real broker."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from celery import Celery, _state, signals
from celery.contrib.testing.worker import start_worker, test_worker_started

from ..app.inventory import origin_queues
from ..app.state import state_of
from ..exceptions import NotFinishedError
from .assertions import DelayLike
from .clock import LadderClock
from .recorder import Recorder, Stories
from .redirection import redirected, results_in_memory
from .story import TaskStory

if TYPE_CHECKING:
    from celery.canvas import Signature
    from celery.result import AsyncResult

#: Seconds that a task has to come to its end, and the worker to its own.
TIMEOUT = 60.0

#: Seconds after which the worker's loop looks whether there is anything to do.
_TURN = 0.02


class BrokerLadder(Stories):
    """Runs the tasks of an app through their ladders in a real broker, with Celery's own worker in a thread.

        with BrokerLadder(app, broker_url) as ladder:
            story = ladder.run(charge.s(7))
        assert story.waits == [10, 60]

    Inside of the block all connections of the app lead to ``broker_url``, results are kept in memory, and a
    `LadderClock` makes the delays short: stories tell them as they are in the settings. The worker consumes the queues
    that the app's settings and routes name, and ``queues`` besides.
    """

    def __init__(
        self,
        app: Celery,
        broker_url: str,
        *,
        shortest: DelayLike = "20ms",
        longest: DelayLike = "200ms",
        pool: str = "solo",
        concurrency: int = 1,
        queues: Sequence[str] = (),
    ) -> None:
        """Take an app that `install` was called with.

        ``shortest`` and ``longest`` are those of the clock. ``pool``: ``solo`` or ``threads``, as what happens in other
        processes cannot be seen from here.
        """
        #: What makes the delays short, and would for processes beside.
        self.clock = LadderClock(app, shortest=shortest, longest=longest)
        super().__init__(Recorder(app, self.clock.planned, time.monotonic))
        self._app, self._url, self._queues = app, broker_url, queues
        self._worker: dict[str, Any] = {"pool": pool, "concurrency": concurrency}

    def _take_over(self, stack: ExitStack) -> None:
        stack.enter_context(self.clock)
        stack.enter_context(redirected(self._app, hostname=self._url))
        stack.enter_context(results_in_memory(self._app))
        stack.enter_context(self._recorder.recording())
        stack.enter_context(_as_it_was())
        stack.enter_context(_awake(self._app))
        self._consume_all()
        stack.enter_context(start_worker(self._app, perform_ping_check=False, shutdown_timeout=TIMEOUT, **self._worker))

    def _consume_all(self) -> None:
        origin_queues(state_of(self._app), self._queues)  # makes those that are only named
        queues: Any = self._app.amqp.queues
        queues.select(list(queues))

    def send(self, task: Signature[Any]) -> AsyncResult[Any]:
        """Send a task (``charge.s(7)``)."""
        result: AsyncResult[Any] = task.apply_async()
        return result

    def run(self, task: Signature[Any], timeout: float = TIMEOUT) -> TaskStory:
        """Send a task, wait for its end and return its story. Raises `NotFinishedError` after ``timeout`` seconds."""
        return self.wait(self.send(task), timeout)

    def wait(
        self,
        task: AsyncResult[Any] | str,
        timeout: float = TIMEOUT,
        until: Callable[[TaskStory], bool] = lambda story: story.is_finished,
    ) -> TaskStory:
        """Wait until a task has come to its end, or ``until`` says so of its story, and return the story.

        Raises `NotFinishedError` after ``timeout`` seconds.
        """
        if not self._recorder.wait_for(lambda: until(self.story(task)), timeout):
            raise NotFinishedError(f"Waited {timeout:g} s for\n{self.story(task)}")
        return self.story(task)


@contextmanager
def _as_it_was() -> Iterator[None]:
    """Keep Celery's test worker from changing the logging and the default app for good."""

    def leave_logging_alone(**_: Any) -> None:
        """A receiver is what Celery takes for logging that is set up."""

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
    """Let the worker's loop turn often: a task in its thread leaves acks to it, which would wait for the next event."""

    def turn(sender: Any, worker: Any, **_: Any) -> None:
        if sender is app:
            worker.timer.call_repeatedly(_TURN, lambda: None)

    test_worker_started.connect(turn)
    try:
        yield
    finally:
        test_worker_started.disconnect(turn)
