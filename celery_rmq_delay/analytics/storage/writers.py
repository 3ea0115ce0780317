"""Write the tables of a run below ``<output>/runs/<run>/``, and publish all of them at once, or nothing.

Until the run is published, readers see the tables of the run before. A run that is killed earlier leaves files that no
reader sees, which the next run removes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone

from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.sql.types import ArrayType, DoubleType, StructType, TimestampType

from ...exceptions import AnalyticsError, OutputError
from ...history.output import CURRENT, REPORT, RUNS, Current, Manifest, folder_of, lost_manifest, manifest_of
from ..days import Days, day_of
from ..schema import DAY
from .day_files import Made, write_days, write_made
from .files import Storage, open_storage, parent_of, shared_folder
from .readers import day_of_file

#: `locking.Lock.held`.
Held = Callable[[], AbstractContextManager[None]]

#: The name of a run: other folders are not removed.
_NAME = re.compile(r"\d{8}T\d{6}Z-\w{8}")
#: Files that a process was writing when it was killed.
_LEFTOVER = re.compile(r"_+(?:current|lock)\.json\..+")


def current_run(storage: Storage) -> Current | None:
    """Return the run that the output shows, or None. Raises `AnalyticsError` if that cannot be read."""
    path = f"{storage.url}/{CURRENT}"
    text = storage.read(path)
    return None if text is None else Current.parse(text, path)


def shown_tables(storage: Storage) -> Manifest:
    """Return the tables that the output shows, none before the first run. Raises `AnalyticsError` if it is damaged."""
    if (current := current_run(storage)) is not None:
        return _manifest(storage, current.run)
    complete = [run for run in _runs(storage) if storage.find(f"{storage.url}/{manifest_of(run)}")]
    if complete:
        text = Current(complete[-1]).text().replace("\n", "")
        raise OutputError(
            f"{storage.url}: has {len(complete)} runs, but {CURRENT}, which names the run to read, is missing. Restore"
            f" it, or write it with the content {text} to read the last run."
        )
    if storage.find(f"{storage.url}/attempts"):
        raise OutputError(
            f"{storage.url}: has tables of an earlier version of celery-rmq-delay. Use another --output, or remove this"
            " folder, and compute all days again."
        )
    return Manifest()


def _runs(storage: Storage) -> list[str]:
    return [folder.name for folder in storage.folders(f"{storage.url}/{RUNS}")]


def remove_unused(storage: Storage, keep: timedelta, now: datetime, held: Held = nullcontext) -> list[str]:
    """Remove runs that were not finished, and files that no run shows; return what was removed, in words.

    The runs that were replaced within ``keep`` before ``now`` keep their files: programs may be reading them. ``held``
    is entered for each change, and raises if this run no longer holds the output.
    """
    output = _Fenced(storage, held)
    present, current = _runs(storage), current_run(storage)
    for entry in storage.entries(storage.url):
        if _LEFTOVER.fullmatch(entry.name):
            output.delete(entry.name)
    if current is None:
        return output.delete_runs(filter(_NAME.fullmatch, present), "which was not finished")
    kept = {run: replaced for run, replaced in current.earlier.items() if replaced + keep >= now and run in present}
    expired = [run for run in current.earlier if run not in kept]
    if expired:
        # From now on no program may read them, even if the clock goes back.
        gone = dict.fromkeys(expired, datetime.fromtimestamp(0, timezone.utc))
        output.point(Current(current.run, kept | gone))
    shown = [_manifest(storage, run) for run in (current.run, *kept)]
    used = {folder for manifest in shown for folder in manifest.used()}
    runs = {manifest.run for manifest in shown} | {run for run, _table, _day in used}
    # A removal that was interrupted has removed some of their manifests.
    earlier = [_manifest(storage, run) for run in expired if storage.find(f"{storage.url}/{manifest_of(run)}")]
    unused = {folder for manifest in earlier for folder in manifest.used()} - used
    for folder in sorted(unused):
        if folder[0] in runs:
            output.delete(folder_of(*folder))
    replaced = {*expired, *(run for run, _table, _day in unused)} - runs
    output.delete_runs(replaced.intersection(present), "which was replaced")
    left = (run for run in present if _NAME.fullmatch(run) and run not in runs | replaced)
    notes = output.delete_runs(left, "which was not finished")
    if expired:
        output.point(Current(current.run, kept))
    return notes


def _manifest(storage: Storage, run: str) -> Manifest:
    path = f"{storage.url}/{manifest_of(run)}"
    if (text := storage.read(path)) is None:
        raise lost_manifest(path)
    return Manifest.parse(text, path, run)


@dataclass(frozen=True)
class _Fenced:
    """Changes of an output, each of which is refused if the run no longer holds it."""

    storage: Storage
    held: Held

    def point(self, current: Current) -> None:
        with self.held():
            self.storage.write(f"{self.storage.url}/{CURRENT}", current.text())

    def delete(self, path: str) -> None:
        with self.held():
            pass  # a large folder takes long, and other runs would wait to see who holds the lock
        self.storage.delete(f"{self.storage.url}/{path}")

    def delete_runs(self, runs: Iterable[str], why: str) -> list[str]:
        notes = []
        for run in sorted(runs):
            self.delete(f"{RUNS}/{run}")
            notes.append(f"removed the run {run}, {why}")
        return notes


#: The folder of temporary rows.
_KEPT = "_temporary"

_UNLIKE = (DoubleType, TimestampType)
_UNLIKE_NAMES = ("task_id", "task_number", "run", "runtime_ms", "wasted_ms")

#: A day's folder -> its files and their sizes in bytes.
_Files = dict[str, dict[str, int]]


class Replacement:
    """The days that one run replaces: `write` each table, then `publish`. ``shown``: the tables of the run before."""

    def __init__(self, spark: SparkSession, output: str, run: str, shown: Manifest) -> None:
        self._spark, self.run = spark, run
        self._storage, self._shown = open_storage(spark, output), shown
        self._folder = f"{self._storage.url}/{RUNS}/{run}"
        self._days: dict[str, Days] = {}
        self._written: dict[str, _Files] = {}

    def write(self, rows: DataFrame, table: str, days: Days, *, files: int | None = None) -> DataFrame:
        """Write the rows of these days into at most ``files`` per day (None: Spark decides); return them as written."""
        where = f"{self._folder}/{table}"
        rows = rows.where(in_days(days))
        if files:
            rows = rows.coalesce(files)
        if (local := shared_folder(self._spark, where)) is not None:
            write_days(rows, local, days, _repeating(rows.schema))
        else:
            rows.write.options(**_plain(rows.schema)).partitionBy(DAY.name).mode("overwrite").parquet(where)
        return self._as_written(table, days, rows.schema)

    def write_made(self, made: Made, table: str, days: Days, *, files: int) -> tuple[DataFrame, DataFrame]:
        """Write made rows as `write` does, and keep their counts; return both."""
        kept = f"{self._folder}/{_KEPT}/{table}"
        if (local := shared_folder(self._spark, self._folder)) is not None:
            made = replace(made, frame=made.frame.coalesce(files))
            names = write_made(made, local / table, days, _repeating(made.schema), local / _KEPT / table)
            # With the scheme: Hadoop's default file system may be another one.
            counts = self._read([f"{kept}/{name}" for name in names], made.counts)
            return self._as_written(table, days, made.schema), counts
        made.both.persist(StorageLevel.DISK_ONLY)
        try:
            return self.write(made.to_frame(), table, days, files=files), self.keep(made.to_counts(), table)
        finally:
            made.both.unpersist()

    def _as_written(self, table: str, days: Days, schema: StructType) -> DataFrame:
        """Note the written files of a table, and return its rows, with the day as the last column."""
        self._days[table], self._written[table] = days, self._found(table)
        for folder, files in self._written[table].items():
            path = f"{self._folder}/{table}/{folder}"
            self._storage.flush([*(f"{path}/{name}" for name in files), path, parent_of(path)])
        columns = StructType([*(each for each in schema if each.name != DAY.name), DAY])
        return self._read([f"{self._folder}/{table}"] if self._written[table] else [], columns)

    def _read(self, paths: Sequence[str], schema: StructType) -> DataFrame:
        if not paths:
            return self._spark.createDataFrame([], schema)
        return self._spark.read.schema(schema).parquet(*paths)

    def standing(self, table: str, schema: StructType, days: Days) -> DataFrame:
        """Return the rows of a table in the output, as they are before this run."""
        return read_table(self._spark, self._storage, self._shown, table, schema, days)

    def keep(self, frame: DataFrame, name: str) -> DataFrame:
        """Write temporary rows that are needed again, and return them; they are removed when the run ends."""
        where = f"{self._folder}/{_KEPT}/{name}"
        frame.write.options(**_plain(frame.schema)).mode("overwrite").parquet(where)
        return self._spark.read.schema(frame.schema).parquet(where)

    def publish(self, report: str, now: datetime, held: Held = nullcontext) -> None:
        """Make the output show the tables of this run. ``report``: content of its report.

        ``held`` is entered while that is decided, and raises if this run no longer holds the output. Raises
        `AnalyticsError` if a written file is missing, or another run was published since this one began.
        """
        self._storage.delete(f"{self._folder}/{_KEPT}")
        with held():
            self._check_files()
            self.write_report(report)
            days = {
                table: (self._days[table], [day for folder in files if (day := day_of(folder))])
                for table, files in self._written.items()
            }
            url = self._storage.url
            self._storage.write(f"{url}/{manifest_of(self.run)}", self._shown.replaced(self.run, days).text())
            before = current_run(self._storage)
            if (before.run if before else "") != self._shown.run:
                raise AnalyticsError(
                    f"{url}: the run {before and before.run} was published while this one computed. Run again."
                )
            earlier = {} if before is None else {**before.earlier, before.run: now}
            self._storage.write(f"{url}/{CURRENT}", Current(self.run, earlier).text())

    def _check_files(self) -> None:
        for table, files in self._written.items():
            if self._found(table) != files:
                raise AnalyticsError(
                    f"{self._folder}: files of the table {table} disappeared before it was published. Another run has"
                    " considered this one dead, or they were removed. The output is unchanged: run again."
                )

    def write_report(self, text: str) -> None:
        """Write the report of this run, or replace it."""
        self._storage.write(f"{self._folder}/{REPORT}", text)

    def discard(self) -> None:
        """Remove what was written, unless the output shows it, or that cannot be found out."""
        current = current_run(self._storage)
        if current is None or current.run != self.run:
            self._storage.delete(self._folder)

    def sizes(self) -> tuple[dict[str, int], int]:
        """Return the number of days with rows by table, and the number of bytes written."""
        size = sum(sum(files.values()) for days in self._written.values() for files in days.values())
        return {table: len(files) for table, files in self._written.items()}, size

    def _found(self, table: str) -> _Files:
        return {
            folder.name: {file.name: file.size for file in self._storage.files(folder.path)}
            for folder in self._storage.folders(f"{self._folder}/{table}")
        }


def _repeating(schema: StructType) -> list[str]:
    return [path for path, repeats in _columns(schema) if repeats]


def _plain(schema: StructType) -> dict[str, str]:
    """Return the options of Spark's writer for columns whose values rarely repeat."""
    return {f"parquet.enable.dictionary#{path}": "false" for path, repeats in _columns(schema) if not repeats}


