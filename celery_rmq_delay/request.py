"""How the worker settles the message of a `RetryableTask`."""

from __future__ import annotations

import logging
from typing import Any

from billiard.einfo import ExceptionWithTraceback
from billiard.exceptions import TimeLimitExceeded, WorkerLostError
from celery import signals
from celery.exceptions import Ignore, Reject, Retry
from celery.exceptions import Terminated as CeleryTerminated
from celery.worker import request as stock
from celery.worker import state

from .config import NOT_SET
from .delivery import KEY, Delivery, Parked, Path, climbs_by_itself
from .signals import task_exhausted, task_parked, task_recovered
from .trace import LeanExceptionInfo
from .worker import WorkerSide

logger = logging.getLogger(__name__)

_NO_FAILURE = (Ignore, Reject, Retry, MemoryError, stock.Terminated, CeleryTerminated)


class RetryableRequest(stock.Request):
    """Rejects where Celery would ack, and sends to the exhausted queue what is out of retries.

    Celery calls ``acknowledge`` wherever a message is done with; what that means here is decided before, in
    ``on_retry`` and ``on_failure``.
    """

    #: What the message is to be settled as: None after a success.
    _outcome: Parked | LeanExceptionInfo | Any = None
    _crashes = 0
    _ignored = False

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

    def on_retry(self, exc_info: Any) -> None:
        """Settle an attempt that is to be retried."""
        retry = self._outcome = _bare(exc_info.exception)
        if self._delivery is not None and not isinstance(retry, Parked) and self._is_used_up:
            self._outcome = exc_info  # raised by hand, without Task.retry, which would have refused it
        super().on_retry(exc_info)

    def on_failure(self, exc_info: Any, send_failed_event: bool = True, return_ok: bool = False) -> None:
        """Settle an attempt that raised, or whose process was lost."""
        exc = _bare(exc_info.exception)
        self._ignored = isinstance(exc, Ignore)
        if self._delivery is None or isinstance(exc, _NO_FAILURE) or state.should_terminate:
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
        if isinstance(exc, (WorkerLostError, TimeLimitExceeded)) and self._retry_lost(exc, exc_info):
            return
        self._outcome = exc_info
        super().on_failure(exc_info, send_failed_event, return_ok)

    def on_timeout(self, soft: bool, timeout: float) -> None:
        """Log a time limit; the failure itself was settled by `on_failure`, which the pool calls before."""
        if not soft and self._delivery is not None and self.acknowledged:
            logger.error("Hard time limit (%ss) exceeded for %s[%s]", timeout, self.name, self.id)
            return
        super().on_timeout(soft, timeout)

    def acknowledge(self) -> None:
        """Settle the message as its attempt ended."""
        if self._delivery is None or self.acknowledged:
            super().acknowledge()
        elif self._outcome is None:
            super().acknowledge()
            if self._retries and not self._already_revoked and not self._ignored:
                self._send(task_recovered)
        elif isinstance(self._outcome, Retry):
            self._park(self._outcome)
        else:
            self._exhaust(self._outcome)

    def reject(self, requeue: bool = False) -> None:
        """Reject the message, unless its task is out of retries."""
        if self._delivery is not None and not requeue and isinstance(self._outcome, stock.ExceptionInfo):
            self.acknowledge()
        else:
            super().reject(requeue)

    def _announce_revoked(self, reason: str, terminated: bool, signum: Any, expired: bool) -> None:
        self._already_revoked = True
        super()._announce_revoked(reason, terminated, signum, expired)

    # -- the outcomes ----------------------------------------------------------------------------------------------

    def _park(self, retry: Retry) -> None:
        self.acknowledged = True
        if isinstance(retry, Parked):
            self._move(retry.path, retry.rung)
        else:  # raised by hand, without Task.retry
            self._move(*self._next())
        self._sent_parked(retry.exc, retry.when)

    def _move(self, path: Path, rung: int) -> None:
        """Bring the message to its delay queue."""
        if path is Path.REJECT:
            self._on_reject(stock.logger, self._connection_errors, False)
        elif path is Path.COPY:
            self._worker.park(self._message, self._request_dict[KEY], self.task, self._retries, rung)
        else:
            self._on_ack(stock.logger, self._connection_errors)

    def _sent_parked(self, exc: BaseException | None, when: Any) -> None:
        if not task_parked.receivers:
            return
        seconds = when if isinstance(when, (int, float)) else None
        self._send(task_parked, exception=exc, delay_ms=None if seconds is None else round(seconds * 1000))

    def _exhaust(self, einfo: Any) -> None:
        exc = _bare(einfo.exception)
        reason = self._reason
        self.acknowledged = True

        def done(is_there: bool) -> None:
            if is_there:
                self._send(task_exhausted, exception=exc, reason=reason)

        self._worker.exhaust(
            self._message,
            queue=self._request_dict[KEY].queue,
            retries=self._retries,
            reason=reason,
            exception=exc,
            traceback=stock.safe_str(einfo.traceback),
            crashes=self._crashes,
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
        delay = self._worker.delay
        ladder = delay.ladder(self._request_dict[KEY].queue, self.task)
        own: Any = self.task.max_retries_set
        budget = ladder.retries if own is NOT_SET else own
        return budget is not None and self._retries >= budget

    def exhaust_crashed(self, crashes: int) -> None:
        """Give up a task that killed ``crashes`` workers among the suspects, without running it again."""
        self._crashes = crashes
        lost = WorkerLostError(f"The task killed {crashes + 1} workers, {crashes} of them while it was a suspect.")
        self.on_failure(LeanExceptionInfo(lost, None, f"WorkerLostError: {lost}"))

    def _has_succeeded(self) -> bool:
        """Whether the lost process had stored the task's success; Celery looks since 5.7."""
        look = getattr(self, "_success_was_stored", None)
        return bool(look and look())

    def _next(self) -> tuple[Path, int]:
        """Return how the message gets to its next delay queue as it is, and the rung."""
        delivery: Delivery = self._request_dict[KEY]
        ladder = self._worker.delay.ladder(delivery.queue, self.task)
        by_itself = delivery.path is Path.REJECT and climbs_by_itself(delivery, ladder, self._retries)
        return (Path.REJECT if by_itself else Path.COPY), ladder.rung_after(self._retries)

    def _retry_lost(self, exc: Any, exc_info: Any) -> bool:
        """Count a lost process or a hard time limit as a failed attempt; return False when there is no retry left."""
        if self._crashes or self._is_used_up:
            return False
        stock.task_ready(self)
        delivery: Delivery = self._request_dict[KEY]
        ladder = self._worker.delay.ladder(delivery.queue, self.task)
        path, rung = self._next()
        delay: Any = ladder.ttl(rung, delivery.lane) / 1000  # the stubs want a numbers.Real, which no float is
        retry = Retry(exc=exc, when=delay)
        if self.store_errors:
            self.task.backend.mark_as_retry(self.id, exc, exc_info.traceback, request=self._context)
        self._move(path, rung)
        self.acknowledged = True
        self.send_event("task-retried", exception=stock.safe_repr(exc), traceback=stock.safe_str(exc_info.traceback))
        self.task.request_stack.push(self._context)
        try:
            self.task.on_retry(exc, self.id, self.args, self.kwargs, exc_info)
            signals.task_retry.send(sender=self.task, request=self._context, reason=retry, einfo=exc_info)
        finally:
            self.task.request_stack.pop()
        self._sent_parked(exc, delay)
        return True

    def _send(self, signal: Any, **more: Any) -> None:
        signal.send(sender=self.task, request=self, queue=self._request_dict[KEY].queue, attempt=self._retries, **more)


def _bare(exc: Any) -> Any:
    """Return the exception that a pool may have wrapped to carry its traceback."""
    return exc.exc if isinstance(exc, ExceptionWithTraceback) else exc
