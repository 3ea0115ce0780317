"""The loop that runs an operation: windows of tasks, canaries, rate, cancellation and take-over."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from datetime import datetime, timedelta

from django.db.models import Max

from .....exceptions import LeaseLostError, RmqDelayError
from ...broker import Link
from ...conf import conf
from ...models import Operation, OperationItem, TaskRecord, TaskState
from ...queries import plural
from ...transactions import DATABASE_AWAY, committed
from .. import clock
from . import actions as actions
from .action import of_kind
from .lease import Lease, Outcome, Run, Work
from .requeue import Edited

logger = logging.getLogger(__name__)

State = Operation.State

#: Seconds for which a background run retries to reach the broker.
PATIENCE = 120.0
#: Seconds between two checks of the operation in the database during a pause.
_CHECK_EVERY = 0.5
#: For a longer pause the connection to the broker is closed.
_LONG = 10.0
#: Seconds to wait for events of the canaries, unless the operation's details have ``canary_timeout``.
CANARY_TIMEOUT = 600


class _Interrupted(Exception):  # noqa: N818 - not an error
    """The run ends before its work is complete."""


class Runner:
    """Runs one operation; see `requests.run`."""

    def __init__(
        self, operation: Operation, stop: Callable[[], bool] | None = None, edited: Mapping[int, Edited] | None = None
    ) -> None:
        self._operation, self._stop, self._edited = operation, stop, edited or {}
        patience = conf().broker_timeout if stop is None else PATIENCE
        self._link = Link(patience, self._pause)
        self._ticked = time.monotonic()
        self._lease: Lease

    def run(self) -> Operation:
        """Run until the operation is finished, cancelled, handed over, or taken over."""
        self._lease = Lease.take(self._operation)
        work: Work | None = None
        try:
            with closing(self._link):
                work = self._work()
                work.resume()
                self._go(work)
            self._lease.finish(State.DONE, Outcome.SKIPPED)
        except _Interrupted:
            pass
        except LeaseLostError as error:
            logger.warning("%s", error)
        except RmqDelayError as error:
            self._fail(work, str(error))
        except Exception as error:
            # Without the database the heartbeat stops, and the process that takes over settles unfinished tasks. An
            # operation of a page is not taken over.
            if self._stop is None or not isinstance(error, DATABASE_AWAY):
                logger.exception("Operation %s stopped", self._operation.pk)
                self._fail(work, f"{type(error).__name__}: {error}")
            raise
        self._operation.refresh_from_db()
        return self._operation

    def _fail(self, work: Work | None, why: str) -> None:
        if work is not None:
            work.abandon()
        self._lease.finish(State.FAILED, Outcome.UNTRIED, why, note=why)

    def _work(self) -> Work:
        kind = self._operation.kind
        action = of_kind(kind)
        if action is None:
            raise RmqDelayError(f"{Operation.Kind(kind).label} is not an operation that can be run.")
        work: Work = action.work(Run(self._lease, self._link, self._tick, self._edited))
        return work

    def _go(self, work: Work) -> None:
        self._check()
        if self._operation.canary:
            self._do(work, is_canary=True)
            if self._next(1, is_canary=False):
                self._link.close()
                self._watch()
        self._do(work, is_canary=False)

    def _do(self, work: Work, *, is_canary: bool) -> None:
        rate = None if is_canary else self._operation.rate
        while items := self._next(work.window if rate is None else _paced(rate, work.window), is_canary):
            began = time.monotonic()
            work.do(items)
            self._check()
            if rate is not None:
                rest = len(items) * 60 / rate - (time.monotonic() - began)
                if rest > _LONG:
                    self._link.close()
                self._pause(rest)

    def _next(self, most: int, is_canary: bool) -> list[OperationItem]:
        pending = OperationItem.objects.filter(operation=self._operation, outcome=Outcome.PENDING, is_canary=is_canary)
        return committed(lambda: list(pending.order_by("position")[:most]))

    def _watch(self) -> None:
        committed(lambda: self._lease.enter(State.CANARY, of=State.RUNNING))
        while (verdict := committed(lambda: judge(self._operation))) is None:
            self._pause(_CHECK_EVERY)
        if verdict:
            self._lease.finish(State.CANCELLED, Outcome.CANCELLED, note=verdict)
            raise _Interrupted
        committed(lambda: self._lease.enter(State.RUNNING, of=State.CANARY))

    def _pause(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            time.sleep(min(left, _CHECK_EVERY))
            self._check()

    def _tick(self) -> None:
        """Check for a cancellation from time to time; called between two tasks."""
        if time.monotonic() - self._ticked > _CHECK_EVERY:
            self._check()

    def _check(self) -> None:
        """Renew the heartbeat if it is time; end the run if the operation was cancelled or this process has to stop."""
        self._ticked = time.monotonic()
        if committed(self._lease.check) == State.CANCELLING:
            self._lease.finish(State.CANCELLED, Outcome.CANCELLED)
            raise _Interrupted
        if self._stop is not None and self._stop():
            committed(self._lease.hand_over)
            raise _Interrupted


def _paced(rate: int, most: int) -> int:
    """Return how many tasks to process at a time for ``rate`` per minute: those of 0.1 s, at least one."""
    return min(most, max(1, rate // 600))


def judge(operation: Operation) -> str | None:
    """Return None while the outcome is open, "" when the rest may be sent, or the reason why not.

    A canary is sound when it has recovered. One that failed again and is parked is not: the cause persists.
    """
    items = OperationItem.objects.filter(operation=operation, is_canary=True)
    sent = items.filter(outcome=OperationItem.Outcome.OK)
    generations = dict(sent.values_list("record_id", "generation"))
    sound, parked, exhausted = 0, 0, 0
    for key, generation, state in TaskRecord.objects.filter(pk__in=generations).values_list(
        "pk", "generation", "state"
    ):
        if generation > generations[key]:
            sound += state == TaskState.RECOVERED
            parked += state == TaskState.PARKED
            exhausted += state in (TaskState.EXHAUSTED, TaskState.DISCARDED)
    if exhausted:
        verb = plural(exhausted, "is", "are")
        return f"{exhausted} of {len(generations)} canaries {verb} exhausted again: the rest was not sent"
    if parked:
        waits = plural(parked, "waits for its retry", "wait for their retries")
        return f"{parked} of {len(generations)} canaries failed again and {waits}: the rest was not sent"
    if not generations:
        return "no canary could be requeued: the rest was not sent"
    if sound == len(generations):
        return ""
    if clock.now() < deadline(operation):
        return None
    silent = len(generations) - sound
    return (
        f"No event of {silent} {plural(silent, 'canary', 'canaries')} in {timeout(operation)} s: the rest was not "
        "sent. Check that workers and rmq_delay_collect run"
    )


def timeout(operation: Operation) -> int:
    """Return the seconds to wait for events of the canaries."""
    seconds: int = operation.details.get("canary_timeout", CANARY_TIMEOUT)
    return seconds


def deadline(operation: Operation) -> datetime:
    """Return the time until which events of the canaries are waited for: counted from the last one that was sent."""
    sent = OperationItem.objects.filter(operation=operation, is_canary=True, outcome=OperationItem.Outcome.OK)
    last: datetime = sent.aggregate(last=Max("finished_at"))["last"] or clock.now()
    return last + timedelta(seconds=timeout(operation))
