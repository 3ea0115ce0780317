"""Operations that run outside of a page: which one is next, and the loop of `rmq_delay_operate`."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from django.db import close_old_connections
from django.db.models import Q
from django.utils import timezone

from .....exceptions import OperationBusyError
from ...conf import conf
from ...models import Operation
from .lease import GOING, STALE_AFTER
from .reporting import report
from .requests import run
from .transactions import DATABASE_AWAY

logger = logging.getLogger(__name__)

#: Seconds between two looks for an operation.
_LOOK = 1.0


def next_operation() -> Operation | None:
    """Return the oldest operation that nobody runs; those that a page runs at once only when no page has done so."""
    old = timezone.now() - STALE_AFTER
    not_inline = Q(requested__gt=conf().inline_limit) | Q(canary__gt=0) | Q(rate__isnull=False)
    waits = Q(state=Operation.State.PENDING) & (not_inline | Q(started_at__isnull=False) | Q(created_at__lt=old))
    orphaned = Q(state__in=GOING, heartbeat_at__lt=old)
    return Operation.objects.filter(waits | orphaned).order_by("created_at", "pk").first()


def operate(stop: Callable[[], bool], *, once: bool = False) -> None:
    """Run operations until ``stop`` returns True, or ``once``: until there is none. Several processes can do so."""
    left: Operation | None = None
    while not stop():
        close_old_connections()
        operation = None
        try:
            operation = next_operation()
            if operation is not None:
                _run(operation, stop)
                continue
        except DATABASE_AWAY as error:
            logger.warning("The database is away: trying again. %s", error)
            left = operation or left
        else:
            if once and not _goes_on(left):
                return
        time.sleep(_LOOK)


def _run(operation: Operation, stop: Callable[[], bool]) -> None:
    logger.info("Operation %s begins: %s", operation.pk, operation)
    try:
        run(operation, stop=stop)
    except OperationBusyError:
        return  # another process was quicker
    except DATABASE_AWAY:
        raise
    except Exception:
        logger.exception("Operation %s failed", operation.pk)
        return
    logger.info("Operation %s: %s", operation.pk, report(operation))


def _goes_on(operation: Operation | None) -> bool:
    """Return whether an operation that a lost database has broken off is still to be taken over, or somebody has."""
    return operation is not None and Operation.objects.filter(pk=operation.pk, state__in=GOING).exists()
