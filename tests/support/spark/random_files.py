"""A random history as files: late rows, files of another schema, unreadable files."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta, timezone
from pathlib import Path

import pyarrow as pa
from pyarrow import parquet

from celery_rmq_delay.analytics.synth.rows import SCHEMA
from celery_rmq_delay.history.tables import day_folder
from tests.support.spark import reference
from tests.support.spark.random_histories import DAYS, RandomHistory, Row, first_day

NOW = datetime(2030, 1, 1, tzinfo=timezone.utc)

#: The schema of the collector, with the nulls that bad rows need.
_NULLABLE = pa.schema([each.with_nullable(True) for each in SCHEMA])
#: Numbers as other tools write them.
_RETYPED = _NULLABLE.set(SCHEMA.get_field_index("attempt"), pa.field("attempt", pa.string())).set(
    SCHEMA.get_field_index("delay_ms"), pa.field("delay_ms", pa.float64())
)


@dataclass
class Written:
    """The files of a history: readable rows, and the numbers of bad rows and files by reason."""

    rows: list[Row] = field(default_factory=list)
    bad: Counter[str] = field(default_factory=Counter)


def write(folder: Path, seed: int) -> Written:
    """Write the history with a seed; return its contents."""
    chance = random.Random(f"files {seed}")
    rows = RandomHistory(seed).rows
    days = [first_day(seed) + timedelta(days=number) for number in range(DAYS)]
    found = Written()

    retyped = [row for row in rows if reference.reason(row, NOW) is None][: chance.randint(0, 6)]
    rows = [row for row in rows if not any(row is other for other in retyped)]
    if retyped:
        found.rows += retyped[1:]
        found.bad["wrong_type:attempt"] += 1
        attempts = ["two", *[str(row["attempt"]) for row in retyped[1:]]]
        odd = [{**row, "attempt": text} for row, text in zip(retyped, attempts, strict=True)]
        _write(folder, chance.choice(days), "retyped", odd, _RETYPED)

    if chance.random() < 0.3:
        _write(folder, chance.choice(days), "other", rows[:3], _NULLABLE.remove(SCHEMA.get_field_index("worker")))
        found.bad["missing:worker"] += 1
    if chance.random() < 0.3:
        path = _write(folder, chance.choice(days), "torn", rows[:3], _NULLABLE)
        path.write_bytes(path.read_bytes()[:-9])
        found.bad["unreadable_file"] += 1

    by_day: dict[date, list[Row]] = {day: [] for day in days}
    for row in rows:
        at = row["occurred_at"]
        is_late = at is None or at.date() not in by_day or chance.random() < 0.05
        by_day[chance.choice(days) if is_late else at.date()].append(row)
    for day, some in by_day.items():
        if some:  # an old collector wrote fewer columns
            old = chance.random() < 0.2
            _write(folder, day, "part", some, _NULLABLE.remove(SCHEMA.get_field_index("due_at")) if old else _NULLABLE)
    found.rows += rows
    return found


def _write(folder: Path, day: date, name: str, rows: Iterable[Row], schema: pa.Schema) -> Path:
    place = folder / day_folder(datetime(day.year, day.month, day.day, tzinfo=timezone.utc))
    place.mkdir(parents=True, exist_ok=True)
    path = place / f"{name}.parquet"
    parquet.write_table(
        pa.Table.from_pylist([{name: row[name] for name in schema.names} for row in rows], schema), path
    )
    return path