def _columns(schema: StructType, within: str = "") -> Iterator[tuple[str, bool]]:
    """Yield Parquet's paths of the columns, and whether their values repeat: for others a dictionary costs more."""
    for field in schema:
        path = f"{within}{field.name}"
        if isinstance(field.dataType, StructType):
            yield from _columns(field.dataType, f"{path}.")
        elif isinstance(field.dataType, ArrayType):
            yield f"{path}.list.element", True
        else:
            yield path, not isinstance(field.dataType, _UNLIKE) and field.name not in _UNLIKE_NAMES


def read_table(
    spark: SparkSession, storage: Storage, shown: Manifest, table: str, schema: StructType, days: Days
) -> DataFrame:
    """Return the rows of a table that an output shows, with their ``day``; folders that were removed have no rows."""
    folders = [f"{storage.url}/{folder}" for folder in shown.folders(table, days).values()]
    if not (present := [folder for folder in folders if storage.find(folder)]):
        return spark.createDataFrame([], StructType([*schema, DAY]))
    # The folders of several runs have no root in common that Spark could find the days from.
    rows = spark.read.schema(schema).option("recursiveFileLookup", "true").parquet(*present)
    return rows.withColumn(DAY.name, day_of_file("_metadata.file_path"))


def in_days(days: Days) -> Column:
    """Return whether a row's ``day`` is one of these."""
    # As strings: Spark's conversion of dates drops the zeros of early years.
    first, last = (F.lit(day.isoformat()).cast(DAY.dataType) for day in (days.first, days.last))
    return F.col(DAY.name).between(first, last)
