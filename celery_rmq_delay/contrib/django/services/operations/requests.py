"""Creates operations on selections of tasks, runs them and cancels them."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from datetime import datetime, timedelta
from typing import Any

from django.core.exceptions import EmptyResultSet
from django.db import connections, router
from django.db.models import OrderBy, QuerySet, Value, Window
from django.db.models.functions import RowNumber

from .....exceptions import RmqDelayError
from ...conf import conf
from ...models import Operation, OperationItem, TaskRecord
from ...transactions import repeated
from .. import clock
from ..actors import Actor
from . import lease
from .action import of_kind, schedule_problem
from .reporting import report as report
from .runner import Runner

Kind = Operation.Kind
State = Operation.State
Outcome = OperationItem.Outcome

#: The time for which a draft is kept, and the margin before its deletion in which it cannot be confirmed any more.
DRAFTS_LAST, _MARGIN = timedelta(days=1), timedelta(minutes=5)


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
    draft: bool = False,
) -> Operation:
    """Create an operation on exactly the tasks that ``records`` selects now, without running it.

    ``records`` selects from `TaskRecord` or a proxy of it; its order is the order of work. The selection is copied
    within the database, so a million tasks need no memory. Of a requeue, the first ``canary`` tasks are sent before the
    others, and ``rate`` is the number per minute. The operation does not start before the time ``not_before``;
    ``follows`` is an operation whose tasks it continues with. A ``draft`` cannot run before `confirm`, and only
    `Operation.with_drafts` finds it. Raises `RmqDelayError` for invalid values.
    """
    options: dict[str, Any] = {"reason": reason, "canary": canary, "rate": rate, "not_before": not_before}
    _check(kind, **options)
    using = router.db_for_write(Operation)

    def step() -> Operation:
        operation: Operation = Operation.objects.using(using).create(
            kind=kind,
            state=State.DRAFT if draft else State.PENDING,
            user=actor.user,
            actor=actor.name[:150],
            follows=follows,
            details=details or {},
            **options,
        )
        operation.requested = _copy(operation, records, using)
        _mark_canaries(operation)
        operation.save(using=using, update_fields=["requested"])
        return operation

    return repeated(step)


def confirm(draft: Operation, *, details: dict[str, Any] | None = None, **options: Any) -> bool:
    """Make a draft an operation that can run; return whether it was a draft, and less than a day old.

    ``options`` are reason, canary, rate and not_before of `freeze`; ``details`` are added to those of the draft. Of
    several calls, also at the same time, one returns True. Raises `RmqDelayError` for invalid values.
    """
    _check(draft.kind, **options)

    def step() -> bool:
        now = clock.now()
        young = {"created_at__gt": now - DRAFTS_LAST + _MARGIN}
        found = Operation.with_drafts.filter(pk=draft.pk, state=State.DRAFT, **young).update(
            state=State.PENDING, details={**draft.details, **(details or {})}, created_at=now, **options
        )
        if found:
            draft.refresh_from_db()
            _mark_canaries(draft)
        return bool(found)

    return repeated(step)


def _check(
    kind: str, *, canary: int = 0, rate: int | None = None, not_before: datetime | None = None, reason: str = ""
) -> None:
    action = of_kind(kind)
    if (canary or rate is not None) and not (action and action.can_be_gradual):
        raise RmqDelayError(f"{Kind(kind).label}: only a requeue can have canaries or a rate. Leave them out.")
    if canary < 0 or (rate is not None and rate < 1):
        raise RmqDelayError(f"Found {canary} canaries and a rate of {rate}: write 0 or more, and 1 or more per minute.")
    if not_before is not None and (problem := schedule_problem(not_before)):
        raise RmqDelayError(problem)


def _copy(operation: Operation, records: QuerySet[Any], using: str) -> int:
    wanted = records.values("pk") if records.query.is_sliced else records.order_by().values("pk")
    rows = TaskRecord.objects.using(using).filter(pk__in=wanted).order_by()
    constants = {"operation_id": operation.pk, "outcome": Outcome.PENDING, "detail": "", "is_canary": False}
    chosen = (
        rows.annotate(position=Window(RowNumber(), order_by=_order(records)))
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
        return int(cursor.rowcount)


def _order(records: QuerySet[Any]) -> list[Any]:
    """Return the order of a queryset with the primary key at the end, also of a reversed one."""
    order = [*(records.query.order_by or ()), "pk"]
    if records.query.standard_ordering:
        return order
    return [_reversed(each) for each in order]


def _reversed(term: Any) -> Any:
    if isinstance(term, str):
        return term[1:] if term.startswith("-") else f"-{term}"
    reverse = copy(term) if isinstance(term, OrderBy) else term.asc()
    return reverse.reverse_ordering()


def _mark_canaries(operation: Operation) -> None:
    if operation.canary:
        operation.items.filter(position__lte=operation.canary).update(is_canary=True)


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
    this, waiting = Operation.objects.filter(pk=operation.pk), lease.Lease(operation)

    def step() -> bool:
        """Return whether it had no runner."""
        waited = waiting.take_to_cancel()
        if waited or this.filter(state__in=[State.RUNNING, State.CANARY]).update(state=State.CANCELLING):
            # The update has locked the row: nobody else changes the details that are read now.
            this.update(details={**this.values_list("details", flat=True).get(), "cancelled_by": actor.name})
        return waited

    if repeated(step):
        waiting.finish(State.CANCELLED, Outcome.CANCELLED)
    operation.refresh_from_db()
    return operation
