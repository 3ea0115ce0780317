"""The worker's request class for messages of a `RetryableTask`."""

from __future__ import annotations

import logging
import shlex
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from billiard.einfo import ExceptionWithTraceback
from billiard.exceptions import TimeLimitExceeded, WorkerLostError
from celery import signals
from celery.exceptions import Ignore, Reject, Retry, WorkerShutdown, WorkerTerminate
from celery.exceptions import Terminated as CeleryTerminated
from celery.worker import request as stock
from celery.worker import state

from .. import headers as h
from ..commands import command
from ..events import schema as events
from ..events.encode import Waits
from ..retry.decision import Action, Attempt, End, Ending, end
from ..retry.delivery import KEY, Delivery, Parked, RetryPath, delivery_of
from ..signals import task_exhausted, task_parked, task_recovered
from .attempts import Key, key_of
from .side import WorkerSide
from .trace import LeanExceptionInfo, call_on_retry, lost, store_retry

if TYPE_CHECKING:
    from kombu.message import Message

    from ..app.state import AppState

logger = logging.getLogger(__name__)

#: Ends of an attempt after which Celery may neither ack nor reject the message by itself.
_FAILURES = (End.FAILED, End.LOST, End.CRASHED, End.REJECTED)
_NO_FAILURE = (Ignore, Reject, Retry, MemoryError, stock.Terminated, CeleryTerminated)


class _OutOfMemory(Exception):  # noqa: N818 - it is only reported, as a MemoryError
    """Replaces the `MemoryError` of a task: Celery would end the worker, although the pool has survived it."""

    def __repr__(self) -> str:
        return f"MemoryError({', '.join(map(repr, self.args))})"


