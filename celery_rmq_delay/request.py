"""How the worker settles the message of a `RetryableTask`."""

from __future__ import annotations

import logging
from functools import partial
from typing import Any

from billiard.einfo import ExceptionInfo, ExceptionWithTraceback
from billiard.exceptions import TimeLimitExceeded, WorkerLostError
from celery import signals
from celery.exceptions import Ignore, Reject, Retry
from celery.exceptions import Terminated as CeleryTerminated
from celery.worker import request as stock
from celery.worker import state

from . import events
from . import headers as h
from .delivery import KEY, Delivery, Parked, Path, climbs_by_itself
from .event_making import Waits
from .signals import task_exhausted, task_parked, task_recovered
from .trace import LeanExceptionInfo, store_retry
from .worker import WorkerSide

logger = logging.getLogger(__name__)

_NO_FAILURE = (Ignore, Reject, Retry, MemoryError, stock.Terminated, CeleryTerminated)


class RetryableRequest(stock.Request):
    """Rejects where Celery would ack, and sends to the exhausted queue what is out of retries.

    Celery calls ``acknowledge`` wherever a message is done with; what that means here is decided before, in
    ``on_retry`` and ``on_failure``.
    """

    acknowledged: bool
    #: What the message is to be settled as: None after a success.
    _outcome: Parked | LeanExceptionInfo | Any = None
    _crashes = 0
    _ignored = False
    #: Whether the task itself rejects its message; a reject with requeue can be a lost process's, too.
    _requeues = False
    #: The text of the traceback of an attempt that is retried.
    _traceback: str | None = None
    #: Why the task did not run: ``expired`` or ``revoked``.
    _not_run: str | None = None

    @property
    def _delivery(self) -> Delivery | None:
        delivery: Delivery | None = self._request_dict.get(KEY)
        return delivery

    @property
    def _worker(self) -> WorkerSide:
        worker: WorkerSide = self._message.rmq_delay
        return worker

    @property
    def _retries(self) -> int:
        return int(self._request_dict.get("retries") or 0)

    # -- what Celery calls -----------------------------------------------------------------------------------------

    def on_accepted(self, pid: int, time_accepted: float) -> None:
        """Note that the task runs."""
        if self._delivery is not None:
            self._worker.started(self._message)
        super().on_accepted(pid, time_accepted)

    def on_retry(self, exc_info: Any) -> None:
        """Settle an attempt that is to be retried."""
        retry = self._outcome = _bare(exc_info.exception)
        self._traceback = exc_info.traceback
        if self._delivery is not None and not isinstance(retry, Parked) and self._is_used_up:
            # Raised by hand, without Task.retry, which would have refused it.
            self.on_failure(LeanExceptionInfo(self._cause_of(retry), None, exc_info.traceback))
            return
        super().on_retry(exc_info)

    def on_failure(self, exc_info: Any, send_failed_event: bool = True, return_ok: bool = False) -> None:
        """Settle an attempt that raised, or whose process was lost."""
        exc = _bare(exc_info.exception)
        self._ignored = isinstance(exc, Ignore)
        self._requeues = isinstance(exc, Reject)
        gone = (WorkerLostError, SystemExit, KeyboardInterrupt)
        is_shut_down = state.should_terminate and isinstance(exc, gone)  # the broker delivers it again
        if self._delivery is None or isinstance(exc, _NO_FAILURE) or is_shut_down:
            super().on_failure(exc_info, send_failed_event, return_ok)
            return
        if isinstance(exc, (SystemExit, KeyboardInterrupt)):
            if self._already_cancelled or self._already_revoked:
                super().on_failure(exc_info, send_failed_event, return_ok)
                return
            exc_info = LeanExceptionInfo(
                WorkerLostError(f"Worker exited prematurely: {exc!r}."), None, f"WorkerLostError: {exc!r}"
            )
            exc = exc_info.exception
        if isinstance(exc, WorkerLostError) and self._has_succeeded():
            super().on_failure(exc_info, send_failed_event, return_ok)
            return
        is_lost = isinstance(exc, (WorkerLostError, TimeLimitExceeded)) and not self.acknowledged  # a revoked one is
        if is_lost and self._retry_lost(exc, exc_info):
            return
        self._outcome = exc_info
        super().on_failure(exc_info, send_failed_event, return_ok)

    def on_timeout(self, soft: bool, timeout: float) -> None:
        """Settle a hard time limit where no pool does: gevent's and eventlet's call only this, others `on_failure`."""
        if soft or self._delivery is None:
            super().on_timeout(soft, timeout)
            return
        logger.error("Hard time limit (%ss) exceeded for %s[%s]", timeout, self.name, self.id)
        if not self.acknowledged:
            exceeded = TimeLimitExceeded(timeout)
            self.on_failure(LeanExceptionInfo(exceeded, None, f"TimeLimitExceeded: {exceeded}"))

    def acknowledge(self) -> None:
        """Settle the message as its attempt ended."""
        if self._delivery is None or self.acknowledged:
            super().acknowledge()
            return
        self._worker.started(self._message)
        if self._outcome is None:
            self._tell_end()
            super().acknowledge()
            if self._retries and not self._already_revoked and not self._ignored:
                self._send(task_recovered)
        elif isinstance(self._outcome, Retry):
            self._park(self._outcome)
        else:
            self._exhaust(self._outcome)

    def reject(self, requeue: bool = False) -> None:
        """Reject the message, unless its task is out of retries, or asks for it to be requeued."""
        if self._delivery is None or self.acknowledged:
            super().reject(requeue)
        elif not requeue and isinstance(self._outcome, ExceptionInfo):
            self.acknowledge()
        elif requeue and self._requeues:
            self.acknowledged = True
            self._worker.requeue(self._message, self._delivery, self._retries, self.name)
            self.send_event("task-rejected", requeue=True)
        else:
            self._worker.started(self._message)
            super().reject(requeue)

    def _announce_revoked(self, reason: str, terminated: bool, signum: Any, expired: bool) -> None:
        self._already_revoked = True
        self._not_run = "expired" if expired else "revoked"
        super()._announce_revoked(reason, terminated, signum, expired)

    # -- the outcomes ----------------------------------------------------------------------------------------------

    def _park(self, retry: Retry) -> None:
        self.acknowledged = True
        if isinstance(retry, Parked):
            tier = retry.rung if retry.delay_ms is None else None
            self._move(retry.exc, retry.path, retry.rung, retry.delay_ms, retry.queue)
        else:  # raised by hand, without Task.retry
            path, tier = self._next()
            self._move(retry.exc, path, tier)
        self._sent_parked(retry.exc, retry.when, tier)

    def _move(
        self,
        exc: BaseException | None,
        path: Path,
        rung: int,
        delay_ms: int | None = None,
        queue: str | None = None,
    ) -> None:
        """Bring the message to its delay queue: a rung's, or one for an exact delay."""
        delivery: Delivery = self._request_dict[KEY]
        if path is Path.REJECT and not self._worker.dead_letters(delivery.queue):
            path = Path.COPY  # its queue was given back while the task ran
        waits = Waits(rung, delay_ms, in_rung_queue=path is not Path.REQUEUE, queue=queue)
        kind = events.PARKED if path in (Path.REJECT, Path.REQUEUE) else events.FORWARDED
        tell = partial(self._tell, kind, exc, self._traceback, waits)
        if path is Path.COPY:
            self._worker.park(self._message, delivery, self.task, self._retries, rung, delay_ms, tell)
            return
        tell()
        if path is Path.REJECT:
            self._on_reject(stock.logger, self._connection_errors, False)
        elif path is Path.REQUEUE:
            self._worker.give_back(self._message, delivery)
        else:
            self._on_ack(stock.logger, self._connection_errors)

    def _tell(self, kind: str, *facts: Any, **more: Any) -> None:
        """Send an event, where events are on."""
        if (reporter := self._worker.reporter) is not None:
            reporter.tell(kind, self, *facts, **more)

    def _tell_end(self) -> None:
        """Send the event of a task that is done with, or count its first success."""
        reporter = self._worker.reporter
        if reporter is None:
            return
        first = not self._retries and not h.whole_number(self._message.raw_headers.get(h.GENERATION))
        if self._not_run or self._ignored:
            if not first:
                reporter.tell(events.DISCARDED, self, reason=self._not_run or "ignored")
        elif first:
            reporter.succeeded(self.task.name, self._request_dict[KEY].queue)
        else:
            reporter.tell(events.RECOVERED, self)

    def _sent_parked(self, exc: BaseException | None, when: Any, tier: int | None) -> None:
        if not task_parked.receivers:
            return
        delay_ms = round(when * 1000) if isinstance(when, (int, float)) else None
        self._send(task_parked, exception=exc, delay_ms=delay_ms, tier=tier)

    def _exhaust(self, einfo: Any) -> None:
        exc = _bare(einfo.exception)
        reason = self._reason
        self.acknowledged = True

        traceback = stock.safe_str(einfo.traceback)

        def done(is_there: bool) -> None:
            if is_there:
                self._send(task_exhausted, exception=exc, reason=reason)

        self._worker.exhaust(
            self._message,
            queue=self._request_dict[KEY].queue,
            retries=self._retries,
            reason=reason,
            exception=exc,
            traceback=traceback,
            crashes=self._crashes,
            tell=partial(self._tell, events.EXHAUSTED, exc, traceback, reason=reason, crashes=self._crashes),
            done=done,
        )

    @property
    def _reason(self) -> str:
        """Why the task is given up."""
        if self._crashes:
            return "crashed"
        return "retries_used" if self._is_used_up else "gave_up"

    @property
    def _is_used_up(self) -> bool:
        """Whether the task has no retry left on this queue."""
        budget = self._worker.delay.budget(self._request_dict[KEY].queue, self.task)
        return budget is not None and self._retries >= budget

    def exhaust_crashed(self, crashes: int) -> None:
        """Give up a task that killed ``crashes`` workers among the suspects, without running it again."""
        self._crashes = crashes
        lost = WorkerLostError(f"The task killed {crashes + 1} workers, {crashes} of them while it was a suspect.")
        self.on_failure(LeanExceptionInfo(lost, None, f"WorkerLostError: {lost}"))

    def _cause_of(self, retry: Retry) -> Exception:
        """Return what a task failed with whose last retry was refused, as `Task.retry` says it."""
        cause: Any = retry.exc
        if isinstance(cause, Exception) and not isinstance(cause, _NO_FAILURE):
            return cause
        told: Exception = self.task.MaxRetriesExceededError(f"Can't retry {self.name}[{self.id}]")
        return told

    def _has_succeeded(self) -> bool:
        """Whether the lost process had stored the task's success; Celery looks since 5.7."""
        look = getattr(self, "_success_was_stored", None)
        return bool(look and look())

    def _next(self) -> tuple[Path, int]:
        """Return how the message gets to its next delay queue as it is, and the rung."""
        delivery: Delivery = self._request_dict[KEY]
        ladder = self._worker.delay.ladder(delivery.queue, self.task)
        if delivery.path is Path.REQUEUE:
            return Path.REQUEUE, ladder.rung_after(self._retries)
        by_itself = delivery.path is Path.REJECT and climbs_by_itself(delivery, ladder, self._retries)
        return (Path.REJECT if by_itself else Path.COPY), ladder.rung_after(self._retries)

    def _retry_lost(self, exc: Any, exc_info: Any) -> bool:
        """Count a lost process or a hard time limit as a failed attempt; return False when there is no retry left."""
        if self._crashes or self._is_used_up:
            return False
        stock.task_ready(self)
        self._worker.started(self._message)
        delivery: Delivery = self._request_dict[KEY]
        ladder = self._worker.delay.ladder(delivery.queue, self.task)
        path, rung = self._next()
        delay: Any = ladder.ttl(rung, delivery.lane) / 1000  # the stubs want a numbers.Real, which no float is
        retry = Retry(exc=exc, when=delay)
        if self.store_errors:
            store_retry(self.task, self._context, exc, exc_info.traceback)
        self._move(exc, path, rung)
        self.acknowledged = True
        self.send_event("task-retried", exception=stock.safe_repr(exc), traceback=stock.safe_str(exc_info.traceback))
        self.task.request_stack.push(self._context)
        try:
            self.task.on_retry(exc, self.id, self.args, self.kwargs, exc_info)
            signals.task_retry.send(sender=self.task, request=self._context, reason=retry, einfo=exc_info)
        finally:
            self.task.request_stack.pop()
        self._sent_parked(exc, delay, rung)
        return True

    def _send(self, signal: Any, **more: Any) -> None:
        signal.send(sender=self.task, request=self, queue=self._request_dict[KEY].queue, attempt=self._retries, **more)


def _bare(exc: Any) -> Any:
    """Return the exception that a pool may have wrapped to carry its traceback."""
    return exc.exc if isinstance(exc, ExceptionWithTraceback) else exc
