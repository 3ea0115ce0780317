"""Read the Parquet footers before the rows, to find broken files one by one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import date
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from ...exceptions import AnalyticsError
from .files import hadoop_configuration, is_a, java_message

_THREADS = 8


@dataclass(frozen=True)
class Listed:
    """A file of the history, as listed in its folder."""

    path: str
    day: date
    size: int


@dataclass(frozen=True)
class Footer:
    """The footer of a file: columns as Parquet writes them, and number of rows. ``error``: why there is none."""

    file: Listed
    columns: str = ""
    rows: int = 0
    error: str | None = None


def read_footers(spark: SparkSession, files: Iterable[Listed]) -> Iterator[Footer]:
    """Yield the footer of every file, in order. Two small reads per file, several files at once."""
    jvm: Any = spark._jvm
    conf = hadoop_configuration(spark)
    reader = jvm.org.apache.parquet.hadoop.ParquetFileReader
    source = jvm.org.apache.parquet.hadoop.util.HadoopInputFile
    path = jvm.org.apache.hadoop.fs.Path

    def read(file: Listed) -> Footer:
        try:
            opened = reader.open(source.fromPath(path(file.path), conf))
            try:
                columns = opened.getFileMetaData().getSchema().toString()
                return Footer(file, columns, opened.getRecordCount())
            finally:
                opened.close()
        except Py4JJavaError as error:
            if is_a(error, "FileNotFoundException"):
                raise went_away(java_message(error)) from error
            return Footer(file, error=java_message(error))

    with ThreadPoolExecutor(_THREADS, thread_name_prefix="footers") as threads:
        yield from threads.map(read, files)


def went_away(what: str) -> AnalyticsError:
    """Return the error for files that disappeared after they were listed: another run has merged them."""
    return AnalyticsError(
        f"A file disappeared while it was read: another run may be compacting this history. Run again. ({what[:300]})"
    )
