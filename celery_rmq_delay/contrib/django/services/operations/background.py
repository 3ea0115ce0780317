"""Background operations: which are next, and the loop of `rmq_delay_operate` that runs several side by side."""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from datetime import datetime, timedelta

from django.db import close_old_connections, connections
from django.db.models import Q

from .....exceptions import OperationBusyError
from .....fence import process_name
from ...conf import conf
from ...models import Operation, OperatorStatus
from ...transactions import DATABASE_AWAY
from .. import clock
from .lease import GOING, STALE_AFTER, may_start
from .reporting import report
from .requests import run

logger = logging.getLogger(__name__)

#: The most operations with canaries or a rate that one process runs at a time: they mostly pause.
GRADUAL_AT_ONCE = 16
#: The most other operations that one process runs at a time.
OTHERS_AT_ONCE = 4
#: The condition of operations that mostly pause.
GRADUAL = Q(canary__gt=0) | Q(rate__isnull=False)
#: Seconds between two searches for an operation.
_POLL_EVERY = 1.0
#: Seconds between two heartbeats.
_BEAT_EVERY = 10.0
#: Rows of processes that were killed are deleted after so long.
_FORGOTTEN_AFTER = timedelta(days=1)


def not_inline() -> Q:
    """Return the condition of operations that no request runs; see `requests.is_inline`."""
    return GRADUAL | Q(requested__gt=conf().inline_limit) | Q(not_before__isnull=False)


def next_operation(among: Q = Q(), but: Iterable[int] = ()) -> Operation | None:  # noqa: B008 - never changed
    """Return the oldest operation that may start and has no runner; inline ones only after their page had time to.

    ``among`` is a condition, ``but`` are operations to leave out.
    """
    now = clock.now()
    old = now - STALE_AFTER
    free = not_inline() | Q(started_at__isnull=False) | Q(created_at__lt=old)
    waits = Q(state=Operation.State.PENDING) & free & may_start(now)
    orphaned = Q(state__in=GOING, heartbeat_at__lt=old)
    found = Operation.objects.filter(waits | orphaned, among).exclude(pk__in=list(but))
    return found.order_by("created_at", "pk").first()


def operate(stop: Callable[[], bool], *, once: bool = False) -> None:
    """Run operations until ``stop`` returns True, or with ``once`` until there is none. Several processes can do so.

    Each operation has a thread, with its own connections: one that pauses for its rate or its canaries, or waits for
    the broker, does not block the others.
    """
    with presence() as beat, closing(_Crew(stop)) as crew:
        while not stop():
            close_old_connections()
            try:
                beat()
                if crew.start_next():
                    continue
                if once and crew.is_idle():
                    return
            except DATABASE_AWAY as error:
                logger.warning("The database cannot be reached: trying again. %s", error)
            crew.wait(_POLL_EVERY)


class _Crew:
    def __init__(self, stop: Callable[[], bool]) -> None:
        self._stop, self._ending, self._ended = stop, threading.Event(), threading.Event()
        self._gradual: dict[int, threading.Thread] = {}
        self._others: dict[int, threading.Thread] = {}
        #: Operations that a lost database has interrupted.
        self._left: set[int] = set()

    def close(self) -> None:
        """Hand all operations over."""
        self._ending.set()
        for thread in (*self._gradual.values(), *self._others.values()):
            thread.join()

    def start_next(self) -> bool:
        """Start the oldest operation that has a place; return whether there was one."""
        for threads, most, among in (
            (self._others, OTHERS_AT_ONCE, ~GRADUAL),
            (self._gradual, GRADUAL_AT_ONCE, GRADUAL),
        ):
            for key in [key for key, thread in threads.items() if not thread.is_alive()]:
                del threads[key]
            if len(threads) < most and (operation := next_operation(among, but=threads)) is not None:
                thread = threading.Thread(target=self._run, args=(operation,), name=f"operation {operation.pk}")
                threads[operation.pk] = thread
                thread.start()
                return True
        return False

    def is_idle(self) -> bool:
        """Return whether no operation runs, and none that was interrupted is unfinished."""
        is_left = Operation.objects.filter(pk__in=self._left, state__in=GOING).exists()
        return not self._gradual and not self._others and not is_left

    def wait(self, seconds: float) -> None:
        """Wait until an operation ends, for at most ``seconds``."""
        self._ended.wait(seconds)
        self._ended.clear()

    def _run(self, operation: Operation) -> None:
        logger.info("Operation %s begins: %s", operation.pk, operation)
        try:
            run(operation, stop=lambda: self._stop() or self._ending.is_set())
            logger.info("Operation %s: %s", operation.pk, report(operation))
        except OperationBusyError:
            pass  # another process runs it
        except DATABASE_AWAY as error:
            self._left.add(operation.pk)
            logger.warning("The database cannot be reached: trying again. %s", error)
        except Exception:
            logger.exception("Operation %s failed", operation.pk)
        finally:
            connections.close_all()
            self._ended.set()


def count_running(now: datetime) -> int:
    """Return how many processes of ``rmq_delay_operate`` have sent a heartbeat within the last minute."""
    return OperatorStatus.objects.filter(heartbeat_at__gt=now - STALE_AFTER).count()


@contextmanager
def presence() -> Iterator[Callable[[], None]]:
    """Keep a row of this process in the block; yield a function that renews its heartbeat if it is time."""
    # Containers can share a host name, and have the same process ids.
    name, began, due = f"{process_name()}:{uuid.uuid4().hex[:8]}", clock.now(), 0.0

    def beat() -> None:
        nonlocal due
        if time.monotonic() < due:
            return
        now = clock.now()
        OperatorStatus.objects.filter(heartbeat_at__lt=now - _FORGOTTEN_AFTER).delete()
        created = {"heartbeat_at": now, "started_at": began}
        OperatorStatus.objects.update_or_create(name=name, defaults={"heartbeat_at": now}, create_defaults=created)
        due = time.monotonic() + _BEAT_EVERY

    try:
        yield beat
    finally:
        try:
            OperatorStatus.objects.filter(name=name).delete()
        except DATABASE_AWAY:
            logger.warning("The row of this process stays: its heartbeat ends", exc_info=True)
