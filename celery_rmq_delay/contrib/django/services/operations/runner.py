"""The loop that runs an operation: windows of tasks, canaries and rate, cancellation, take-over."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import Protocol

from .....exceptions import LeaseLostError, RmqDelayError
from ...conf import conf
from ...models import Operation, OperationItem
from . import canaries
from .lease import Lease, Outcome
from .link import Link
from .parked import RunNow
from .requeue import Edited, LostEdit, Requeue
from .states import Discard, Restore
from .transactions import DATABASE_AWAY, committed

logger = logging.getLogger(__name__)

Kind = Operation.Kind
State = Operation.State

#: Seconds for which a run in the background waits for a broker that is away.
PATIENCE = 120.0
#: Seconds between two looks at the database while nothing is to be done.
_LOOK = 0.5
#: A pause as long as this is spent without a connection to the broker.
_LONG = 10.0


class Work(Protocol):
    """One kind of operation: what is done to a window of tasks."""

    @property
    def window(self) -> int:
        """How many tasks to do next."""

    def resume(self) -> None:
        """Settle what a dead runner had in hand."""

    def do(self, items: Sequence[OperationItem]) -> None:
        """Do it, and settle each task that is done."""

    def abandon(self) -> None:
        """Settle what an error has left in hand: of what may have been done nobody says that it was not."""


class _Interrupted(Exception):  # noqa: N818 - it is no error
    """The run ends before its work does."""


class Runner:
    """Runs one operation; see `operations.run`."""

    def __init__(
        self,
        operation: Operation,
        stop: Callable[[], bool] | None = None,
        edited: Mapping[int, Edited] | None = None,
    ) -> None:
        self._operation, self._stop, self._edited = operation, stop, edited
        patience = conf().broker_timeout if stop is None else PATIENCE
        self._link = Link(patience, self._pause)
        self._ticked = time.monotonic()
        self._lease: Lease

    def run(self) -> Operation:
        """Run it to its end, or until it is cancelled, handed over, or taken over."""
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
            # Without the database its heart stops, and who takes it over settles what was in hand; none does of a page.
            if self._stop is None or not isinstance(error, DATABASE_AWAY):
                logger.exception("Operation %s stopped", self._operation.pk)
                self._fail(work, f"{type(error).__name__}: {error}")
            raise
        self._operation.refresh_from_db()
        return self._operation

    def _fail(self, work: Work | None, why: str) -> None:
        if work is not None:
            work.abandon()
        self._lease.finish(State.FAILED, Outcome.FAILED, why, note=why)

    def _work(self) -> Work:
        kind = self._operation.kind
        if kind == Kind.REQUEUE or (kind == Kind.EDIT and self._edited):
            return Requeue(self._lease, self._link, self._edited)
        if kind == Kind.EDIT:
            return LostEdit(self._lease, self._link)
        if kind == Kind.DISCARD:
            return Discard(self._lease, self._link, self._tick)
        if kind == Kind.RUN_NOW:
            return RunNow(self._lease, self._link, self._tick)
        if kind == Kind.RESTORE:
            return Restore(self._lease)
        raise RmqDelayError(f"{Kind(kind).label} is not something that runs.")

    def _go(self, work: Work) -> None:
        self._look()
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
            self._look()
            if rate is not None:
                rest = len(items) * 60 / rate - (time.monotonic() - began)
                if rest > _LONG:
                    self._link.close()
                self._pause(rest)

    def _next(self, most: int, is_canary: bool) -> list[OperationItem]:
        pending = OperationItem.objects.filter(operation=self._operation, outcome=Outcome.PENDING, is_canary=is_canary)
        return committed(lambda: list(pending.order_by("position")[:most]))

    def _watch(self) -> None:
        """Wait for what becomes of the canaries; cancel the rest if it is not good."""
        committed(lambda: self._lease.enter(State.CANARY, of=State.RUNNING))
        while (verdict := committed(lambda: canaries.judge(self._operation))) is None:
            self._pause(_LOOK)
        if verdict:
            self._lease.finish(State.CANCELLED, Outcome.CANCELLED, note=verdict)
            raise _Interrupted
        committed(lambda: self._lease.enter(State.RUNNING, of=State.CANARY))

    def _pause(self, seconds: float) -> None:
        """Wait, with looks for a cancellation."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            time.sleep(min(left, _LOOK))
            self._look()

    def _tick(self) -> None:
        """Look from time to time: for work that asks between two tasks."""
        if time.monotonic() - self._ticked > _LOOK:
            self._look()

    def _look(self) -> None:
        """Say that the work goes on; leave it where somebody has cancelled it or this process is to stop."""
        self._ticked = time.monotonic()
        if committed(self._lease.beat) == State.CANCELLING:
            self._lease.finish(State.CANCELLED, Outcome.CANCELLED)
            raise _Interrupted
        if self._stop is not None and self._stop():
            committed(self._lease.hand_over)
            raise _Interrupted


def _paced(rate: int, most: int) -> int:
    """Return how many tasks to do at a time for ``rate`` a minute: those of a tenth of a second, at least one."""
    return min(most, max(1, rate // 600))
