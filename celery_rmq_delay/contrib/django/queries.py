"""Queries of lists, tiles and charts; their cost is bounded, however large the tables are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any

from django.core.exceptions import EmptyResultSet
from django.db import connections
from django.db.models import (
    BigIntegerField,
    BooleanField,
    Case,
    DateTimeField,
    F,
    Func,
    OrderBy,
    OuterRef,
    Q,
    QuerySet,
    Subquery,
    Sum,
    Value,
    When,
    Window,
)
from django.db.models.functions import RowNumber, TruncHour
from django.utils.formats import number_format

from .models import CollectorStatus, LookupValue, Tally, TaskRecord, TaskState

#: A task counts as overdue so long after it was due: its next event comes when its attempt has ended.
OVERDUE_AFTER = timedelta(minutes=1)
#: The period of "due soon" on the tiles.
SOON = timedelta(minutes=5)
HOURS = 24
#: The most values of a filter in the sidebar.
MAX_CHOICES = 200
#: A collector without a heartbeat for so long is not running.
COLLECTOR_SILENT_AFTER = timedelta(minutes=1)
#: A difference between delay queues and table that lasts so long is shown.
DIFFERS_AFTER = timedelta(minutes=10)


@dataclass(frozen=True)
class Capped:
    """A count that stops after ``limit``."""

    number: int
    limit: int

    @property
    def is_more(self) -> bool:
        """Whether there are more than ``limit``."""
        return self.number > self.limit

    def __str__(self) -> str:
        if self.is_more:
            return f"more than {grouped(self.limit)}"
        return grouped(self.number)


def grouped(number: int) -> str:
    """Return a number with the thousands separators of the active language."""
    return number_format(number, force_grouping=True)


def plural(count: int, one: str, many: str) -> str:
    """Return the words that go with a number: ``one`` with 1, else ``many``."""
    return one if count == 1 else many


def capped_counts(cap: int, **wanted: QuerySet[Any]) -> dict[str, Capped]:
    """Count each queryset, each up to ``cap``, in one query of the database."""
    using = next(iter(wanted.values())).db
    connection = connections[using]
    parts, params = [], []
    for queryset in wanted.values():
        rows = queryset.order_by().values("pk")[: cap + 1]
        try:
            sql, given = rows.query.get_compiler(connection=connection).as_sql()
        except EmptyResultSet:
            parts.append("0")
            continue
        parts.append(f"(SELECT COUNT(*) FROM ({sql}) counted)")  # noqa: S608 - SQL of Django's own
        params += given
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {', '.join(parts)}", params)
        numbers = cursor.fetchone()
    return {name: Capped(number, cap) for name, number in zip(wanted, numbers, strict=True)}


def overdue(now: datetime) -> Q:
    """Return the condition of parked tasks that are overdue at ``now``."""
    return Q(state=TaskState.PARKED, due_at__lt=now - OVERDUE_AFTER)


def due_soon(now: datetime) -> Q:
    """Return the condition of parked tasks that are due within `SOON`, and not overdue."""
    return Q(state=TaskState.PARKED, due_at__gte=now - OVERDUE_AFTER, due_at__lt=now + SOON)


@dataclass(frozen=True)
class Tiles:
    """The counts above each list."""

    parked: Capped
    due_soon: Capped
    overdue: Capped
    exhausted: Capped
    #: Those that were exhausted in the last 24 hours.
    exhausted_lately: Capped
    unknown: Capped
    #: The exhausted task that has been exhausted for longest.
    oldest: TaskRecord | None


def tiles(cap: int, now: datetime) -> Tiles:
    """Return the counts, with two queries."""
    records = TaskRecord.objects.all()
    exhausted = records.filter(state=TaskState.EXHAUSTED)
    counts = capped_counts(
        cap,
        parked=records.filter(state=TaskState.PARKED),
        due_soon=records.filter(due_soon(now)),
        overdue=records.filter(overdue(now)),
        exhausted=exhausted,
        exhausted_lately=exhausted.filter(exhausted_at__gte=now - timedelta(hours=HOURS)),
        unknown=records.filter(state=TaskState.UNKNOWN),
    )
    oldest = exhausted.filter(exhausted_at__isnull=False).order_by("exhausted_at").only("exhausted_at")
    return Tiles(**counts, oldest=oldest[:1].first())


#: The columns of a tally that charts show.
_SERIES = ("parked", "exhausted", "recovered")


@dataclass(frozen=True)
class Hour:
    """The counts of the hour that begins at ``start``."""

    start: datetime
    parked: int
    exhausted: int
    recovered: int


def last_hours(now: datetime) -> list[Hour]:
    """Return the last 24 hours, the current one last."""
    rows = Tally.objects.filter(slot__gte=_starts(now)[0]).order_by().values_list("slot").annotate(*_hour_sums())
    return _hours(now, rows)


@dataclass(frozen=True)
class GroupFigures:
    """The tallies of a failure group: the last 24 hours, and how many tasks were exhausted in each window, by name."""

    hours: list[Hour]
    exhausted: dict[str, int]


def group_figures(
    now: datetime, fingerprints: Sequence[str], windows: Mapping[str, timedelta]
) -> dict[str, GroupFigures]:
    """Return the figures of failure groups by fingerprint, in one query; ``windows`` are periods that end now."""
    first = _starts(now)[0]
    # Of the time before the last 24 hours only the sums are needed: one row instead of one for each hour.
    recent = Case(When(slot__gte=first, then=F("slot")), output_field=DateTimeField())
    sums = [Sum("exhausted", filter=Q(slot__gte=now - length), default=0) for length in windows.values()]
    rows = (
        Tally.objects.filter(fingerprint__in=fingerprints, slot__gte=min(first, now - max(windows.values())))
        .order_by()
        .annotate(its_hour=TruncHour(recent, tzinfo=timezone.utc))
        .values_list("fingerprint", "its_hour")
        .annotate(*_hour_sums(), **dict(zip(windows, sums, strict=True)))
    )
    hours: dict[str, list[Any]] = {fingerprint: [] for fingerprint in fingerprints}
    exhausted = {fingerprint: dict.fromkeys(windows, 0) for fingerprint in hours}
    for fingerprint, its_hour, *numbers in rows:
        if its_hour is not None:
            hours[fingerprint].append((its_hour, *numbers[: len(_SERIES)]))
        for name, count in zip(windows, numbers[len(_SERIES) :], strict=True):
            exhausted[fingerprint][name] += count
    return {each: GroupFigures(_hours(now, rows), exhausted[each]) for each, rows in hours.items()}


def _starts(now: datetime) -> list[datetime]:
    this = now.replace(minute=0, second=0, microsecond=0)
    return [this - timedelta(hours=back) for back in reversed(range(HOURS))]


def _hour_sums() -> list[Sum]:
    return [Sum(name) for name in _SERIES]


def _hours(now: datetime, rows: Iterable[Any]) -> list[Hour]:
    sums = {start: [0, 0, 0] for start in _starts(now)}
    for slot, *numbers in rows:
        hour = sums.get(slot.replace(minute=0, second=0, microsecond=0))
        if hour is not None:  # None for a slot in the future, from a worker with a wrong clock
            hour[:] = [had + more for had, more in zip(hour, numbers, strict=True)]
    return [Hour(start, *numbers) for start, numbers in sums.items()]


def with_open_tasks(groups: QuerySet[Any]) -> QuerySet[Any]:
    """Annotate failure groups with ``open_tasks``, how many of their tasks are exhausted; counted within one index."""
    tasks = TaskRecord.objects.filter(state=TaskState.EXHAUSTED, failure_group=OuterRef("pk")).order_by()
    # Not Django's Count: it would group the tasks, which takes half as long again.
    counted = Func(template="COUNT(*)", output_field=BigIntegerField())
    annotated: QuerySet[Any] = groups.annotate(open_tasks=Subquery(tasks.values(count=counted)))
    return annotated


def lookup_values() -> dict[str, list[str]]:
    """Return the queues, tasks and error classes that were seen, by kind, each at most `MAX_CHOICES`."""
    found: dict[str, list[str]] = {kind: [] for kind in LookupValue.Kind.values}
    place = Window(RowNumber(), partition_by="kind", order_by="value")
    first = LookupValue.objects.annotate(place=place).filter(place__lte=MAX_CHOICES).order_by("value")
    for kind, value in first.values_list("kind", "value"):
        found[kind].append(value)
    return found


@dataclass(frozen=True)
class Collectors:
    """The status of all collectors together."""

    running: int
    known: int
    lag_ms: int
    last_heartbeat: datetime | None
    #: By how many messages delay queues and table differ, and since when; None where that does not last.
    differs_by: int = 0
    differs_since: datetime | None = None


def collectors(now: datetime) -> Collectors:
    """Return the status of the collectors; stopped ones count in ``known`` only."""
    rows = list(CollectorStatus.objects.order_by("-heartbeat_at")[:20])
    alive = [row for row in rows if row.heartbeat_at > now - COLLECTOR_SILENT_AFTER]
    differing = next((row for row in alive if row.differs_since and row.differs_since <= now - DIFFERS_AFTER), None)
    return Collectors(
        differs_by=differing.differs_by if differing else 0,
        differs_since=differing.differs_since if differing else None,
        running=len(alive),
        known=len(rows),
        lag_ms=max((row.lag_ms for row in alive), default=0),
        last_heartbeat=rows[0].heartbeat_at if rows else None,
    )


def has_plain_order(rows: QuerySet[Any]) -> bool:
    """Return whether ``rows`` are ordered by columns of their table alone."""
    fields = {field.name for field in rows.model._meta.concrete_fields}
    return fields.issuperset(name for name, _ in _order(rows))


def _order(rows: QuerySet[Any]) -> list[tuple[str, bool]]:
    return [(name.lstrip("-"), name.startswith("-")) for name in map(str, rows.query.order_by)]


def page_ids(rows: QuerySet[Any], first: int, size: int, *, is_more: bool) -> QuerySet[Any]:
    """Return a query of the ids of ``size`` of ``rows``, which have a plain order, from ``first`` on.

    Where thousands of rows have to be sorted for a page, a database would sort all their columns. ``is_more`` states
    that there are more than were counted.
    """
    found = rows if is_more else _found_before_sorted(rows)
    return found.values("pk")[first : first + size]


def counted_page(
    rows: QuerySet[Any], cap: int, first: int, size: int, *, to_the_end: bool = False
) -> tuple[Capped, list[int] | None] | None:
    """Return the count of ``rows``, which have a plain order, and the ids of a page, in one query.

    The ids are None if there are more than ``cap``, as then the others are not read, except ``to_the_end``.
    None alone if the page has no row.
    """
    connection = connections[rows.db]
    order = _order(rows)
    keys = {f"key{place}": F(name) for place, (name, _) in enumerate(order)}
    found = rows.order_by().values(row_id=F("pk"), **keys)[: None if to_the_end else cap + 1]
    try:
        sql, params = found.query.get_compiler(connection=connection).as_sql()
    except EmptyResultSet:
        return None
    by = ", ".join(f"{key} DESC" if descending else key for key, (_, descending) in zip(keys, order, strict=True))
    page = f"SELECT row_id, COUNT(*) OVER () FROM ({sql}) counted ORDER BY {by} LIMIT %s OFFSET %s"  # noqa: S608
    with connection.cursor() as cursor:
        cursor.execute(page, [*params, size, min(first, cap)])
        found_rows = cursor.fetchall()
    if not found_rows:
        return None
    count = Capped(found_rows[0][1], cap)
    return count, [pk for pk, _ in found_rows] if to_the_end or not count.is_more else None


def _found_before_sorted(rows: QuerySet[Any]) -> QuerySet[Any]:
    """Return ``rows`` such that SQLite uses no index for their order, but for their filters.

    It does not know which values are rare, and would look for the tasks of a rare one in all rows, in their order.
    """
    if connections[rows.db].vendor != "sqlite":
        return rows
    return rows.order_by(*(OrderBy(_Unindexed(F(name)), descending=descending) for name, descending in _order(rows)))


class _Unindexed(Func):
    """A column for which SQLite uses no index: https://www.sqlite.org/optoverview.html."""

    template = "+%(expressions)s"


