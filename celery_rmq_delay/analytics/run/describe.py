"""Describe the days of a history and the tables of an output. Reads footers, and one column for the kinds."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date
from typing import Any

from pyspark.sql import SparkSession

from ...durations import format_ms
from ...exceptions import AnalyticsError
from ...tables import table
from ..days import Days, day_of
from ..estimate.options import Options as Estimate
from ..figures import FIGURES
from ..schema import ATTEMPTS, EPISODES
from ..session import prepare
from ..storage.files import Storage
from ..storage.footers import Listed, read_footers
from ..storage.readers import read_events
from ..storage.writers import read_table
from ..tables.episodes import still_open
from ..tables.what_if import unseen, what_if
from .planning import Ladders, waiting_in
from .report import RUNS


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
    files: dict[date, list[int]] = defaultdict(lambda: [0, 0, 0])
    for each in read.files:
        for index, value in enumerate((1, each.file.size, each.rows)):
            files[each.file.day][index] += value
    kinds = read.events.groupBy("kind").count().orderBy("kind").collect() if read.files else []
    notes = [f"{row['count']} rows of the kind {row['kind']}" for row in kinds]
    notes += [f"cannot be read: {each.file.path}: {each.reason}: {each.error}" for each in read.left_out]
    rows = tuple((str(day), *figures) for day, figures in sorted(files.items()))
    return Description(("day", "files", "bytes", "rows"), rows, tuple(notes))


def describe_output(spark: SparkSession, url: str) -> Description:
    """Return the tables of an output, and its last run. Raises `AnalyticsError` if there is no output."""
    storage = Storage(spark, url)
    if not storage.exists(storage.url):
        raise AnalyticsError(f"{storage.url}: there is no such folder. Use the --output of a run.")
    rows = []
    for folder in storage.folders(storage.url):
        days = {day: each.path for each in storage.folders(folder.path) if (day := day_of(each.name))}
        if not days:
            continue
        files = [
            Listed(entry.path, day, entry.size)
            for day, path in days.items()
            for entry in storage.entries(path)
            if not entry.hidden
        ]
        count = sum(each.rows for each in read_footers(spark, files))
        size = sum(each.size for each in files)
        rows.append((folder.name, len(days), str(min(days)), str(max(days)), len(files), size, count))
    return Description(
        ("table", "days", "first", "last", "files", "bytes", "rows"), tuple(rows), tuple(_last_run(storage))
    )


def evaluate_ladders(spark: SparkSession, url: str, days: Days, ladders: Ladders, estimate: Estimate) -> Description:
    """Return the estimated results of ladders, from the failure episodes of an output, open ones included."""
    prepare(spark)
    storage = Storage(spark, url)
    if not storage.exists(f"{storage.url}/episodes"):
        raise AnalyticsError(f"{storage.url}: has no table episodes. Use the --output of a run.")
    attempts = f"{storage.url}/attempts"
    written = (day_of(each.name) for each in storage.folders(attempts))
    newest = max((day for day in written if day is not None and day in days), default=days.last)
    recent = read_table(spark, attempts, ATTEMPTS, waiting_in(Days(days.first, newest)))
    episodes = read_table(spark, f"{storage.url}/episodes", EPISODES, days).unionByName(still_open(recent))
    found = what_if(episodes, ladders, estimate).orderBy("queue", "ladder_ms").collect()
    rows = tuple(
        (row["queue"], _delays(row["ladder_ms"]), row["episodes"], *map(row.__getitem__, FIGURES)) for row in found
    )
    few = [f"{row['queue']}: {row['reason']}" for row in found if not row["enough_data"]]
    notes = *unseen(ladders, {row["queue"] for row in found}), *dict.fromkeys(few)
    return Description(("queue", "ladder", "episodes", *FIGURES), rows, notes)


def _delays(ladder_ms: Iterable[int]) -> str:
    return ",".join(map(format_ms, ladder_ms))


def _last_run(storage: Storage) -> list[str]:
    runs = [entry for entry in storage.entries(f"{storage.url}/{RUNS}") if not entry.hidden]
    if not runs:
        return ["no run has finished in this output"]
    found = json.loads(storage.read(runs[-1].path))
    return [f"the last run began {found['started_at']} and computed {found['first_day']} to {found['last_day']}"]