class RetryableRequest(stock.Request):
    """Records how an attempt ended, and settles its message as `retry.decision.end` decides.

    Celery calls ``acknowledge`` and ``reject`` to settle a message; the end of the attempt is recorded before.
    """

    acknowledged: bool
    _end = End.SUCCEEDED
    #: The exception of the attempt with its traceback: the failure, or the retry's text.
    _failure: Any = None
    _retry: Retry | None = None
    #: The number of workers killed by a task that is given up for it.
    _crashes = 0
    #: Whether Celery ends the attempt.
    _is_abandoned = False
    #: Whether the attempt goes on with a message that was delivered again.
    _is_adopted = False
    #: Whether the broker has a copy of the message in its next queue.
    _is_copied = False
    #: Whether the event and the signal of the attempt's end were sent.
    _has_emitted = _has_signalled = False

    def __init__(self, message: Message, **options: Any) -> None:
        super().__init__(message, **options)
        #: A `Delivery`; None if the queue is excluded, and Celery's behaviour applies.
        self._delivery: Any = delivery_of(self._request_dict)
        if self._delivery is not None and not self._delivery.tier_index and h.DUE in message.raw_headers:
            # For the task only: Celery, which might wait for the eta by its own clock, has already checked it.
            self._request_dict["eta"] = h.fulfilled_eta(message.raw_headers)

    @property
    def message(self) -> Message:
        """The message of the attempt; another one once it has adopted that."""
        found: Message = self._message
        return found

    @cached_property
    def key(self) -> Key:
        """What identifies the attempt among all deliveries."""
        message = self._message
        return key_of(self.id, self.name, self._retries, message.raw_headers, message.body)

    @cached_property
    def size(self) -> int:
        """The bytes of the message's body."""
        return len(self._message.body or b"")

    @property
    def _worker(self) -> WorkerSide:
        worker: WorkerSide = self._message.rmq_delay
        return worker

    @property
    def _retries(self) -> int:
        return int(self._request_dict.get("retries") or 0)

    @property
    def retry_queue(self) -> str:
        """The queue that a retry returns to."""
        own: str = self._delivery.queue
        return (isinstance(self._retry, Parked) and self._retry.queue) or own

    @property
    def pool(self) -> Any:
        """The pool that runs the task; None if its queue is excluded."""
        return None if self._delivery is None else self._worker.consumer.pool

    @property
    def hard_time_limit(self) -> float | None:
        """The seconds after which a pool without processes ends the task; None without a limit."""
        limit: float | None = self.time_limits[0] or self.task.time_limit or getattr(self.pool, "timeout", None)
        return limit

    # -- called by Celery ------------------------------------------------------------------------------------------

    def on_accepted(self, pid: int, time_accepted: float) -> None:
        """Record that the task runs."""
        if self._delivery is None:
            super().on_accepted(pid, time_accepted)
            return
        self._worker.started(self._message)
        self._worker.attempts.begin(self)
        try:
            super().on_accepted(pid, time_accepted)
        except Exception:  # a pool without processes would neither run nor settle the task
            logger.exception(
                "The start of the task %s[%s] was not reported", self.name, self.id, extra={"task_id": self.id}
            )

    def on_retry(self, exc_info: Any) -> None:
        """Settle an attempt that is retried."""
        retry = _bare(exc_info.exception)
        if self._delivery is not None:
            self._end, self._retry, self._failure = End.RETRIED, retry, exc_info
            if not isinstance(retry, Parked) and self._decide().action is Action.EXHAUSTED:
                # Raised by hand: `Task.retry` would have refused it.
                self._retry = None
                self.on_failure(self._refused(retry, exc_info))
                return
        super().on_retry(exc_info)

    def on_failure(self, exc_info: Any, send_failed_event: bool = True, return_ok: bool = False) -> None:
        """Settle an attempt that raised, or whose process was lost."""
        exc = _bare(exc_info.exception)
        # A task that is terminated is settled before, and for a retry Celery calls `on_retry`.
        if self._delivery is None or self.acknowledged or isinstance(exc, Retry):
            super().on_failure(exc_info, send_failed_event, return_ok)
            return
        if isinstance(exc, (SystemExit, KeyboardInterrupt)):  # the process has exited by itself
            exc_info = lost(exc)
            exc = exc_info.exception
        self._end, self._failure = self._how(exc), exc_info
        if self._end is End.ABANDONED:
            stock.task_ready(self)
            self._worker.attempts.cancel(self)
            return
        if self._end in (End.LOST, End.REJECTED):
            ending = self._decide()
            if ending.action is Action.PARK:
                self._retry_failed(exc, exc_info, ending)
                return
            if ending.action is Action.EXHAUSTED and isinstance(exc, Reject):  # Celery would reject the message
                exc_info = self._failure = self._refused(exc, exc_info)
        return_ok = return_ok and getattr(exc_info, "is_reported", True)
        if isinstance(exc, MemoryError):
            exc_info = LeanExceptionInfo(_OutOfMemory(*exc.args), None, exc_info.traceback)
        try:
            super().on_failure(exc_info, send_failed_event, return_ok)
        except Exception:  # noqa: BLE001 - it is logged there
            self._settle_unreported()

    def on_timeout(self, soft: bool, timeout: float) -> None:
        """Settle a hard time limit on gevent, whose pool calls only this; prefork's calls `on_failure` as well."""
        if soft or self._delivery is None:
            super().on_timeout(soft, timeout)
            return
        logger.error("Hard time limit (%ss) exceeded for %s[%s]", timeout, self.name, self.id)
        if not self.acknowledged:
            exceeded = TimeLimitExceeded(timeout)
            self.on_failure(LeanExceptionInfo(exceeded, None, f"TimeLimitExceeded: {exceeded}"))

    def acknowledge(self) -> None:
        """Settle the message according to the end of its attempt."""
        if self._delivery is None or self.acknowledged:
            super().acknowledge()
        elif not (self._is_abandoned and self._was_killed_in_a_greenlet()):
            self._settle()

    def reject(self, requeue: bool = False) -> None:
        """Reject the message if its task does so; else settle it according to the end of its attempt."""
        if self._delivery is None or self.acknowledged:
            super().reject(requeue)
        elif self._end is End.REQUEUED or (
            not requeue and self._end in _FAILURES and self._decide().action is not Action.LEAVE
        ):
            self._settle()
        else:
            with self._worker.attempts.lock:
                self._worker.attempts.end(self)
                self._worker.started(self._message)
                super().reject(requeue)
                self._worker.attempts.settle(self)

    def adopt(self, message: Message, ack: Any, reject: Any) -> None:
        """Go on with a message that was delivered again while the attempt ran; if it has ended, settle the message."""
        with self._worker.attempts.lock:
            has_ended = self._worker.attempts.adopt(self)
            logger.warning(
                "The broker has delivered the message of the task %s[%s] again, which %s in this worker: it is not run "
                "again",
                self.name,
                self.id,
                "has ended" if has_ended else "still runs",
                extra={"task_id": self.id},
            )
            self._message, self._on_ack, self._on_reject = message, ack, reject
            self._delivery, self._is_adopted = message.headers[KEY], True
            if not has_ended:
                return
            self.acknowledged = False
            if self._is_copied:
                super().acknowledge()
            elif self._end is End.REJECTED:
                self.reject(requeue=False)
            else:
                self._settle()

    def _announce_cancelled(self, *args: Any, **options: Any) -> None:
        if self._delivery is not None and not self.acknowledged:
            self._is_abandoned = True  # Celery before 5.7 records it only after it has waited for the result backend
            self._worker.attempts.cancel(self)
            self._worker.abandon(self._message, self._retries)
        super()._announce_cancelled(*args, **options)

    def _announce_revoked(self, reason: str, terminated: bool, signum: Any, expired: bool) -> None:
        self._end = End.EXPIRED if expired else End.REVOKED
        try:
            super()._announce_revoked(reason, terminated, signum, expired)
        except Exception:
            if self._delivery is None:
                raise
            self._settle_unreported()
            self._already_revoked = True

    def _settle_unreported(self) -> None:
        """Log Celery's exception while it reported the end of an attempt, and settle the message anyway.

        In the consumer's callback the error would end the connection, or the worker, and the message would be delivered
        again; in the pool's callback the message would stay unacked until the worker stops.
        """
        logger.exception(
            "The end of the task %s[%s] (%s) could not be stored, or an errback not be called; its message is settled "
            "anyway",
            self.name,
            self.id,
            self._end.value,
            extra={"task_id": self.id},
        )
        if self._end is End.REJECTED:
            self.reject(requeue=False)
        else:
            self.acknowledge()

    # -- the end of the attempt ------------------------------------------------------------------------------------

    def _how(self, exc: Any) -> End:
        """Return how an attempt ended that has raised ``exc``."""
        if self._crashes:
            return End.CRASHED
        if isinstance(exc, WorkerLostError) and (state.should_terminate or self._already_cancelled):
            return End.ABANDONED
        if isinstance(exc, Reject):
            return End.REQUEUED if exc.requeue else End.REJECTED  # type: ignore[attr-defined]
        if isinstance(exc, Ignore):
            return End.IGNORED
        if isinstance(exc, (stock.Terminated, CeleryTerminated)):
            return End.REVOKED
        if isinstance(exc, WorkerLostError):
            return End.SUCCEEDED if self._has_succeeded() else End.LOST
        return End.LOST if isinstance(exc, TimeLimitExceeded) else End.FAILED

    def _was_killed_in_a_greenlet(self) -> bool:
        """Whether Celery reports a success for a task that it has ended, as on gevent and eventlet."""
        return self._end is End.SUCCEEDED and self._worker.consumer.pool.is_green and not self._has_succeeded()

    def _decide(self) -> Ending:
        delivery, worker = self._delivery, self._worker
        attempt = self._retry if isinstance(self._retry, Parked) else self._attempt(worker.delay, delivery.queue)
        rejects = worker.dead_letters(delivery.queue)
        return end(self._end, attempt, rejects=rejects, is_adopted=self._is_adopted)

    def _attempt(self, delay: AppState, queue: str) -> Attempt:
        is_last = getattr(self._failure, "is_last", False)  # `Task.retry` has refused another retry
        budget = self._retries if is_last else delay.budget(queue, self.task)
        return Attempt(self._delivery, delay.ladder(queue, self.task), self._retries, budget)

    # -- settling the message ----------------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Carry out the decision."""
        attempts = self._worker.attempts
        with attempts.lock:
            attempts.end(self)
            self._worker.started(self._message)
            self._carry_out(self._decide())

    def _carry_out(self, ending: Ending) -> None:
        if ending.action is Action.PARK:
            retry: Any = self._retry
            self._park(retry.exc, retry.when, ending)
        elif ending.action is Action.EXHAUSTED:
            self._move_to_exhausted(ending.reason)
        elif ending.action is Action.RETURN:
            self.acknowledged = True
            self._worker.requeue(self._message, self._delivery, self._retries, self.name, self._copied)
            self.send_event("task-rejected", requeue=True)
        elif ending.action is Action.ACK:
            self._emit_end(ending.reason)
            super().acknowledge()
            self._worker.attempts.settle(self)
            if self._retries and ending.reason is None:
                self._send(task_recovered)

    def _park(self, exc: BaseException | None, when: Any, ending: Ending) -> None:
        """Move the message to its delay queue: that of a tier, or one for an exact delay."""
        self.acknowledged = True
        _, path, tier_index, delay_ms, _ = ending
        delivery: Delivery = self._delivery
        queue = None if self.retry_queue == delivery.queue else self.retry_queue
        waits = Waits(tier_index, delay_ms, in_delay_queue=path is not RetryPath.REQUEUE, queue=queue)
        kind = events.PARKED if path in (RetryPath.REJECT, RetryPath.REQUEUE) else events.FORWARDED
        event = kind, exc, self._failure.traceback, waits
        if path is RetryPath.COPY:
            copied = partial(self._copied, *event)
            self._worker.park(self._message, delivery, self.task, self._retries, tier_index, delay_ms, copied)
        else:
            self._emit(*event)
            if path is RetryPath.REJECT:
                self._on_reject(stock.logger, self._connection_errors, False)
            elif path is RetryPath.REQUEUE:
                self._worker.requeue_for_native_retry(self._message, delivery)
            else:
                self._on_ack(stock.logger, self._connection_errors)
            self._worker.attempts.settle(self)
        if task_parked.receivers:
            known_ms = round(when * 1000) if isinstance(when, (int, float)) else None
            self._send(task_parked, exception=exc, delay_ms=known_ms, tier=tier_index if delay_ms is None else None)

    def _move_to_exhausted(self, reason: Any) -> None:
        exc = _bare(self._failure.exception)
        self.acknowledged = True

        traceback = stock.safe_str(self._failure.traceback)

        self._worker.move_to_exhausted(
            self._message,
            queue=self._delivery.queue,
            retries=self._retries,
            reason=reason,
            exception=exc,
            traceback=traceback,
            crashes=self._crashes,
            before_ack=partial(self._copied, events.EXHAUSTED, exc, traceback, reason=reason, crashes=self._crashes),
            after_ack=partial(self._announce_exhausted, exc, reason),
        )

    def _announce_exhausted(self, exc: Any, reason: Any) -> None:
        """Log where the message is, and send the signal."""
        delay = self._worker.delay
        logger.warning(
            "Task %s[%s] is exhausted (%s): it waits in the queue %s, see `%s`",
            self.name,
            self.id,
            reason,
            delay.settings.exhausted_queue,
            command(f"exhausted show {shlex.quote(str(self.id))}", delay.app),
            extra={"task_id": self.id, "queue": self._delivery.queue},
        )
        self._send(task_exhausted, exception=exc, reason=reason)

    def give_up_crashed(self, crashes: int) -> None:
        """Give up a task that killed ``crashes`` workers from the quarantine queue, without running it again."""
        self._crashes = crashes
        lost = WorkerLostError(f"The task killed {crashes + 1} workers, {crashes} of them while it was quarantined.")
        self.on_failure(LeanExceptionInfo(lost, None, f"WorkerLostError: {lost}"))

    def _retry_failed(self, exc: Any, exc_info: Any, ending: Ending) -> None:
        """Count a lost process, a hard time limit, or a reject as a failed attempt, and retry it."""
        stock.task_ready(self)
        self._worker.started(self._message)
        delivery: Delivery = self._delivery
        delay: Any = self._worker.delay.ladder(delivery.queue, self.task).ttl(ending.tier_index, delivery.lane) / 1000
        retry = self._retry = Retry(exc=exc, when=delay)
        if self.store_errors:
            store_retry(self.task, self._context, exc, exc_info.traceback)
        self._park(exc, delay, ending)
        self.send_event("task-retried", exception=stock.safe_repr(exc), traceback=stock.safe_str(exc_info.traceback))
        self.task.request_stack.push(self._context)
        try:
            call_on_retry(self.task, exc, self._context, exc_info)
            signals.task_retry.send(sender=self.task, request=self._context, reason=retry, einfo=exc_info)
        except (WorkerShutdown, WorkerTerminate):
            raise
        except BaseException:  # in the main process, which it would end
            logger.exception("on_retry of %s[%s] raised", self.name, self.id, extra={"task_id": self.id})
        finally:
            self.task.request_stack.pop()

    def _refused(self, raised: Retry | Reject, exc_info: Any) -> LeanExceptionInfo:
        """Return the failure of a task that asked for another retry after its last one, as `Task.retry` raises it."""
        asked: Any = raised  # the stubs lack the reason of a Reject
        cause = asked.exc if isinstance(raised, Retry) else asked.reason
        if not isinstance(cause, Exception) or isinstance(cause, _NO_FAILURE):
            cause = self.task.MaxRetriesExceededError(f"Can't retry {self.name}[{self.id}]")
        return LeanExceptionInfo(cause, None, exc_info.traceback, is_reported=False)

    def _has_succeeded(self) -> bool:
        """Whether the lost process had stored the task's success; Celery checks this since 5.7."""
        was_stored = getattr(self, "_success_was_stored", None)
        return bool(was_stored and was_stored())

    # -- events and signals ------------------------------------------------------------------------------------------

    def _copied(self, *event: Any, **more: Any) -> None:
        """Send an event, if any: the broker has the copy of the message, which is acked next."""
        self._is_copied = True
        if event:
            self._emit(*event, **more)
        self._worker.attempts.settle(self)

    def _emit(self, kind: str, *facts: Any, **more: Any) -> None:
        """Send an event, once, if events are on."""
        if (reporter := self._worker.reporter) is not None and not self._has_emitted:
            self._has_emitted = True
            reporter.emit(kind, self, *facts, **more)

    def _emit_end(self, reason: str | None) -> None:
        """Send the event of a task that has ended, or count its first success; ``reason`` if it is discarded."""
        reporter = self._worker.reporter
        if reporter is None or self._has_emitted:
            return
        self._has_emitted = True
        first = not self._retries and not h.generation(self._message.raw_headers)
        if reason is not None:
            if not first:
                reporter.emit(events.DISCARDED, self, reason=reason)
        elif first:
            reporter.succeeded(self.task.name, self._delivery.queue)
        else:
            reporter.emit(events.RECOVERED, self)

    def _send(self, signal: Any, **more: Any) -> None:
        if self._has_signalled:
            return
        self._has_signalled = True
        signal.send(sender=self.task, request=self, queue=self._delivery.queue, attempt=self._retries, **more)


def _bare(exc: Any) -> Any:
    """Return the exception that a pool may have wrapped to carry its traceback."""
    return exc.exc if isinstance(exc, ExceptionWithTraceback) else exc
