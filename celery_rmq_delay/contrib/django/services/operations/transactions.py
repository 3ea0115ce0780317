"""Runs steps in their own transactions, with retries while the database is busy or unreachable."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TypeVar

from django.db import InterfaceError, OperationalError, connections, router, transaction

from .....exceptions import RmqDelayError
from ...models import Operation

logger = logging.getLogger(__name__)

#: Errors of Django for an unreachable database or a lost connection.
DATABASE_AWAY = (OperationalError, InterfaceError)
#: Seconds for which a step is retried, so that outcomes of published messages survive a restart of the database.
PATIENCE = 30.0
_PAUSE = 0.2

Result = TypeVar("Result")


def committed(step: Callable[[], Result]) -> Result:
    """Return the result of ``step`` after its commit. It may run more than once, even after a commit.

    Raises `RmqDelayError` within a transaction: a rollback could undo the rows, but not the published messages.
    """
    using = router.db_for_write(Operation)
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            with _durable(using):
                return step()
        except DATABASE_AWAY:  # noqa: PERF203 - each turn is a transaction
            # Within a test's own transaction no step can be retried.
            if time.monotonic() > deadline or connections[using].in_atomic_block:
                raise
            logger.warning("The database failed in a step of an operation: trying again", exc_info=True)
            connections[using].close_if_unusable_or_obsolete()
            time.sleep(_PAUSE)


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
