"""Steps that are committed one by one, and tried again where the database was busy or away for a moment."""

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

#: What Django raises where the database cannot be reached, or has gone away.
DATABASE_AWAY = (OperationalError, InterfaceError)
#: Seconds for which a step is tried again: what was published is not forgotten because the database restarts.
PATIENCE = 30.0
_PAUSE = 0.2

Result = TypeVar("Result")


def committed(step: Callable[[], Result]) -> Result:
    """Return what ``step`` returns, when all it did is committed. It may run more than once: even after a commit.

    Raises `RmqDelayError` within a transaction: of what is published next, only the rows would be undone.
    """
    using = router.db_for_write(Operation)
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            with _durable(using):
                return step()
        except DATABASE_AWAY:  # noqa: PERF203 - each turn is a transaction
            # In a test's own transaction nothing can be tried again.
            if time.monotonic() > deadline or connections[using].in_atomic_block:
                raise
            logger.warning("The database did not do a step of an operation: again", exc_info=True)
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
