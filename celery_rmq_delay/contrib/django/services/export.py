"""Exports retried tasks as CSV or JSON lines, in bounded memory; redacted by default."""

from __future__ import annotations

import csv
import io
import json
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any, Literal, get_args

from django.db.models import QuerySet

from ....amqp.bodies import decode
from ....headers import MESSAGE, printable
from ....operations.preview import as_json
from ....redaction import Redaction
from ..messages import StoredMessage, headers_of
from ..models import Payload, TaskRecord
from .payloads import redaction_of_project

logger = logging.getLogger(__name__)

ExportFormat = Literal["csv", "jsonl"]
FORMATS: tuple[ExportFormat, ...] = get_args(ExportFormat)
CONTENT_TYPES: dict[ExportFormat, str] = {"csv": "text/csv; charset=utf-8", "jsonl": "application/jsonl"}

#: The columns, and the fields of `TaskRecord` that they show.
COLUMNS: dict[str, str] = {
    "task_id": "task_id", "root_id": "root_id", "parent_id": "parent_id", "group_id": "canvas_id", "task": "name",
    "state": "state", "changed_at": "changed_at", "queue": "queue", "exchange": "exchange",
    "routing_key": "routing_key", "worker": "worker", "generation": "generation", "attempt": "attempt",
    "max_retries": "max_retries", "crashes": "crashes", "tier": "tier", "delay_ms": "delay_ms",
    "delay_queue": "delay_queue", "parked_at": "parked_at", "due_at": "due_at", "first_failed_at": "first_failed_at",
    "exhausted_at": "exhausted_at", "recovered_at": "recovered_at", "exception_type": "exception_type",
    "exception_message": "exception_message", "reason": "reason", "failure_group": "failure_group__fingerprint",
    "args": "args_preview", "kwargs": "kwargs_preview",
}  # fmt: skip

#: The columns with free text.
_REDACTED = ("exception_message", "args", "kwargs")

#: Rows that are in memory at a time.
_PAGE = 500
#: Stored messages that are in memory at a time: each may be large.
_MESSAGES = 20

#: Characters that start a formula in a spreadsheet, with their full-width forms.
_FORMULA = ("=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20")

_Row = dict[str, Any]


def export_rows(
    queryset: QuerySet[TaskRecord],
    *,
    format: ExportFormat,  # noqa: A002 - the option's name everywhere
    redacted: bool = True,
) -> Iterator[bytes]:
    """Yield the tasks of an unsliced queryset in pieces of UTF-8, oldest record first.

    ``redacted`` redacts error messages and arguments once more, after the workers. Without it, they are those of the
    stored message, if there is one and it can be decoded. Reads page by page along the primary key: no transaction
    stays open, and a task that changes meanwhile is read as it is when its page is read.
    """
    redaction = redaction_of_project() if redacted else None
    encode = _csv() if format == "csv" else _jsonl
    if format == "csv":
        yield encode([dict(zip(COLUMNS, COLUMNS, strict=True))])
    for page in _pages(queryset):
        stored = {} if redacted else _stored([found[0] for found in page])
        yield encode([_row(found, stored.get(found[0], {}), redaction) for found in page])


def _pages(queryset: QuerySet[TaskRecord]) -> Iterator[list[tuple[Any, ...]]]:
    ordered, last = queryset.order_by("pk"), 0
    while page := list(ordered.filter(pk__gt=last).values_list("pk", *COLUMNS.values())[:_PAGE]):
        yield page
        last = page[-1][0]


def _stored(records: Sequence[int]) -> dict[int, _Row]:
    """Return the columns from the stored messages of records, as far as they can be decoded."""
    kept = Payload.objects.filter(record__in=records).iterator(chunk_size=_MESSAGES)
    return {each.pk: _message(StoredMessage(bytes(each.body), bytes(each.headers), each.properties)) for each in kept}


def _message(kept: StoredMessage) -> _Row:
    row: _Row = {}
    try:
        headers = headers_of(kept)
        if isinstance(message := headers.get(MESSAGE), str):
            row["exception_message"] = message
        call = decode(kept.body, kept.properties, headers)
        row |= {"args": as_json(call.args), "kwargs": as_json(call.kwargs)}
    except Exception as error:  # noqa: BLE001 - a malformed message must not stop the export
        logger.debug("A stored message is exported without its arguments: %s", error)
    return row


def _row(found: tuple[Any, ...], stored: _Row, redaction: Redaction | None) -> _Row:
    row = {**dict(zip(COLUMNS, found[1:], strict=True)), **stored}
    for name, value in row.items():
        if isinstance(value, datetime):
            row[name] = value.isoformat()
        elif isinstance(value, str):
            row[name] = redaction.text(value) if redaction and name in _REDACTED else printable(value)
    return row


def _jsonl(rows: Iterable[_Row]) -> bytes:
    return "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows).encode()


def _csv() -> Callable[[Iterable[_Row]], bytes]:
    page = io.StringIO()
    writer = csv.writer(page)

    def encode(rows: Iterable[_Row]) -> bytes:
        writer.writerows([_cell(value) for value in row.values()] for row in rows)
        written = page.getvalue().encode()
        page.seek(0)
        page.truncate()
        return written

    return encode


def _cell(value: object) -> object:
    """Return a cell that a spreadsheet does not evaluate: a formula gets an apostrophe in front."""
    if isinstance(value, str) and (value.lstrip().startswith(_FORMULA) or value[:1] in ("\t", "\r", "\n")):
        return f"'{value}"
    return value
