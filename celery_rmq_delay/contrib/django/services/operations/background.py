"""Background operations: the next one to run, and the loop of `rmq_delay_operate`."""

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

#: Seconds between two searches for an operation.
_POLL_EVERY = 1.0


def next_operation() -> Operation | None:
    """Return the oldest operation without a runner; inline ones only after the page had time to run them."""
    old = timezone.now() - STALE_AFTER
    not_inline = Q(requested__gt=conf().inline_limit) | Q(canary__gt=0) | Q(rate__isnull=False)
    waits = Q(state=Operation.State.PENDING) & (not_inline | Q(started_at__isnull=False) | Q(created_at__lt=old))
    orphaned = Q(state__in=GOING, heartbeat_at__lt=old)
    return Operation.objects.filter(waits | orphaned).order_by("created_at", "pk").first()


def operate(stop: Callable[[], bool], *, once: bool = False) -> None:
    """Run operations until ``stop`` returns True, or with ``once`` until there is none. Several processes can do so."""
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
            logger.warning("The database cannot be reached: trying again. %s", error)
            left = operation or left
        else:
            if once and not _goes_on(left):
                return
        time.sleep(_POLL_EVERY)


def _run(operation: Operation, stop: Callable[[], bool]) -> None:
    logger.info("Operation %s begins: %s", operation.pk, operation)
    try:
        run(operation, stop=stop)
    except OperationBusyError:
        return  # another process runs it
    except DATABASE_AWAY:
        raise
    except Exception:
        logger.exception("Operation %s failed", operation.pk)
        return
    logger.info("Operation %s: %s", operation.pk, report(operation))


def _goes_on(operation: Operation | None) -> bool:
    """Return whether an operation that a lost database has interrupted is unfinished."""
    return operation is not None and Operation.objects.filter(pk=operation.pk, state__in=GOING).exists()
