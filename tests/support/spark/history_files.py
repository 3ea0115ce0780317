"""History files for tests, as the collector writes them, and the rows of an output."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from datetime import date
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
from pyarrow import parquet

from celery_rmq_delay.history.output import CURRENT, Current, Manifest, manifest_of
from celery_rmq_delay.history.tables import COLUMNS, day_folder
from tests.support.spark.frames import Row

_TYPES = {
    "text": pa.string(),
    "time": pa.timestamp("us", "UTC"),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "delays": pa.list_(pa.int64()),
}
SCHEMA = pa.schema([(column.name, _TYPES[column.kind]) for column in COLUMNS])


def write(folder: Path, rows: Iterable[Row], schema: pa.Schema = SCHEMA) -> list[Path]:
    """Write events into one file for each of their days."""
    by_day: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        by_day[day_folder(row["occurred_at"])].append(row)
    return [write_day(folder / day, found, schema) for day, found in sorted(by_day.items())]


def write_day(folder: Path, rows: Iterable[Row], schema: pa.Schema = SCHEMA) -> Path:
    """Write a file into the folder of a day."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"part-{uuid4().hex}.parquet"
    parquet.write_table(pa.Table.from_pylist([dict(row) for row in rows], schema), path)
    return path


def without(column: str) -> pa.Schema:
    """Return the files' columns without one of them."""
    return SCHEMA.remove(SCHEMA.get_field_index(column))


def changed(column: str, kind: pa.DataType) -> pa.Schema:
    """Return the files' columns with another type of one of them."""
    return SCHEMA.set(SCHEMA.get_field_index(column), pa.field(column, kind))


def shown(output: Path) -> Manifest:
    """Return the tables that an output shows."""
    run = Current.parse((output / CURRENT).read_text(), CURRENT).run
    return Manifest.parse((output / manifest_of(run)).read_text(), run, run)


def contents(output: Path) -> dict[str, list[str]]:
    """Return the rows of all days of all tables that an output shows, each as text, in their order."""
    manifest = shown(output)
    return {
        f"{table}/day={day}": sorted(map(repr, _rows(output / folder)))
        for table in manifest.tables
        for day, folder in manifest.folders(table).items()
    }


def days_of(output: Path, table: str) -> list[date]:
    """Return the days that a table has."""
    return sorted(shown(output).tables.get(table, {}))


def rows_of(output: Path, table: str) -> list[dict[str, Any]]:
    """Return the rows of a table, of all days."""
    return [row for folder in shown(output).folders(table).values() for row in _rows(output / folder)]


def quarantined(output: Path) -> list[tuple[str, str]]:
    """Return the reasons of the bad rows, with the names of their files."""
    return sorted((row["reason"], row["file"].rpartition("/")[2]) for row in rows_of(output, "quarantine"))


def _rows(folder: Path) -> list[dict[str, Any]]:
    files = sorted(folder.glob("[!._]*.parquet"))
    return [row for file in files for row in parquet.ParquetFile(file).read().to_pylist()]
