"""How an attempt ended, what becomes of its message, and what was reported of it."""

from __future__ import annotations

import logging
import shlex
from typing import Any

from billiard.einfo import ExceptionWithTraceback
from billiard.exceptions import TimeLimitExceeded, WorkerLostError
from celery import Task
from celery.exceptions import Ignore, Reject, Retry
from celery.exceptions import Terminated as CeleryTerminated
from celery.worker import request as stock
from celery.worker import state

from .. import headers as h
from ..commands import command
from ..events import schema as events
from ..retry.decision import Attempt, End, Ending, end
from ..retry.delivery import Parked
from ..signals import task_exhausted
from .flight import InFlight
from .trace import LeanExceptionInfo

logger = logging.getLogger(__name__)

_NO_FAILURE = (Ignore, Reject, Retry, MemoryError, stock.Terminated, CeleryTerminated)


class Outcome:
    """The outcome of one attempt. Events and signals get its `RetryableRequest`, which refers to this object."""

    __slots__ = (
        *("_has_emitted", "_has_signalled", "crashes", "end", "failure", "is_abandoned", "is_adopted", "is_copied"),
        "retry",
    )

    def __init__(self) -> None:
        self.end = End.SUCCEEDED
        #: The exception of the attempt with its traceback: the failure, or the retry's text.
        self.failure: Any = None
        self.retry: Retry | None = None
        #: The number of workers killed by a task that is given up for it.
        self.crashes = 0
        #: Whether Celery ends the attempt.
        self.is_abandoned = False
        #: Whether the attempt goes on with a message that was delivered again.
        self.is_adopted = False
        #: Whether the broker has a copy of the message in its next queue.
        self.is_copied = False
        #: Whether the event and the signal of the attempt's end were sent.
        self._has_emitted = self._has_signalled = False

    def decide(self, flight: InFlight, task: Task[Any, Any]) -> Ending:
        """Return what to do with the message."""
        settling, queue, retries = flight.settling, flight.queue, flight.retries
        attempt: Any = self.retry
        if not isinstance(attempt, Parked):
            is_last = getattr(self.failure, "is_last", False)  # `Task.retry` has refused another retry
            budget = retries if is_last else settling.delay.budget(queue, task)
            attempt = Attempt(flight.delivery, settling.delay.ladder(queue, task), retries, budget)
        return end(self.end, attempt, rejects=settling.dead_letters(queue), is_adopted=self.is_adopted)

    def emit(self, request: Any, kind: str, *facts: Any, **more: Any) -> None:
        """Send an event, once, if events are on."""
        if (reporter := request.flight.settling.reporter) is not None and not self._has_emitted:
            self._has_emitted = True
            reporter.emit(kind, request, *facts, **more)

    def emit_end(self, request: Any, reason: str | None) -> None:
        """Send the event of a task that has ended, or count its first success; ``reason`` if it is discarded."""
        flight = request.flight
        first = not flight.retries and not h.generation(flight.headers)
        if reason is not None:
            if not first:
                self.emit(request, events.DISCARDED, reason=reason)
        elif not first:
            self.emit(request, events.RECOVERED)
        elif flight.settling.reporter is not None and not self._has_emitted:
            self._has_emitted = True
            flight.settling.reporter.succeeded(request.task.name, flight.queue)

    def send(self, request: Any, signal: Any, **more: Any) -> None:
        """Send a signal of the attempt's end, once."""
        if not self._has_signalled:
            self._has_signalled = True
            flight = request.flight
            signal.send(sender=request.task, request=request, queue=flight.queue, attempt=flight.retries, **more)

    def announce_exhausted(self, request: Any, exc: Any, reason: str) -> None:
        """Log where the message of an exhausted task is, and send the signal."""
        delay, queue = request.flight.settling.delay, request.flight.queue
        shown = command(f"exhausted show {shlex.quote(str(request.id))}", delay.app)
        facts = request.name, request.id, reason, delay.settings.exhausted_queue, shown
        text = "Task %s[%s] is exhausted (%s): it waits in the queue %s, see `%s`"
        logger.warning(text, *facts, extra={"task_id": request.id, "queue": queue})
        self.send(request, task_exhausted, exception=exc, reason=reason)


def how_it_ended(request: Any, exc: Any) -> End:
    """Return how the attempt of a request ended that has raised ``exc``, or whose process was lost."""
    if isinstance(exc, WorkerLostError):
        if state.should_terminate or request._already_cancelled:
            return End.ABANDONED
        return End.SUCCEEDED if has_succeeded(request) else End.LOST
    if isinstance(exc, Reject):
        return End.REQUEUED if exc.requeue else End.REJECTED  # type: ignore[attr-defined]
    if isinstance(exc, Ignore):
        return End.IGNORED
    if isinstance(exc, (stock.Terminated, CeleryTerminated)):
        return End.REVOKED
    return End.LOST if isinstance(exc, TimeLimitExceeded) else End.FAILED


def has_succeeded(request: Any) -> bool:
    """Whether a lost process had stored the task's success; Celery checks this since 5.7."""
    return bool(getattr(request, "_success_was_stored", bool)())


def bare(exc: Any) -> Any:
    """Return the exception that a pool may have wrapped to carry its traceback."""
    return exc.exc if isinstance(exc, ExceptionWithTraceback) else exc


def refused(request: Any, raised: Retry | Reject, exc_info: Any) -> LeanExceptionInfo:
    """Return the failure of a task that asked for another retry after its last one, as `Task.retry` raises it."""
    asked: Any = raised  # the stubs lack the reason of a Reject
    cause = asked.exc if isinstance(raised, Retry) else asked.reason
    if not isinstance(cause, Exception) or isinstance(cause, _NO_FAILURE):
        cause = request.task.MaxRetriesExceededError(f"Can't retry {request.name}[{request.id}]")
    return LeanExceptionInfo(cause, None, exc_info.traceback, is_reported=False)


class OutOfMemory(Exception):  # noqa: N818 - it is only reported, as a MemoryError
    """Replaces the `MemoryError` of a task: Celery would end the worker, although the pool has survived it."""

    def __repr__(self) -> str:
        return f"MemoryError({', '.join(map(repr, self.args))})"
