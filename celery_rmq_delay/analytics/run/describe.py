"""Describe the days of a history and the tables of an output. Reads footers, and one column for the kinds."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from datetime import date
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from ...durations import format_ms
from ...exceptions import AnalyticsError, OutputError
from ...history.output import Manifest, parse_report, report_of
from ...history.tables import FIGURES
from ...tables import table
from ..days import Days
from ..estimate.options import Options as Estimate
from ..schema import ATTEMPTS, EPISODES
from ..session import prepare
from ..storage.files import Storage, open_storage
from ..storage.readers import list_files, read_events, read_footers
from ..storage.writers import read_table, shown_tables
from ..tables.attempts import still_open
from ..tables.ladder_advice import unseen, what_if
from .planning import Ladders, waiting_in


@dataclass(frozen=True)
class Description:
    """Rows to show under ``headings``, with notes about them."""

    headings: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        rows = [dict(zip(self.headings, row, strict=True)) for row in self.rows]
        return {"rows": rows, "notes": list(self.notes)}

    def text(self) -> str:
        """Return a table for a terminal."""
        rows = [tuple(f"{each:.5g}" if isinstance(each, float) else each for each in row) for row in self.rows]
        return "\n".join([table(self.headings, rows), *[f"note: {note}" for note in self.notes]])


def describe_input(spark: SparkSession, url: str) -> Description:
    """Return the days of a history: files, bytes, rows, and rows by kind."""
    prepare(spark)
    read = read_events(spark, url)
    files: dict[date, list[tuple[int, int, int]]] = defaultdict(list)
    for each in read.files:
        files[each.file.day].append((1, each.file.size, each.rows))
    kinds = read.events.groupBy("kind").count().orderBy("kind").collect() if read.files else []
    notes = [f"{row['count']} rows of the kind {row['kind']}" for row in kinds]
    notes += [f"cannot be read: {each.file.path}: {each.reason}: {each.error}" for each in read.left_out]
    rows = tuple((str(day), *map(sum, zip(*figures, strict=True))) for day, figures in sorted(files.items()))
    return Description(("day", "files", "bytes", "rows"), rows, tuple(notes))


def describe_output(spark: SparkSession, url: str) -> Description:
    """Return the tables that an output shows, and the run. Raises `AnalyticsError` if there is no output."""
    storage, shown = _output(spark, url)
    rows = []
    for table_name, days in shown.tables.items():
        files = list_files(storage, shown.folders(table_name))
        count = sum(each.rows for each in read_footers(spark, files))
        size = sum(each.size for each in files)
        ends = (str(min(days)), str(max(days))) if days else ("", "")
        rows.append((table_name, len(days), *ends, len(files), size, count))
    headings = ("table", "days", "first", "last", "files", "bytes", "rows")
    return Description(headings, tuple(rows), (_run(storage, shown.run),))


def evaluate_ladders(spark: SparkSession, url: str, days: Days, ladders: Ladders, estimate: Estimate) -> Description:
    """Return the estimated results of ladders, from the failure episodes of an output, open ones included."""
    prepare(spark)
    storage, shown = _output(spark, url)
    if not shown.tables.get("episodes"):
        raise AnalyticsError(f"{storage.url}: has no table episodes. Use the --output of a run.")

    def read(table: str, schema: StructType, days: Days) -> DataFrame:
        return read_table(spark, storage, shown, table, schema, days)

    newest = max(shown.folders("attempts", days), default=days.last)
    recent = read("attempts", ATTEMPTS, waiting_in(Days(days.first, newest)))
    episodes = read("episodes", EPISODES, days).unionByName(still_open(recent))
    found = what_if(episodes, ladders, estimate).orderBy("queue", "ladder_ms").collect()
    rows = tuple(
        (row["queue"], ",".join(map(format_ms, row["ladder_ms"])), row["episodes"], *(row[name] for name in FIGURES))
        for row in found
    )
    few = [f"{row['queue']}: {row['reason']}" for row in found if not row["enough_data"]]
    notes = *unseen(ladders, {row["queue"] for row in found}), *dict.fromkeys(few)
    return Description(("queue", "ladder", "episodes", *FIGURES), rows, notes)


def _output(spark: SparkSession, url: str) -> tuple[Storage, Manifest]:
    storage = open_storage(spark, url)
    if storage.find(storage.url) is None:
        raise AnalyticsError(f"{storage.url}: there is no such folder. Use the --output of a run.")
    return storage, shown_tables(storage)


def _run(storage: Storage, run: str) -> str:
    if not run:
        return "no run has been published in this output"
    where = f"{storage.url}/{report_of(run)}"
    try:
        found = parse_report(storage.read(where) or "", where)
        return f"the last run began {found['started_at']} and computed {found['first_day']} to {found['last_day']}"
    except OutputError as error:
        return str(error)
    except KeyError as error:
        return f"{where}: the report of the run has no {error}"
