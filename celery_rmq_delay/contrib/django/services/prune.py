"""Retention: deletes old rows in batches with a short transaction each.

Tasks that are being requeued stay, and so do those that an operation has yet to process; parked and running ones stay
until their history expires.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta
from datetime import timezone as timezones
from typing import Any

from django.apps import apps
from django.db import router, transaction
from django.db.models import Exists, F, OuterRef, Q, QuerySet
from django.utils import timezone

from ..conf import Conf, conf
from ..models import (
    Attempt,
    FailureGroup,
    LookupValue,
    Operation,
    OperationItem,
    Tally,
    TaskRecord,
    TaskState,
    UnreadableMessage,
)
from .operations.requests import DRAFTS_LAST

#: Rows of one transaction.
BATCH = 1_000

#: The slot of the rows that old tallies are summed in.
FOLDED = datetime(1970, 1, 1, tzinfo=timezones.utc)
_COUNTED = ("parked", "recovered", "exhausted", "succeeded")

_Expired = tuple[str, QuerySet[Any]]


def prune(*, dry_run: bool = False, batch: int = BATCH) -> dict[str, int]:
    """Delete rows older than the settings KEEP_* allow; return the number of rows by kind. ``dry_run`` only counts.

    It can run at any time, in parallel with collectors, operations and other prunes, and again after an interruption.
    """
    now = timezone.now()
    done = {}
    for name, rows in _expired(conf(), now):
        if dry_run:
            done[name] = rows.count()
        else:
            done[name] = _delete(_unreferenced(rows, batch) if rows.model is Operation else rows, batch)
    history = conf().keep_history_days
    if history is not None:
        old = Tally.objects.filter(slot__gt=FOLDED, slot__lt=now - timedelta(days=history))
        done["tallies"] = old.count() if dry_run else _in_batches(old.order_by("slot"), batch, _fold)
    return done


def _expired(settings: Conf, now: datetime) -> Iterator[_Expired]:
    """Yield the expired rows with the name that the command shows, children before their parents."""
    # A requeued task without an event since is still counted as exhausted.
    unconfirmed = Q(state=TaskState.REQUEUED) & ~Q(call_digest="")
    for name, days, wanted in (
        (
            "recovered and requeued tasks",
            settings.keep_recovered_days,
            Q(state__in=[TaskState.RECOVERED, TaskState.REQUEUED]) & ~unconfirmed,
        ),
        ("discarded tasks", settings.keep_discarded_days, Q(state=TaskState.DISCARDED)),
        ("exhausted tasks", settings.keep_exhausted_days, Q(state=TaskState.EXHAUSTED) | unconfirmed),
    ):
        if days is not None:
            changed_before = wanted & Q(changed_at__lt=now - timedelta(days=days))
            yield name, _untouched().filter(changed_before).order_by("changed_at")
    drafts = Operation.with_drafts.filter(state=Operation.State.DRAFT, created_at__lt=now - DRAFTS_LAST)
    if drafts.exists():
        yield "items of drafts", OperationItem.objects.filter(operation__in=drafts)
        yield "drafts of operations", drafts
    if settings.keep_exhausted_days is not None:
        before = now - timedelta(days=settings.keep_exhausted_days)
        yield "unreadable messages", UnreadableMessage.objects.filter(received_at__lt=before)
    if settings.keep_history_days is not None:
        yield from _history(now - timedelta(days=settings.keep_history_days))


def _history(before: datetime) -> Iterator[_Expired]:
    lost = _untouched().filter(
        Q(due_at=None) | Q(due_at__lt=before), state__in=[TaskState.PARKED, TaskState.RUNNING], changed_at__lt=before
    )
    yield "parked and running tasks without later events", lost.order_by("changed_at")
    yield "attempts", Attempt.objects.filter(occurred_at__lt=before).order_by("occurred_at")
    over = Q(state__in=[each for each in Operation.State if Operation(state=each).is_over], finished_at__lt=before)
    operations = Operation.objects.filter(over)
    yield "items of operations", OperationItem.objects.filter(operation__in=operations)
    yield "operations", operations
    if apps.is_installed("django.contrib.admin"):
        # Oldest first by the primary key: the table has no index on the time.
        entries = apps.get_model("admin", "LogEntry")._default_manager
        ours = entries.filter(content_type__app_label=TaskRecord._meta.app_label, action_time__lt=before)
        yield "entries in Django's log", ours.order_by("pk")
    tasks = TaskRecord.objects.filter(state__in=TaskState.values, worker=OuterRef("value"))
    yield "workers without tasks", LookupValue.objects.filter(~Exists(tasks), kind=LookupValue.Kind.WORKER)
    empty = ~Exists(TaskRecord.objects.filter(failure_group=OuterRef("pk")))
    yield "failure groups", FailureGroup.objects.filter(empty, last_seen__lt=before, note="", muted=False)


def _untouched() -> QuerySet[TaskRecord]:
    """Return the tasks that no operation has yet to process."""
    pending = OperationItem.objects.filter(record=OuterRef("pk"), outcome=OperationItem.Outcome.PENDING)
    return TaskRecord.objects.filter(~Exists(pending))


def _unreferenced(operations: QuerySet[Operation], batch: int) -> QuerySet[Operation]:
    """Remove the references to operations; return the operations without one: references in locked rows stay.

    The deletion of an operation would change the rows that refer to it, in any order, and could block processes that
    lock these rows in another order.
    """
    detached = TaskRecord.objects.filter(operation__in=operations).only("pk")
    _in_batches(detached, batch, lambda found: _by_key(found).update(operation=None))
    detached_followers = Operation.with_drafts.filter(follows__in=operations).only("pk")
    _in_batches(detached_followers, batch, lambda found: _by_key(found).update(follows=None))
    items = OperationItem.objects.filter(operation=OuterRef("pk"))
    tasks = TaskRecord.objects.filter(operation=OuterRef("pk"))
    followers = Operation.with_drafts.filter(follows=OuterRef("pk"))
    return operations.filter(~Exists(items), ~Exists(tasks), ~Exists(followers))


def _delete(rows: QuerySet[Any], batch: int) -> int:
    return _in_batches(rows.only("pk"), batch, lambda found: _by_key(found).delete())


def _by_key(found: Sequence[Any]) -> QuerySet[Any]:
    rows: QuerySet[Any] = type(found[0])._base_manager.filter(pk__in=[row.pk for row in found])
    return rows


def _fold(found: Sequence[Tally]) -> None:
    """Add tallies to the row of their queue and task, so that the all-time totals stay the same."""
    sums: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for tally in found:
        sums[tally.queue, tally.name].update({name: getattr(tally, name) for name in _COUNTED})
    folded = [Tally(slot=FOLDED, queue=queue, name=name) for queue, name in sorted(sums)]
    Tally.objects.bulk_create(folded, ignore_conflicts=True)
    for queue, name in sorted(sums):
        Tally.objects.filter(slot=FOLDED, queue=queue, name=name, fingerprint="").update(
            **{column: F(column) + count for column, count in sums[queue, name].items()}
        )
    Tally.objects.filter(pk__in=[tally.pk for tally in found]).delete()


def _in_batches(rows: QuerySet[Any], batch: int, work: Callable[[Sequence[Any]], object]) -> int:
    """Call ``work`` with locked rows, each batch in its own transaction; return the number of rows.

    Rows that others have locked are skipped until the next run.
    """
    using, count = router.db_for_write(rows.model), 0
    locked = rows.using(using).select_for_update(skip_locked=True, of=("self",))
    while True:
        with transaction.atomic(using):
            found = list(locked[:batch])
            if not found:
                return count
            work(found)
        count += len(found)
