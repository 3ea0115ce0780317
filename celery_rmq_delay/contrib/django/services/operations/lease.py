"""The lease of an operation: one process at a time runs it, renews its heartbeat and stores outcomes."""

from __future__ import annotations

import os
import socket
import time
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db.models import F, Q

from .....exceptions import LeaseLostError, OperationBusyError
from ...models import Operation, OperationItem
from ...transactions import committed
from .. import clock
from .reporting import report, shortened

State = Operation.State
Outcome = OperationItem.Outcome

#: Time without a heartbeat after which another process takes over the operation.
STALE_AFTER = timedelta(seconds=60)
#: Seconds between two heartbeats of an operation that pauses: each is a write, and SQLite has one writer at a time.
BEAT_EVERY = 5.0

#: The states of an operation with a runner.
GOING = (State.RUNNING, State.CANARY, State.CANCELLING)
_COUNTERS = {
    Outcome.OK: "ok",
    Outcome.SKIPPED: "skipped",
    Outcome.FAILED: "failed",
    Outcome.UNTRIED: "failed",
    Outcome.UNKNOWN: "unknown",
}


def may_start(now: datetime) -> Q:
    """Return the condition of operations that are not scheduled for later."""
    return Q(not_before=None) | Q(not_before__lte=now)


@dataclass(frozen=True)
class Settled:
    """The outcome of one task of an operation; ``detail`` is the reason where it is not `Outcome.OK`."""

    item: OperationItem
    outcome: str
    detail: str = ""


def process_name() -> str:
    """Return a name of this process, which no other call returns."""
    return f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:8]}"


class Lease:
    """The right to run one operation. Every step renews it, and stops where another process has taken it over."""

    def __init__(self, operation: Operation) -> None:
        self.operation = operation
        self._runner = process_name()
        self._mine = Operation.objects.filter(pk=operation.pk, runner=self._runner)
        self._beaten = time.monotonic()

    @classmethod
    def take(cls, operation: Operation) -> Lease:
        """Claim an operation that may start, or whose runner is dead. Raises `OperationBusyError` for any other."""
        lease, now = cls(operation), clock.now()
        this = Operation.objects.filter(pk=operation.pk)
        new = {"runner": lease._runner, "heartbeat_at": now}
        waits = this.filter(may_start(now), state=State.PENDING)
        orphaned = this.filter(state__in=GOING, heartbeat_at__lt=now - STALE_AFTER)
        if not waits.update(state=State.RUNNING, **new) and not orphaned.update(**new):
            operation.refresh_from_db()
            if operation.state == State.PENDING and operation.not_before is not None:
                raise OperationBusyError(f"Operation {operation.pk} does not start before {operation.not_before}.")
            raise OperationBusyError(
                f"Operation {operation.pk} is {operation.get_state_display().lower()}"
                + (f": {operation.runner} runs it." if operation.state in GOING else ".")
            )
        this.filter(started_at=None).update(started_at=now)
        operation.refresh_from_db()
        return lease

    def beat(self, **changes: object) -> str:
        """Renew the heartbeat, with changes of the operation; return its state. Raises `LeaseLostError`."""
        if not self._mine.update(heartbeat_at=clock.now(), **changes):
            raise self._lost()
        self._beaten = time.monotonic()
        return self._mine.values_list("state", flat=True).get()

    def check(self) -> str:
        """Return the state of the operation, as `beat`, which it calls if it is time."""
        if time.monotonic() - self._beaten >= BEAT_EVERY:
            return self.beat()
        state = self._mine.values_list("state", flat=True).first()
        if state is None:
            raise self._lost()
        return state

    def _lost(self) -> LeaseLostError:
        return LeaseLostError(f"Operation {self.operation.pk} was taken over: no heartbeat for too long.")

    def enter(self, state: str, *, of: str) -> None:
        """Go from the state ``of`` to another; a state that was changed meanwhile stays."""
        self._mine.filter(state=of).update(state=state, heartbeat_at=clock.now())

    def settle(self, settled: Iterable[Settled]) -> None:
        """Store the outcomes of tasks, each once. Call it in the transaction that changed them."""
        groups: dict[tuple[str, str], list[int]] = {}
        for each in settled:
            groups.setdefault((each.outcome, shortened(each.detail)), []).append(each.item.pk)
        now, counts = clock.now(), dict.fromkeys(_COUNTERS.values(), 0)
        for (outcome, detail), items in groups.items():
            counts[_COUNTERS[Outcome(outcome)]] += OperationItem.objects.filter(
                pk__in=items, outcome=Outcome.PENDING
            ).update(outcome=outcome, detail=detail, finished_at=now)
        self.beat(**{name: F(name) + count for name, count in counts.items() if count})

    def hand_over(self) -> None:
        """Leave the rest to another process; a requested cancellation stays requested."""
        old = clock.now() - 2 * STALE_AFTER
        if not self._mine.filter(state__in=(State.RUNNING, State.CANARY)).update(state=State.PENDING, runner=""):
            self._mine.update(heartbeat_at=old)

    def finish(self, state: str, rest: str, detail: str = "", *, note: str = "") -> None:
        """End the operation: pending tasks get the outcome ``rest`` and ``detail``, the operation gets ``note``."""

        def step() -> None:
            left = OperationItem.objects.filter(operation=self.operation, outcome=Outcome.PENDING)
            count = left.update(outcome=rest, detail=shortened(detail), finished_at=clock.now())
            if count and rest in _COUNTERS:
                counter = _COUNTERS[Outcome(rest)]
                self.beat(**{counter: F(counter) + count})
            _conclude(self.operation, state, note)

        committed(self.beat)
        committed(step)


def finish_cancelled(operation: Operation) -> None:
    """End a cancelled operation that has no runner."""

    def step() -> None:
        left = OperationItem.objects.filter(operation=operation, outcome=Outcome.PENDING)
        left.update(outcome=Outcome.CANCELLED, finished_at=clock.now())
        _conclude(operation, State.CANCELLED, "")

    committed(step)


def _conclude(operation: Operation, state: str, note: str) -> None:
    operation.refresh_from_db()
    if state == State.DONE and operation.remaining:
        # Their records were deleted meanwhile, and the items with them.
        Operation.objects.filter(pk=operation.pk).update(skipped=F("skipped") + operation.remaining)
    details = {**operation.details, "note": note} if note else operation.details
    Operation.objects.filter(pk=operation.pk).update(state=state, details=details, finished_at=clock.now())
    operation.refresh_from_db()
    operation.message = report(operation)
    operation.save(update_fields=["message"])
