"""Runs a step again while the database is away, or where others have rolled it back."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from typing import TypeVar

from django.db import IntegrityError, InterfaceError, OperationalError, connections, router, transaction

from ...exceptions import RmqDelayError
from .models import Operation

logger = logging.getLogger(__name__)

#: Errors of Django for an unreachable database or a lost connection.
DATABASE_AWAY = (OperationalError, InterfaceError)
#: Seconds for which a step is retried, so that outcomes of published messages survive a restart of the database.
PATIENCE = 30.0
_PAUSE = 0.2
#: SQLSTATEs of transactions that PostgreSQL rolls back because of others: serialization failure and deadlock.
_BECAUSE_OF_OTHERS = ("40001", "40P01")
#: Maximum number of attempts of such a transaction.
_TIMES = 10

Result = TypeVar("Result")


def retried(
    step: Callable[[], Result], passes: tuple[type[Exception], ...], wait: Callable[[Exception], object]
) -> Result:
    """Return the result of ``step``, repeated after errors in ``passes``; ``wait`` pauses, or raises to give up."""
    while True:
        try:
            return step()
        except passes as error:  # noqa: PERF203 - each turn is a transaction
            wait(error)


def committed(step: Callable[[], Result]) -> Result:
    """Return the result of ``step`` after its commit. It may run more than once, even after a commit.

    Raises `RmqDelayError` within a transaction: a rollback could undo the rows, but not the published messages.
    """
    using = router.db_for_write(Operation)
    deadline = time.monotonic() + PATIENCE

    def turn() -> Result:
        with _durable(using):
            return step()

    def wait(error: Exception) -> None:
        # Within a test's own transaction no step can be retried.
        if time.monotonic() > deadline or connections[using].in_atomic_block:
            raise error
        logger.warning("The database failed in a step of an operation: trying again", exc_info=error)
        connections[using].close_if_unusable_or_obsolete()
        time.sleep(_PAUSE)

    return retried(turn, DATABASE_AWAY, wait)


def repeated(step: Callable[[], Result]) -> Result:
    """Return the result of ``step``, a transaction of rows that others change at the same time.

    It runs again only where it was rolled back because of others: by a deadlock, or because a row that it refers to
    was deleted. Within a transaction it runs once.
    """
    using = router.db_for_write(Operation)
    turns = count(1)

    def turn() -> Result:
        with transaction.atomic(using=using):
            return step()

    def wait(error: Exception) -> None:
        is_lock = getattr(error.__cause__, "sqlstate", None) in _BECAUSE_OF_OTHERS
        is_by_others = is_lock or isinstance(error, IntegrityError)
        if connections[using].in_atomic_block or not is_by_others or next(turns) == _TIMES:
            raise error
        logger.info("A transaction was rolled back because of others: trying again. %s", error)

    return retried(turn, (OperationalError, IntegrityError), wait)


@contextmanager
def _durable(using: str) -> Iterator[None]:
    with ExitStack() as stack:
        try:
            stack.enter_context(transaction.atomic(using=using, durable=True))
        except RuntimeError as error:
            raise RmqDelayError(
                "An operation cannot run within a transaction: each of its steps is committed before the next. With "
                "ATOMIC_REQUESTS, decorate the view with django.db.transaction.non_atomic_requests."
            ) from error
        yield
