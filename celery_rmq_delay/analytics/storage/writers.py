"""Replace days of tables: everything that a run computed, or nothing.

A run writes into ``<output>/_staging/<run>/`` first. When everything is written, it commits by writing a journal. Then
folders are replaced by renaming. A run that is killed before the commit leaves the output unchanged; one that is killed
later is completed by the next run (`recover`), and its folder is never removed before.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any
from uuid import uuid4

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.sql.types import DoubleType, StructType, TimestampType

from ...exceptions import AnalyticsError
from ..days import Days, day_of
from ..schema import DAY
from .files import Storage

STAGING = "_staging"
_JOURNAL = "journal.json"
_OLD, _NEW = "old", "new"

_UNLIKE = (DoubleType, TimestampType)
_UNLIKE_NAMES = ("task_id", "runtime_ms", "wasted_ms")

#: A day's folder -> its files and their sizes in bytes.
_Files = dict[str, dict[str, int]]


@dataclass(frozen=True)
class Swap:
    """A day of a table that changes; ``files``: the names of its new files. Without files the day becomes empty."""

    table: str
    day: str
    files: list[str]


class Replacement:
    """The days that one run replaces: `write` each table, then `decide`, then `complete`."""

    def __init__(self, spark: SparkSession, output: str, run: str | None = None) -> None:
        self._spark, self.run = spark, run or uuid4().hex
        self._storage = Storage(spark, output)
        self._folder = f"{self._storage.url}/{STAGING}/{self.run}"
        self._days: dict[str, Days] = {}
        self._written: dict[str, _Files] = {}

    def write(self, frame: DataFrame, table: str, days: Days, *, files: int | None = None) -> DataFrame:
        """Write the rows of these days, and return them as they were written.

        ``frame`` has a column ``day``. ``files``: at most this many per day; None: Spark decides.
        """
        rows = frame.where(in_days(days))
        rows = rows.coalesce(files) if files else rows
        where = f"{self._folder}/{_NEW}/{table}"
        rows.write.options(**_encodings(frame.schema)).partitionBy(DAY.name).mode("overwrite").parquet(where)
        self._days[table], self._written[table] = days, self._staged(table)
        return read_table(self._spark, where, StructType([each for each in frame.schema if each.name != DAY.name]))

    def standing(self, table: str, schema: StructType, days: Days) -> DataFrame:
        """Return the rows of a table in the output, as they are before this run."""
        return read_table(self._spark, f"{self._storage.url}/{table}", schema, days)

    def keep(self, frame: DataFrame, name: str) -> DataFrame:
        """Write temporary rows that are needed again, and return them; they are removed when the run ends."""
        where = f"{self._folder}/{name}"
        frame.write.mode("overwrite").parquet(where)
        return self._spark.read.schema(frame.schema).parquet(where)

    def decide(self, check: Callable[[], None] = lambda: None) -> list[Swap]:
        """Commit: write the journal, after which the replacement is always completed. Returns the changes.

        ``check`` is called just before, and raises if this run no longer holds the output. Raises `AnalyticsError` if a
        written file is missing.
        """
        swaps = [swap for table in self._days for swap in self._swaps(table)]
        check()
        self._storage.write_whole(f"{self._folder}/{_JOURNAL}", json.dumps([asdict(swap) for swap in swaps]))
        return swaps

    def complete(self) -> None:
        """Replace the days by what was committed. After a failure `recover` completes it."""
        _complete(self._storage, self._folder)

    def discard(self) -> None:
        """Remove what was written; does nothing after the commit."""
        if not self._storage.exists(f"{self._folder}/{_JOURNAL}"):
            self._storage.delete(self._folder)

    def size(self) -> int:
        """Return the number of bytes written."""
        return sum(sum(files.values()) for days in self._written.values() for files in days.values())

    def _staged(self, table: str) -> _Files:
        return {
            folder.name: {file.name: file.size for file in self._storage.entries(folder.path) if not file.hidden}
            for folder in self._storage.folders(f"{self._folder}/{_NEW}/{table}")
        }

    def _swaps(self, table: str) -> Iterator[Swap]:
        new = self._staged(table)
        if new != self._written[table]:
            raise AnalyticsError(
                f"{self._folder}: files of the table {table} disappeared before it was published. Another run has"
                " considered this one dead, or they were removed. The output is unchanged: run again."
            )
        old = [folder.name for folder in self._storage.folders(f"{self._storage.url}/{table}")]
        ends = {name for name in old if (day := day_of(name)) and day in self._days[table]}
        for name in sorted(new.keys() | ends):
            yield Swap(table, name, sorted(new.get(name, ())))


def _encodings(schema: StructType, within: str = "") -> dict[str, str]:
    """Return Parquet options that disable the dictionary for columns whose values hardly repeat: it would cost more."""
    found = {}
    for field in schema:
        if isinstance(field.dataType, StructType):
            found.update(_encodings(field.dataType, f"{within}{field.name}."))
        elif isinstance(field.dataType, _UNLIKE) or field.name in _UNLIKE_NAMES:
            found[f"parquet.enable.dictionary#{within}{field.name}"] = "false"
    return found


def read_table(spark: SparkSession, where: str, schema: StructType, days: Days | None = None) -> DataFrame:
    """Return a table of an output (``<output>/<table>``) with its ``day``; no rows if it does not exist yet."""
    storage = Storage(spark, where)
    columns = StructType([*schema, DAY])
    if not storage.folders(storage.url):
        return spark.createDataFrame([], columns)
    rows = spark.read.schema(columns).parquet(storage.url)
    return rows if days is None else rows.where(in_days(days))


def in_days(days: Days) -> Column:
    """Return whether a row's ``day`` is one of these."""
    # As strings: Spark's conversion of dates drops the zeros of early years.
    first, last = (F.lit(day.isoformat()).cast(DAY.dataType) for day in (days.first, days.last))
    return F.col(DAY.name).between(first, last)


def recover(spark: SparkSession, output: str) -> list[str]:
    """Complete the runs that were killed after their commit, remove the others; return what was done.

    No other process may write to the output meanwhile.
    """
    storage, done = Storage(spark, output), []
    for run in storage.entries(f"{storage.url}/{STAGING}"):
        if storage.exists(f"{run.path}/{_JOURNAL}"):
            _complete(storage, run.path)
            done.append(f"completed the run {run.name}, which was killed while it replaced days")
        else:
            storage.delete(run.path)
            done.append(f"removed the run {run.name}, which was killed before it was complete")
    return done


def _complete(storage: Storage, folder: str) -> None:
    """Carry out the journal from where it was interrupted."""
    for swap in _journal(storage, f"{folder}/{_JOURNAL}"):
        place = f"{swap.table}/{swap.day}"
        live, new, old = f"{storage.url}/{place}", f"{folder}/{_NEW}/{place}", f"{folder}/{_OLD}/{place}"
        present = {entry.name for entry in storage.entries(live)}
        # File names are unique: if one of the new files is there, the old ones have been moved away.
        if present and present.isdisjoint(swap.files):
            storage.move_into(live, old)
        if swap.files and storage.exists(new):
            storage.move_into(new, live)
    storage.delete(folder)


def _journal(storage: Storage, path: str) -> Iterable[Swap]:
    try:
        found: Any = json.loads(storage.read(path))
        return [Swap(**each) for each in found]
    except (ValueError, TypeError) as error:
        raise AnalyticsError(
            f"{path}: is not a journal of a run ({error}). Remove its folder to discard that run."
        ) from error
