"""The columns of the history files, which the collector writes and the pipeline reads. No I/O, no dependency.

One row per event, in ``day=YYYY-MM-DD/part-<uuid>.parquet``; the day is that of ``occurred_at`` in UTC.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from typing import Literal

#: The kinds of columns, here and in `history.tables`. ``time`` has microseconds and is in UTC; ``delays`` is a list of
#: 64-bit integers, ``names`` one of texts; ``episode`` is the struct `history.tables.EPISODE_SO_FAR`.
Kind = Literal["text", "time", "int32", "int64", "float64", "flag", "delays", "names", "episode"]


@dataclass(frozen=True)
class Column:
    """A column of the files; ``required`` ones are never null. ``name`` is the field's name in `Event`."""

    name: str
    kind: Kind
    required: bool = False


COLUMNS = (
    Column("event_id", "text", required=True),
    Column("kind", "text", required=True),
    Column("occurred_at", "time", required=True),
    Column("task_id", "text"),
    Column("root_id", "text"),
    Column("task", "text", required=True),
    Column("queue", "text", required=True),
    Column("worker", "text", required=True),
    Column("generation", "int32", required=True),
    Column("attempt", "int32", required=True),
    Column("max_retries", "int32"),
    Column("tier", "int32"),
    Column("delay_ms", "int64"),
    Column("due_at", "time"),
    Column("first_failed_at", "time"),
    Column("started_at", "time"),
    Column("runtime_ms", "int64"),
    Column("exception_type", "text"),
    Column("exception_message", "text"),
    Column("fingerprint", "text"),
    Column("reason", "text"),
    Column("crashes", "int32", required=True),
    Column("ladder_ms", "delays", required=True),
    Column("ok_count", "int64"),
)


def day_folder(day: date) -> str:
    """Return the folder of a day, or of an event's moment (UTC), such as ``day=2026-01-31``."""
    return f"day={day.isoformat()[:10]}"