def among(ids: Sequence[int], using: str) -> Q:
    """Return the condition of rows with these ids, of which there may be any number, in the database ``using``."""
    return Q(_Among(ids, connections[using].vendor == "sqlite"))


class _Among(Func):
    """Whether the id of a row is one of many: one parameter, where ``pk__in`` would have thousands."""

    template = "%(expressions)s::bigint[])"
    arg_joiner = " = ANY("
    output_field = BooleanField()

    def __init__(self, ids: Sequence[int], is_sqlite: bool) -> None:
        # As text: psycopg takes much longer for a list.
        text = ",".join(map(str, ids))
        super().__init__(F("pk"), Value(f"[{text}]" if is_sqlite else f"{{{text}}}"))

    def as_sqlite(self, compiler: Any, connection: Any, **more: Any) -> Any:
        """Return the condition with the ids as JSON, as SQLite has no arrays."""
        parts = {"template": "%(expressions)s))", "arg_joiner": " IN (SELECT value FROM json_each("}
        return self.as_sql(compiler, connection, **{**more, **parts})


def selected(rows: QuerySet[Any], ids: QuerySet[Any]) -> QuerySet[Any]:
    """Return those of ``rows`` whose id is one of ``ids``, a query of a few of all rows."""
    if connections[rows.db].vendor == "sqlite":
        return rows.filter(pk__in=ids)
    # PostgreSQL would read all rows to join them, as it expects many of them among the first.
    return rows.filter(_AmongThose(F("pk"), Subquery(ids)))


class _AmongThose(Func):
    template, arg_joiner = "%(expressions)s)", " = ANY(ARRAY"
    output_field = BooleanField()
