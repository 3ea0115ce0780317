"""Exports history files from the tables: attempts as events with their ids, and counts of successes.

Needs pyarrow, as `history_files` does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date, datetime, timedelta, timezone
from typing import Any

from django.db.models import F, Q

from ....events.fingerprint import fingerprint
from ....events.schema import DISCARDED, MAX_MESSAGE, REQUEUED, ROLLUP, ROLLUP_SECONDS, rollup_id
from ....history.tables import COLUMNS, day_folder
from ....redaction import Redaction
from ..history_files import HistoryFiles, table_of
from ..models import Attempt, Operation, Tally
from .payloads import redaction_of_project

#: The prefix of these files' names; the collector's files have another one.
PREFIX = "backfill"
#: Rows that are in memory as objects, and as a file that is to be written.
_PAGE, FILE_ROWS = 2_000, 100_000
#: A tally changes while rollups of its ten minutes arrive.
_SETTLED = timedelta(hours=1)
#: Before this day there are only summed tallies of `prune`.
_FIRST = datetime(1971, 1, 1, tzinfo=timezone.utc)

_DAY = timedelta(days=1)
_EMPTY = dict.fromkeys((each.name for each in COLUMNS), None)
_NUMBERS = {"generation": 0, "attempt": 0, "crashes": 0, "ladder_ms": ()}
_OF_ATTEMPT = (
    "event_id", "kind", "occurred_at", "generation", "attempt", "worker", "tier", "delay_ms", "due_at", "runtime_ms",
    "exception_type", "exception_message", "reason",
)  # fmt: skip
_OF_RECORD = {
    "task_id": F("record__task_id"), "root_id": F("record__root_id"), "task": F("record__name"),
    "queue": F("record__queue"), "max_retries": F("record__max_retries"), "ladder_ms": F("record__ladder_ms"),
}  # fmt: skip
#: Columns of the record about its last generation or attempt.
_OF_LAST = ("record__generation", "record__attempt", "record__first_failed_at", "record__crashes")

_Row = dict[str, Any]


@dataclass(frozen=True)
class Day:
    """The result of one day; ``has_successes`` is False where the collector's own files have the successes."""

    day: date
    rows: int
    has_successes: bool


def days(since: date | None = None, until: date | None = None) -> list[date]:
    """Return the days (UTC) between the first and the last row of the tables, from ``since`` to ``until`` inclusive."""
    attempts = Attempt.objects.order_by("occurred_at").values_list("occurred_at", flat=True)
    tallies = Tally.objects.filter(slot__gte=_FIRST).order_by("slot").values_list("slot", flat=True)
    ends = [end for each in (attempts, tallies) for end in (each.first(), each.last()) if end is not None]
    if not ends:
        return []
    first, last = (each.astimezone(timezone.utc).date() for each in (min(ends), max(ends)))
    first, last = max(first, since or first), min(last, until or last)
    return [first + number * _DAY for number in range((last - first).days + 1)]


def export_days(wanted: list[date], files: HistoryFiles, report: Callable[[Day], object] = lambda day: None) -> int:
    """Write history files of these days; return the number of rows. A second call writes the same events again.

    Attempts keep the ids of their events. Counted successes have no such ids: they are left out of a day for which the
    collector has written files. ``report`` is called with each day. Raises `HistoryError`.
    """
    total = 0
    for day in wanted:
        begin = datetime(day.year, day.month, day.day, tzinfo=timezone.utc)
        folder = day_folder(begin)
        has_successes = not files.has_others(folder, PREFIX)
        written = _write(_rows(begin, has_successes=has_successes), folder, files)
        total += written
        report(Day(day, written, has_successes))
    return total


def _write(pages: Iterator[list[_Row]], folder: str, files: HistoryFiles) -> int:
    tables, waiting, written = [], 0, 0
    for page in pages:
        tables.append(table_of(page))
        waiting += len(page)
        if waiting >= FILE_ROWS:
            files.write(folder, tables, PREFIX)
            tables, waiting, written = [], 0, written + waiting
    if waiting:
        files.write(folder, tables, PREFIX)
    return written + waiting


def _rows(begin: datetime, *, has_successes: bool) -> Iterator[list[_Row]]:
    redaction = redaction_of_project()
    for page in _attempts(begin):
        yield [_of_attempt(found, redaction) for found in page]
    until = min(begin + _DAY, datetime.now(timezone.utc) - _SETTLED)
    counted = Tally.objects.filter(slot__gte=begin, slot__lt=until, succeeded__gt=0).order_by("pk")
    if has_successes:
        for tallies in _pages(counted.values("pk", "slot", "queue", "name", "succeeded")):
            yield [_of_tally(found) for found in tallies]


def _attempts(begin: datetime) -> Iterator[list[_Row]]:
    """Yield the attempts of a day, page by page along the index of their times: no transaction stays open."""
    found = Attempt.objects.filter(occurred_at__lt=begin + _DAY).order_by("occurred_at", "pk")
    columns = found.values("pk", *_OF_ATTEMPT, "frame", *_OF_LAST, **_OF_RECORD)
    page = list(columns.filter(occurred_at__gte=begin)[:_PAGE])
    while page:
        yield page
        at, pk = page[-1]["occurred_at"], page[-1]["pk"]
        later = Q(occurred_at__gt=at) | Q(pk__gt=pk)
        page = list(columns.filter(later, occurred_at__gte=at)[:_PAGE])


def _pages(found: Any) -> Iterator[list[_Row]]:
    page = list(found[:_PAGE])
    while page:
        yield page
        page = list(found.filter(pk__gt=page[-1]["pk"])[:_PAGE])


def _of_attempt(found: _Row, redaction: Redaction) -> _Row:
    row = {**_EMPTY, **_NUMBERS, **{name: found[name] for name in (*_OF_ATTEMPT, *_OF_RECORD)}}
    for name in ("root_id", "exception_type", "exception_message", "reason"):
        row[name] = row[name] or None
    if row["exception_type"]:
        message = row["exception_message"] or ""
        row["fingerprint"] = fingerprint(row["exception_type"], message, found["frame"])
        row["exception_message"] = redaction.text(message, MAX_MESSAGE)
    if row["runtime_ms"] is not None:
        row["started_at"] = row["occurred_at"] - timedelta(milliseconds=row["runtime_ms"])
    if row["generation"] == found["record__generation"]:
        row["first_failed_at"] = found["record__first_failed_at"]
        if row["attempt"] == found["record__attempt"]:
            row["crashes"] = found["record__crashes"]
    if row["kind"] in (REQUEUED, DISCARDED) and row["reason"] in Operation.Kind.values:
        row["worker"] = ""  # here it is the actor
    return row


def _of_tally(found: _Row) -> _Row:
    slot = int(found["slot"].timestamp()) // ROLLUP_SECONDS
    return {
        **_EMPTY,
        **_NUMBERS,
        "event_id": rollup_id("", found["name"], found["queue"], slot, "tally"),
        "kind": ROLLUP,
        "occurred_at": found["slot"],
        "task": found["name"],
        "queue": found["queue"],
        "worker": "",
        "ok_count": found["succeeded"],
    }
