"""The lease of an operation: one process at a time runs it, renews its heartbeat and stores outcomes of its work."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db.models import F, Q

from .....exceptions import LeaseLostError, OperationBusyError
from .....fence import process_name
from ...broker import Link
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
#: The fields that the end of an operation changes.
_AT_THE_END = ("state", "details", "message", "finished_at", *dict.fromkeys(_COUNTERS.values()))


def may_start(now: datetime) -> Q:
    """Return the condition of operations that are not scheduled for later."""
    return Q(not_before=None) | Q(not_before__lte=now)


@dataclass(frozen=True)
class Settled:
    """The outcome of one task of an operation; ``detail`` is the reason where it is not `Outcome.OK`."""

    item: OperationItem
    outcome: str
    detail: str = ""


class Lease:
    """The right to run one operation. Every write carries its generation: one that was taken over raises an error."""

    def __init__(self, operation: Operation) -> None:
        self.operation = operation
        operation.refresh_from_db(fields=["generation"])
        self._generation = operation.generation + 1
        self._mine = Operation.objects.filter(pk=operation.pk, generation=self._generation)
        self._beaten = time.monotonic()

    @classmethod
    def take(cls, operation: Operation) -> Lease:
        """Claim an operation that may start, or whose runner is dead. Raises `OperationBusyError` for any other."""
        lease, now = cls(operation), clock.now()
        waits, orphaned = Q(may_start(now), state=State.PENDING), Q(state__in=GOING, heartbeat_at__lt=now - STALE_AFTER)
        if not lease._take(waits, state=State.RUNNING) and not lease._take(orphaned):
            operation.refresh_from_db()
            if operation.state == State.PENDING and operation.not_before is not None:
                raise OperationBusyError(f"Operation {operation.pk} does not start before {operation.not_before}.")
            raise OperationBusyError(
                f"Operation {operation.pk} is {operation.get_state_display().lower()}"
                + (f": {operation.runner} runs it." if operation.state in GOING else ".")
            )
        lease._mine.filter(started_at=None).update(started_at=now)
        operation.refresh_from_db()
        return lease

    def take_to_cancel(self) -> bool:
        """Become the runner of an operation that waits for one; return whether it did. Then `finish` it."""
        return self._take(Q(state=State.PENDING), state=State.CANCELLING)

    def _take(self, free: Q, **changes: object) -> bool:
        """Become the runner of an operation that is ``free``, with changes; return whether that was possible."""
        free_still = Operation.objects.filter(free, pk=self.operation.pk, generation=self._generation - 1)
        new = {"generation": self._generation, "runner": process_name(), "heartbeat_at": clock.now()}
        return bool(free_still.update(**new, **changes))

    def beat(self, **changes: object) -> str:
        """Renew the heartbeat, with changes of the operation; return its state. Raises `LeaseLostError`."""
        if not self._mine.update(heartbeat_at=clock.now(), **changes):
            raise self._lost()
        self._beaten = time.monotonic()
        return self._mine.values_list("state", flat=True).get()

    @property
    def is_due(self) -> bool:
        """Whether it is time for a heartbeat."""
        return time.monotonic() - self._beaten >= BEAT_EVERY

    def check(self) -> str:
        """Return the state of the operation, as `beat`, which it calls if it is time."""
        if self.is_due:
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
        given_up = {"state": State.PENDING, "runner": "", "generation": F("generation") + 1}
        if not self._mine.filter(state__in=(State.RUNNING, State.CANARY)).update(**given_up):
            self._mine.update(heartbeat_at=clock.now() - 2 * STALE_AFTER)

    def note(self, text: str) -> None:
        """Store a note in the details of the operation. Raises `LeaseLostError`."""

        def step() -> None:
            self.beat()  # locks the row
            self.operation.refresh_from_db(fields=["details"])
            self.beat(details={**self.operation.details, "note": text})

        committed(step)

    def finish(self, state: str, rest: str, detail: str = "", *, note: str = "") -> None:
        """End the operation: pending tasks get the outcome ``rest`` and ``detail``, the operation gets ``note``.

        Raises `LeaseLostError`, and has then changed nothing.
        """

        def step() -> None:
            self.beat()  # the first statement has to be a write: SQLite cannot upgrade a read transaction
            operation, now = self.operation, clock.now()
            operation.refresh_from_db()
            left = OperationItem.objects.filter(operation=operation, outcome=Outcome.PENDING)
            count = left.update(outcome=rest, detail=shortened(detail), finished_at=now)
            if counter := _COUNTERS.get(Outcome(rest)):
                setattr(operation, counter, getattr(operation, counter) + count)
            if state == State.DONE:
                # The records of the other tasks were deleted meanwhile, and the items with them.
                operation.skipped += operation.remaining
            operation.state, operation.finished_at = state, now
            operation.details = {**operation.details, "note": note} if note else operation.details
            operation.message = report(operation)
            self.beat(**{name: getattr(operation, name) for name in _AT_THE_END})

        committed(step)


@dataclass(frozen=True)
class Run:
    """What a runner gives to the work of an action."""

    lease: Lease
    link: Link
    #: To call between two tasks; it may raise.
    tick: Callable[[], None]
    #: The edited messages by task, of an edit whose request has not ended.
    edited: Mapping[int, Any]


class Work:
    """The work of one kind of operation, on windows of tasks."""

    #: The most tasks of the next call of `do`.
    window: int

    def __init__(self, run: Run) -> None:
        self._lease, self._link, self._tick = run.lease, run.link, run.tick

    def resume(self) -> None:
        """Settle the tasks that a dead runner left unfinished."""

    def do(self, items: Sequence[OperationItem]) -> None:
        """Process these tasks, and settle each that is done. Raises `BrokerDownError`."""
        raise NotImplementedError

    def abandon(self) -> None:
        """Settle the tasks that an error has left unfinished: as UNKNOWN where they may have been done."""
        self.resume()
