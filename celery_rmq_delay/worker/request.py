"""The worker's request class for messages of a `RetryableTask`."""

from __future__ import annotations

import logging
from functools import partial
from typing import Any

from billiard.exceptions import TimeLimitExceeded, WorkerLostError
from celery.exceptions import Reject, Retry, WorkerShutdown, WorkerTerminate
from celery.worker import request as stock
from kombu.message import Message

from .. import headers as h
from ..events import schema as events
from ..events.encode import Waits
from ..retry.decision import Action, End, Ending
from ..retry.delivery import Parked, RetryPath
from ..signals import task_parked, task_recovered
from .copies import Failure
from .flight import InFlight, Owed, flight_of
from .outcome import Outcome, OutOfMemory, bare, has_succeeded, how_it_ended, refused
from .settle import Settling
from .trace import LeanExceptionInfo, announce_retry, lost, store_retry

logger = logging.getLogger(__name__)

#: Ends of an attempt after which Celery may neither ack nor reject the message by itself.
_FAILURES = (End.FAILED, End.LOST, End.CRASHED, End.REJECTED)


class RetryableRequest(stock.Request):
    """Records how an attempt ended; when Celery settles its message, does what `retry.decision.end` decides."""

    acknowledged: bool

    def __init__(self, message: Message, **options: Any) -> None:
        super().__init__(message, **options)
        #: The delivery that the outcome settles; another one once the attempt has adopted that.
        self.flight: InFlight = flight_of(message)
        self._outcome = Outcome()
        if self.flight.is_managed and not self.flight.delivery.tier_index and h.DUE in self.flight.headers:
            # For the task only: Celery, which might wait for the eta by its own clock, has already checked it.
            self._request_dict["eta"] = h.fulfilled_eta(self.flight.headers)

    @property
    def _settling(self) -> Settling:
        settling: Settling = self.flight.settling
        return settling

    @property
    def retry_queue(self) -> str:
        """The queue that a retry returns to."""
        retry = self._outcome.retry
        return (isinstance(retry, Parked) and retry.queue) or self.flight.queue

    @property
    def pool(self) -> Any:
        """The pool that runs the task; None if its queue is excluded."""
        return self._settling.consumer.pool if self.flight.is_managed else None

    @property
    def hard_time_limit(self) -> float | None:
        """The seconds after which a pool without processes ends the task; None without a limit."""
        limit: float | None = self.time_limits[0] or self.task.time_limit or getattr(self.pool, "timeout", None)
        return limit

    # -- called by Celery ------------------------------------------------------------------------------------------

    def on_accepted(self, pid: int, time_accepted: float) -> None:
        """Record that the task runs."""
        if not self.flight.is_managed:
            super().on_accepted(pid, time_accepted)
            return
        self._settling.started(self.flight)
        self._settling.attempts.begin(self)
        try:
            super().on_accepted(pid, time_accepted)
        except Exception:  # a pool without processes would neither run nor settle the task
            text = "The start of the task %s[%s] was not reported"
            logger.exception(text, self.name, self.id, extra={"task_id": self.id})

    def on_retry(self, exc_info: Any) -> None:
        """Settle an attempt that is retried."""
        if self.flight.is_managed:
            retry, outcome = bare(exc_info.exception), self._outcome
            outcome.end, outcome.retry, outcome.failure = End.RETRIED, retry, exc_info
            if not isinstance(retry, Parked) and self._decide().action is Action.EXHAUSTED:
                outcome.retry = None  # raised by hand: `Task.retry` would have refused it
                self.on_failure(refused(self, retry, exc_info))
                return
        super().on_retry(exc_info)

    def on_failure(self, exc_info: Any, send_failed_event: bool = True, return_ok: bool = False) -> None:
        """Settle an attempt that raised, or whose process was lost."""
        exc = bare(exc_info.exception)
        # A task that is terminated is settled before, and for a retry Celery calls `on_retry`.
        if not self.flight.is_managed or self.acknowledged or isinstance(exc, Retry):
            super().on_failure(exc_info, send_failed_event, return_ok)
            return
        if isinstance(exc, (SystemExit, KeyboardInterrupt)):  # the process has exited by itself
            exc_info = lost(exc)
            exc = exc_info.exception
        outcome = self._outcome
        outcome.end, outcome.failure = End.CRASHED if outcome.crashes else how_it_ended(self, exc), exc_info
        if outcome.end is End.ABANDONED:
            stock.task_ready(self)
            self._settling.attempts.cancel(self)
            return
        if outcome.end in (End.LOST, End.REJECTED):
            ending = self._decide()
            if ending.action is Action.PARK:
                self._retry_failed(exc, exc_info, ending)
                return
            if ending.action is Action.EXHAUSTED and isinstance(exc, Reject):  # Celery would reject the message
                exc_info = outcome.failure = refused(self, exc, exc_info)
        return_ok = return_ok and getattr(exc_info, "is_reported", True)
        if isinstance(exc, MemoryError):
            exc_info = LeanExceptionInfo(OutOfMemory(*exc.args), None, exc_info.traceback)
        try:
            super().on_failure(exc_info, send_failed_event, return_ok)
        except Exception:  # noqa: BLE001 - it is logged there
            self._settle_unreported()

    def on_timeout(self, soft: bool, timeout: float) -> None:
        """Settle a hard time limit on gevent, whose pool calls only this; prefork's calls `on_failure` as well."""
        if soft or not self.flight.is_managed:
            super().on_timeout(soft, timeout)
            return
        logger.error("Hard time limit (%ss) exceeded for %s[%s]", timeout, self.name, self.id)
        if not self.acknowledged:
            exceeded = TimeLimitExceeded(timeout)
            self.on_failure(LeanExceptionInfo(exceeded, None, f"TimeLimitExceeded: {exceeded}"))

    def acknowledge(self) -> None:
        """Settle the message according to the end of its attempt."""
        if not self.flight.is_managed or self.acknowledged:
            super().acknowledge()
        elif not (self._outcome.is_abandoned and self._was_killed_in_a_greenlet()):
            self._settle()

    def _was_killed_in_a_greenlet(self) -> bool:
        """Whether Celery reports a success for a task that it has ended, as on gevent and eventlet."""
        return self._outcome.end is End.SUCCEEDED and self.pool.is_green and not has_succeeded(self)

    def reject(self, requeue: bool = False) -> None:
        """Reject the message if its task does so; else settle it according to the end of its attempt."""
        if not self.flight.is_managed or self.acknowledged:
            super().reject(requeue)
        elif self._outcome.end is End.REQUEUED or (
            not requeue and self._outcome.end in _FAILURES and self._decide().action is not Action.LEAVE
        ):
            self._settle()
        else:
            with self._settling.attempts.lock:
                self._settling.attempts.end(self)
                self._settling.started(self.flight)
                super().reject(requeue)
                self._settling.attempts.settle(self)

    def adopt(self, flight: InFlight, ack: Any, reject: Any) -> None:
        """Go on with a message that was delivered again while the attempt ran; if it has ended, settle the message."""
        with self._settling.attempts.lock:
            has_ended = self._settling.attempts.adopt(self)
            stands = "has ended in this worker" if has_ended else "still runs in this worker"
            text = "The broker has delivered the message of the task %s[%s] again, which %s: it is not run again"
            logger.warning(text, self.name, self.id, stands, extra={"task_id": self.id})
            self._message, self._on_ack, self._on_reject = flight.message, ack, reject
            self.flight, self._outcome.is_adopted = flight, True
            flight.owed, flight.attempt = Owed.OUTCOME, None
            if not has_ended:
                return
            self.acknowledged = False
            if self._outcome.is_copied:
                super().acknowledge()
            elif self._outcome.end is End.REJECTED:
                self.reject(requeue=False)
            else:
                self._settle()

    def _announce_cancelled(self, *args: Any, **options: Any) -> None:
        if self.flight.is_managed and not self.acknowledged:
            self._outcome.is_abandoned = True  # before 5.7 Celery records it after it has waited for the result backend
            self._settling.attempts.cancel(self)
            self._settling.abandon(self.flight)
        super()._announce_cancelled(*args, **options)

    def _announce_revoked(self, reason: str, terminated: bool, signum: Any, expired: bool) -> None:
        self._outcome.end = End.EXPIRED if expired else End.REVOKED
        try:
            super()._announce_revoked(reason, terminated, signum, expired)
        except Exception:
            if not self.flight.is_managed:
                raise
            self._settle_unreported()
            self._already_revoked = True

    def _settle_unreported(self) -> None:
        """Log Celery's exception while it reported the end of an attempt, and settle the message anyway.

        In the consumer's callback the error would end the connection, or the worker, and the message would be delivered
        again; in the pool's callback the message would stay unacked until the worker stops.
        """
        text = (
            "The end of the task %s[%s] (%s) could not be stored, or an errback not be called; its message is settled "
            "anyway"
        )
        logger.exception(text, self.name, self.id, self._outcome.end.value, extra={"task_id": self.id})
        if self._outcome.end is End.REJECTED:
            self.reject(requeue=False)
        else:
            self.acknowledge()

    # -- settling the message ----------------------------------------------------------------------------------------

    def _decide(self) -> Ending:
        return self._outcome.decide(self.flight, self.task)

    def _settle(self) -> None:
        attempts = self._settling.attempts
        with attempts.lock:
            attempts.end(self)
            self._settling.started(self.flight)
            self._carry_out(self._decide())

    def _carry_out(self, ending: Ending) -> None:
        if ending.action is Action.PARK:
            retry: Any = self._outcome.retry
            self._park(retry.exc, retry.when, ending)
        elif ending.action is Action.EXHAUSTED:
            self._move_to_exhausted(ending.reason)
        elif ending.action is Action.RETURN:
            self.acknowledged = True
            self._settling.requeue(self.flight, self.name, self._copied)
            self.send_event("task-rejected", requeue=True)
        elif ending.action is Action.ACK:
            self._outcome.emit_end(self, ending.reason)
            super().acknowledge()
            self._settling.attempts.settle(self)
            if self.flight.retries and ending.reason is None:
                self._outcome.send(self, task_recovered)

    def _park(self, exc: BaseException | None, when: Any, ending: Ending) -> None:
        """Move the message to its delay queue: that of a tier, or one for an exact delay."""
        self.acknowledged = True
        _, path, tier_index, delay_ms, _ = ending
        queue = None if self.retry_queue == self.flight.queue else self.retry_queue
        waits = Waits(tier_index, delay_ms, in_delay_queue=path is not RetryPath.REQUEUE, queue=queue)
        kind = events.PARKED if path in (RetryPath.REJECT, RetryPath.REQUEUE) else events.FORWARDED
        event = kind, exc, self._outcome.failure.traceback, waits
        if path is RetryPath.COPY:
            make = partial(self._settling.copies.parked, self.flight, self.task, tier_index, delay_ms)
            self._settling.publish(self.flight, make, before_ack=partial(self._copied, *event))
        else:
            self._outcome.emit(self, *event)
            if path is RetryPath.REJECT:
                self._on_reject(stock.logger, self._connection_errors, False)
            elif path is RetryPath.REQUEUE:
                self._settling.requeue_for_native_retry(self.flight)
            else:
                self._on_ack(stock.logger, self._connection_errors)
            self._settling.attempts.settle(self)
        if task_parked.receivers:
            known_ms = round(when * 1000) if isinstance(when, (int, float)) else None
            tier = tier_index if delay_ms is None else None
            self._outcome.send(self, task_parked, exception=exc, delay_ms=known_ms, tier=tier)

    def _move_to_exhausted(self, reason: Any) -> None:
        failure, crashes = self._outcome.failure, self._outcome.crashes
        exc, traceback = bare(failure.exception), stock.safe_str(failure.traceback)
        self.acknowledged = True
        self._settling.exhaust(
            self.flight,
            Failure(reason, exc, traceback, crashes),
            before_ack=partial(self._copied, events.EXHAUSTED, exc, traceback, reason=reason, crashes=crashes),
            after_ack=partial(self._outcome.announce_exhausted, self, exc, reason),
        )

    def give_up_crashed(self, crashes: int) -> None:
        """Give up a task that killed ``crashes`` workers from the quarantine queue, without running it again."""
        self._outcome.crashes = crashes
        lost = WorkerLostError(f"The task killed {crashes + 1} workers, {crashes} of them while it was quarantined.")
        self.on_failure(LeanExceptionInfo(lost, None, f"WorkerLostError: {lost}"))

    def _retry_failed(self, exc: Any, exc_info: Any, ending: Ending) -> None:
        """Count a lost process, a hard time limit, or a reject as a failed attempt, and retry it."""
        stock.task_ready(self)
        self._settling.started(self.flight)
        ladder = self._settling.delay.ladder(self.flight.queue, self.task)
        delay: Any = ladder.ttl(ending.tier_index, self.flight.delivery.lane) / 1000
        retry = self._outcome.retry = Retry(exc=exc, when=delay)
        if self.store_errors:
            store_retry(self.task, self._context, exc, exc_info.traceback)
        self._park(exc, delay, ending)
        self.send_event("task-retried", exception=stock.safe_repr(exc), traceback=stock.safe_str(exc_info.traceback))
        self.task.request_stack.push(self._context)
        try:
            announce_retry(self.task, exc, self._context, retry, exc_info)
        except (WorkerShutdown, WorkerTerminate):
            raise
        except BaseException:  # in the main process, which it would end
            logger.exception("on_retry of %s[%s] raised", self.name, self.id, extra={"task_id": self.id})
        finally:
            self.task.request_stack.pop()

    def _copied(self, *event: Any, **more: Any) -> None:
        """Send an event, if any: the broker has the copy of the message, which is acked next."""
        self._outcome.is_copied = True
        if event:
            self._outcome.emit(self, *event, **more)
        self._settling.attempts.settle(self)
