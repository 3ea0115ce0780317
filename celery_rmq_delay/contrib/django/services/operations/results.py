"""Results of discarded tasks: REVOKED in the result backend, within a time limit."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from celery import Celery
from django.db import connections

from ...broker import celery_app
from ...models import TaskRecord
from ...transactions import committed
from .lease import Lease

logger = logging.getLogger(__name__)

#: Seconds without a stored result after which the result backend counts as hanging.
SILENCE = 5.0
#: Seconds for all results of an operation: base timeout, plus this much per task.
SECONDS, SECONDS_PER_TASK = 10.0, 0.02


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
        """Return whether the thread has ended within the limits."""
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
