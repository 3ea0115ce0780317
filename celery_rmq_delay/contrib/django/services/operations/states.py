"""Discard and restore: changes of state in the database, and REVOKED in the result backend, within a time limit."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

from celery import Celery
from django.db import connections
from django.db.models import F, OuterRef, Subquery

from .....events.schema import DISCARDED
from ...broker import celery_app
from ...models import OperationItem, Payload, TaskRecord, TaskState
from ...transactions import committed
from .. import clock
from . import parked
from .claims import add_to_history, claim, lock
from .lease import Lease, Outcome, Run, Settled, Work

logger = logging.getLogger(__name__)

#: Seconds without a stored result after which the result backend counts as hanging.
SILENCE = 5.0
#: Seconds for all results of an operation: base timeout, plus this much per task.
SECONDS, SECONDS_PER_TASK = 10.0, 0.02
#: The most rows that one transaction changes.
WINDOW = 500


class Discard(Work):
    """Marks tasks as discarded; history and messages stay. Parked ones are removed from their delay queues."""

    window = parked.WINDOW

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self._parked, self._results = parked.Discard(run), Results(run.lease)

    def abandon(self) -> None:
        """Settle the tasks that an error has left unfinished."""
        self._parked.abandon()

    def do(self, items: Sequence[OperationItem]) -> None:
        """Discard these tasks, then revoke them in the result backend. Raises `BrokerDownError`."""
        waiting = self._parked.concerns(items)
        others = [item for item in items if item.record_id not in waiting]
        for start in range(0, len(others), WINDOW):
            some = others[start : start + WINDOW]
            self._results.revoke(committed(lambda some=some: self._discard(some)))  # type: ignore[misc]
            self._tick()
        if waiting:
            try:
                self._parked.do([item for item in items if item.record_id in waiting])
            finally:  # settled tasks are in no later window
                self._results.revoke(self._parked.discarded)

    def _discard(self, items: Sequence[OperationItem]) -> list[TaskRecord]:
        self._lease.beat()
        of = [TaskState.EXHAUSTED, TaskState.UNKNOWN]
        won, skipped = claim(self._lease.operation, items, of, TaskState.DISCARDED)
        add_to_history(DISCARDED, self._lease.operation, won.values(), clock.now())
        self._lease.settle([*skipped, *(Settled(item, Outcome.OK) for item in items if item.record_id in won)])
        return list(won.values())


class Restore(Work):
    """Makes tasks exhausted again: an undo of a discard, or a decision where the outcome of a requeue is not known."""

    window = WINDOW

    def do(self, items: Sequence[OperationItem]) -> None:
        """Restore these tasks."""
        committed(lambda: self._restore(items))

    def _restore(self, items: Sequence[OperationItem]) -> None:
        self._lease.beat()
        operation, exhausted = self._lease.operation, TaskState.EXHAUSTED
        lock(item.record_id for item in items)
        requeued = TaskRecord.objects.filter(pk__in=[item.record_id for item in items], state=TaskState.REQUEUED)
        calls = dict(requeued.values_list("pk", "call_digest"))
        of = [TaskState.DISCARDED, TaskState.UNKNOWN, TaskState.REQUEUED]
        without_message = {key: "its message is not in the database" for key, call in calls.items() if not call}
        won, skipped = claim(operation, items, of, exhausted, barred=without_message)
        unconfirmed = [key for key in calls if key in won]
        # The published generation stays used, and its events are newer than the row.
        published = TaskRecord.objects.filter(pk=OuterRef("record")).values("generation")
        Payload.objects.filter(record__in=unconfirmed).update(generation=Subquery(published))
        TaskRecord.objects.filter(pk__in=unconfirmed).update(generation=F("generation") - 1)
        TaskRecord.objects.filter(pk__in=won, exhausted_at=None).update(exhausted_at=clock.now())
        self._lease.settle([*skipped, *(Settled(item, Outcome.OK) for item in items if item.record_id in won)])


class _Writer(threading.Thread):
    """Stores results in a thread, which ends by itself for Redis; other backends may block it for longer."""

    #: The thread of this process that an operation no longer waits for.
    left: _Writer | None = None

    def __init__(self, app: Celery, task_ids: list[str], reason: str) -> None:
        super().__init__(name="rmq-delay-results", daemon=True)
        self._app, self._task_ids, self._reason = app, task_ids, reason
        self.count, self.error, self.is_stopped = 0, "", False

    def run(self) -> None:
        """Store the results until an error, or until nothing waits for them any more."""
        backend: Any = None
        try:
            backend = _bounded(self._app.backend)
            for task_id in self._task_ids:
                if self.is_stopped:
                    break
                backend.mark_as_revoked(task_id, self._reason)
                self.count += 1
        except Exception as error:  # noqa: BLE001 - no caller depends on a result
            self.error = " ".join(f"{type(error).__name__}: {error}".split())
        finally:
            if backend is not None and backend is not self._app.backend:
                with suppress(Exception):
                    backend.client.connection_pool.disconnect()
            connections.close_all()  # of a backend that uses Django's models


class Results:
    """Stores REVOKED for the tasks that one operation discards.

    The first error, or a result backend that hangs, ends this for the whole operation: it is logged once and noted in
    the operation.
    """

    def __init__(self, lease: Lease) -> None:
        self._lease, self._operation = lease, lease.operation
        self._left = SECONDS + self._operation.requested * SECONDS_PER_TASK
        self._gave_up = False

    def revoke(self, records: Iterable[TaskRecord]) -> None:
        """Store REVOKED as the result of each task that has a result."""
        if self._gave_up:
            return
        app = celery_app()
        tasks = {record.task_id: app.tasks.get(record.name) for record in records}
        task_ids = [task_id for task_id, task in tasks.items() if task is None or not task.ignore_result]
        if not task_ids:
            return
        if _Writer.left is not None and _Writer.left.is_alive():
            self._give_up("it still hangs", 0, len(task_ids))
            return
        writer = _Writer(app, task_ids, f"discarded by {self._operation.actor}")
        writer.start()
        if not self._waited_for(writer):
            writer.is_stopped, _Writer.left = True, writer
            self._give_up("it does not answer", writer.count, len(task_ids))
        elif writer.error:
            self._give_up(writer.error, writer.count, len(task_ids))

    def _waited_for(self, writer: _Writer) -> bool:
        began = progressed = time.monotonic()
        seen = 0
        while True:
            writer.join(0.1)
            now = time.monotonic()
            if not writer.is_alive():
                self._left -= now - began
                return True
            if writer.count > seen:
                seen, progressed = writer.count, now
            if now - progressed > SILENCE or now - began > self._left:
                return False
            if self._lease.is_due:
                committed(self._lease.beat)

    def _give_up(self, why: str, stored: int, wanted: int) -> None:
        self._gave_up = True
        logger.error(
            "The result backend has no REVOKED for tasks that operation %s discarded: %s. %d of %d were stored.",
            self._operation.pk,
            why,
            stored,
            wanted,
        )
        self._lease.note(f"The result backend failed ({why[:200]}): not all results are REVOKED")


def _bounded(backend: Any) -> Any:
    """Return a result backend that does not wait long: for Redis one with short time-outs and without retries."""
    if not hasattr(backend, "connparams"):
        return backend
    own = type(backend)(app=backend.app, url=backend.url)
    own.connparams.update(socket_timeout=SILENCE, socket_connect_timeout=SILENCE, retry_on_timeout=False)
    own.always_retry = False
    own.ensure = lambda step, arguments, **_policy: step(*arguments)
    return own
