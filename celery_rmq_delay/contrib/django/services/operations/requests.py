"""Creates operations on selections of tasks, runs them and cancels them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

from django.core.exceptions import EmptyResultSet
from django.db import connections, router
from django.db.models import QuerySet, Value, Window
from django.db.models.functions import RowNumber

from .....exceptions import RmqDelayError
from ...conf import conf
from ...models import Operation, OperationItem, TaskRecord
from ...transactions import repeated
from .. import clock
from ..actors import Actor
from . import lease
from .reporting import report
from .runner import Runner

__all__ = ["cancel", "freeze", "is_inline", "report", "run"]

Kind = Operation.Kind
State = Operation.State

#: How far in the future an operation can start.
LATEST = timedelta(days=366)
#: The kinds of operation that can have canaries and a rate.
GRADUAL = frozenset({Kind.REQUEUE})


def freeze(
    kind: str,
    records: QuerySet[Any],
    *,
    actor: Actor,
    reason: str = "",
    canary: int = 0,
    rate: int | None = None,
    not_before: datetime | None = None,
    follows: Operation | None = None,
    details: dict[str, Any] | None = None,
) -> Operation:
    """Create an operation on exactly the tasks that ``records`` selects now, without running it.

    ``records`` selects from `TaskRecord` or a proxy of it; its order is the order of work. The selection is copied
    within the database, so a million tasks need no memory. Of a requeue, the first ``canary`` tasks are sent before the
    others, and ``rate`` is the number per minute. The operation does not start before the time ``not_before``;
    ``follows`` is an operation whose tasks it continues with. Raises `RmqDelayError` for invalid values.
    """
    if (canary or rate is not None) and kind not in GRADUAL:
        raise RmqDelayError(f"{Kind(kind).label}: only a requeue can have canaries or a rate. Leave them out.")
    if canary < 0 or (rate is not None and rate < 1):
        raise RmqDelayError(f"Found {canary} canaries and a rate of {rate}: write 0 or more, and 1 or more per minute.")
    if not_before is not None and (problem := schedule_problem(not_before)):
        raise RmqDelayError(problem)
    using = router.db_for_write(Operation)

    def step() -> Operation:
        operation: Operation = Operation.objects.using(using).create(
            kind=kind,
            user=actor.user,
            actor=actor.name[:150],
            reason=reason,
            canary=canary,
            rate=rate,
            not_before=not_before,
            follows=follows,
            details=details or {},
        )
        operation.requested = _copy(operation, records, using)
        operation.save(using=using, update_fields=["requested"])
        return operation

    return repeated(step)


def schedule_problem(moment: datetime) -> str:
    """Return why an operation cannot be scheduled for a time; an empty text where it can."""
    away = moment - clock.now()
    if timedelta(minutes=-1) < away < LATEST:
        return ""
    found = moment.isoformat(sep=" ", timespec="minutes")
    return f"Found {found}: choose a time from now on, within {LATEST.days} days."


def _copy(operation: Operation, records: QuerySet[Any], using: str) -> int:
    """Copy the selection within the database; return the number of tasks."""
    order: Any = [*(records.query.order_by or ()), "pk"]
    wanted = records.values("pk") if records.query.is_sliced else records.order_by().values("pk")
    rows = TaskRecord.objects.using(using).filter(pk__in=wanted).order_by()
    constants = {
        "operation_id": operation.pk,
        "outcome": OperationItem.Outcome.PENDING,
        "detail": "",
        "is_canary": False,
    }
    chosen = (
        rows.annotate(position=Window(RowNumber(), order_by=order))
        .annotate(**{f"item_{name}": Value(value) for name, value in constants.items()})
        .values_list("pk", "generation", "position", *(f"item_{name}" for name in constants))
    )
    try:
        _keep(rows, using)
        selected, parameters = chosen.query.get_compiler(using).as_sql()
    except EmptyResultSet:  # no query is needed
        return 0
    quote = connections[using].ops.quote_name
    columns = ", ".join(quote(name) for name in ("record_id", "generation", "position", *constants))
    with connections[using].cursor() as cursor:
        cursor.execute(f"INSERT INTO {quote(OperationItem._meta.db_table)} ({columns}) {selected}", parameters)
        count = int(cursor.rowcount)
    operation.items.using(using).filter(position__lte=operation.canary).update(is_canary=True)
    return count


def _keep(rows: QuerySet[TaskRecord], using: str) -> None:
    """Keep a prune from deleting tasks until this transaction ends: PostgreSQL would refuse items of deleted tasks.

    Raises `EmptyResultSet` where no query is needed.
    """
    if connections[using].vendor != "postgresql":
        return
    selected, parameters = rows.values("pk").query.get_compiler(using).as_sql()
    with connections[using].cursor() as cursor:
        # Rows that are being deleted are skipped. Others can still be changed: Django's own locks would exclude that.
        locked = f"{selected} FOR KEY SHARE SKIP LOCKED"
        cursor.execute(f"SELECT count(*) FROM ({locked}) kept", parameters)  # noqa: S608 - SQL of Django's own


def is_inline(operation: Operation) -> bool:
    """Return whether an operation may run within a request; `rmq_delay_operate` runs the others."""
    is_small = operation.requested <= conf().inline_limit and not operation.canary and operation.rate is None
    return is_small and operation.not_before is None


def run(operation: Operation, *, stop: Callable[[], bool] | None = None) -> Operation:
    """Run an operation, and return it with its results.

    Raises `OperationBusyError` where it has begun and the heartbeat of its runner is recent, and where it is scheduled
    for later. Every step is committed before the next, so this must not be called within a transaction (with
    `ATOMIC_REQUESTS`, decorate the view with `non_atomic_requests`).

    ``stop`` is called between two tasks; once it returns True, another process can continue the operation. With
    ``stop`` a lost connection to the broker is retried; without it, all remaining tasks fail at once.
    """
    return Runner(operation, stop).run()


def cancel(operation: Operation, actor: Actor) -> Operation:
    """Request the end of an operation. Finished tasks and finished operations stay as they are."""
    details = {**operation.details, "cancelled_by": actor.name}
    if not lease.cancel_waiting(operation, details):
        going = Operation.objects.filter(pk=operation.pk, state__in=[State.RUNNING, State.CANARY])
        going.update(state=State.CANCELLING, details=details)
    operation.refresh_from_db()
    return operation
