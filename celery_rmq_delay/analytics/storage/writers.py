"""Write the tables of a run below ``<output>/runs/<run>/``, and publish all of them at once, or nothing.

Until the run is published, readers see the tables of the run before. A run that is killed earlier leaves files that no
reader sees, which the next run removes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from datetime import datetime

from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.sql.types import ArrayType, DoubleType, StructType, TimestampType

from ...exceptions import AnalyticsError
from ...history.output import REPORT, RUNS, Manifest
from ..days import Days, day_of
from ..schema import DAY
from .day_files import write_days, write_made
from .files import Storage, parent_of, shared_folder
from .local import open_storage
from .made import Made
from .publishing import Held, current_run, publish
from .readers import day_of_file

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
        """Write the rows of these days, and return them as they were written.

        ``files``: at most this many per day; None: Spark decides.
        """
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
        self._flush(table)
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
            publish(self._storage, self._shown, self._shown.replaced(self.run, days), now)

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

    def days_with_rows(self) -> dict[str, int]:
        """Return the number of days with rows by table."""
        return {table: len(files) for table, files in self._written.items()}

    def size(self) -> int:
        """Return the number of bytes written."""
        return sum(sum(files.values()) for days in self._written.values() for files in days.values())

    def _found(self, table: str) -> _Files:
        return {
            folder.name: {file.name: file.size for file in self._storage.files(folder.path)}
            for folder in self._storage.folders(f"{self._folder}/{table}")
        }

    def _flush(self, table: str) -> None:
        for folder, files in self._written[table].items():
            path = f"{self._folder}/{table}/{folder}"
            self._storage.flush([*(f"{path}/{name}" for name in files), path, parent_of(path)])


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
