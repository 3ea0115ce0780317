"""Records the stories of the tasks of this process, from the signals of Celery and of this package."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar

from celery import Celery, signals, states
from celery.exceptions import Retry
from celery.result import AsyncResult

from ..app.state import AppState
from ..retry.delivery import KEY
from ..signals import task_exhausted, task_parked, task_recovered
from .story import Attempt, TaskStory

_Ladder = TypeVar("_Ladder", bound="Stories")


class Recorder:
    """The stories of one app's tasks, in the order in which they began.

    ``planned`` has the app's ladders as configured, ``clock`` returns the time in seconds.
    """

    def __init__(self, app: Celery, planned: AppState, clock: Callable[[], float]) -> None:
        self.app, self.stories = app, dict[str, TaskStory]()
        self._planned, self._clock = planned, clock
        self._began: dict[str, float] = {}
        self._changed = threading.Condition()

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Record inside a block."""
        listeners: list[tuple[Any, Callable[..., None]]] = [
            (signals.task_prerun, self._on_prerun),
            (signals.task_postrun, self._on_postrun),
            (signals.task_revoked, self._on_revoked),
            (task_parked, self._on_parked),
            (task_recovered, self._on_recovered),
            (task_exhausted, self._on_exhausted),
        ]
        for signal, listener in listeners:
            signal.connect(listener, weak=False)
        try:
            yield
        finally:
            for signal, listener in listeners:
                signal.disconnect(listener)

    def wait_for(self, condition: Callable[[], bool], timeout: float) -> bool:
        """Wait until ``condition`` is true of the stories, at most ``timeout`` seconds; return whether it is."""
        with self._changed:
            return self._changed.wait_for(condition, timeout)

    def _on_prerun(self, sender: Any, task_id: str, task: Any, args: Any, kwargs: Any, **_: Any) -> None:
        if task.app is not self.app or task.request.is_eager or task.request.called_directly:
            return
        with self._changed:
            story = self.stories.setdefault(task_id, TaskStory(task_id, task.name))
            began = self._began.setdefault(task_id, self._clock())
            delivery = task.request.get(KEY)
            queue = delivery.queue if delivery else (task.request.delivery_info or {}).get("routing_key") or ""
            number, at = task.request.retries, self._clock() - began
            story.attempts.append(Attempt(number, queue, at, tuple(args or ()), dict(kwargs or {})))
            story.state, story.has_ladder = states.STARTED, delivery is not None
            self._changed.notify_all()

    def _on_postrun(self, sender: Any, task_id: str, retval: Any, state: Any = None, **_: Any) -> None:
        with self._changing(sender, task_id) as story:
            if story is None or not story.attempts:
                return
            attempt = story.attempts[-1]
            story.state = attempt.state = state or states.FAILURE
            if state == states.SUCCESS:
                story.result = retval
            elif isinstance(retval, BaseException):
                attempt.exception = story.exception = retval.exc if isinstance(retval, Retry) else retval

    def _on_revoked(self, sender: Any, request: Any, **_: Any) -> None:
        if sender.app is self.app:
            self.stories.setdefault(request.id, TaskStory(request.id, sender.name))
            with self._changing(sender, request.id) as story:
                if story is not None:
                    story.state = states.REVOKED

    def _on_parked(
        self, sender: Any, request: Any, exception: Any, delay_ms: int | None, tier: int | None, **_: Any
    ) -> None:
        with self._changing(sender, request.id) as story:
            if story is None or not story.attempts:
                return
            attempt = story.attempts[-1]
            story.state = attempt.state = states.RETRY
            attempt.exception = story.exception = exception
            attempt.tier, attempt.delay = self._wait(request, delay_ms, tier)

    def _wait(self, request: Any, delay_ms: int | None, tier: int | None) -> tuple[int | None, float]:
        """Return the tier and the delay in seconds, as in the user's settings."""
        if tier is None:
            return None, (delay_ms or 0) / 1000
        ladder = self._planned.ladder(request.retry_queue, request.task)
        tier = min(tier, len(ladder))
        return tier, ladder.ttl(tier, request.request_dict[KEY].lane) / 1000

    def _on_recovered(self, sender: Any, request: Any, **_: Any) -> None:
        with self._changing(sender, request.id) as story:
            if story is not None:
                story.recovered = True

    def _on_exhausted(self, sender: Any, request: Any, exception: Any, reason: str, **_: Any) -> None:
        with self._changing(sender, request.id) as story:
            if story is not None:
                story.state, story.reason, story.exception = states.FAILURE, reason, exception
                if story.attempts:
                    story.attempts[-1].state, story.attempts[-1].exception = states.FAILURE, exception

    @contextmanager
    def _changing(self, task: Any, task_id: str) -> Iterator[TaskStory | None]:
        """Yield the story of a task of the app, and tell those that wait for a change."""
        with self._changed:
            yield self.stories.get(task_id) if getattr(task, "app", None) is self.app else None
            self._changed.notify_all()


class Stories(ABC):
    """Base of the context managers that run an app in a test, and record the stories of its tasks."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._stack = ExitStack()

    @abstractmethod
    def _take_over(self, stack: ExitStack) -> None:
        """Redirect the app; ``stack`` restores it."""

    def __enter__(self: _Ladder) -> _Ladder:
        """Redirect the app."""
        with ExitStack() as stack:
            self._take_over(stack)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        """End running tasks and restore the app."""
        self._stack.close()

    @property
    def stories(self) -> list[TaskStory]:
        """The stories of the tasks so far, in the order in which they began."""
        return list(self._recorder.stories.values())

    def story(self, task: AsyncResult[Any] | str) -> TaskStory:
        """Return the story of a task so far, by its result or its id; empty if it has not begun."""
        task_id = task if isinstance(task, str) else str(task.id)
        return self._recorder.stories.get(task_id) or TaskStory(task_id, "a task that has not begun")
