"""Read the Parquet footers before the rows, to find broken files one by one."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import date
from typing import Any

from py4j.protocol import Py4JJavaError
from pyarrow import ArrowException, parquet
from pyspark.sql import SparkSession

from ...exceptions import AnalyticsError
from .files import Storage, hadoop_configuration, is_a, java_message, local_path

_THREADS = 8
#: Columns whose times are in nanoseconds, in the words of PyArrow and of Parquet's Java library.
_NANOS = re.compile(r" (\w+) \(Timestamp\([^)]*timeUnit=nanoseconds")
_JAVA_NANOS = re.compile(r" (\w+) \(TIMESTAMP\(NANOS")


@dataclass(frozen=True)
class Listed:
    """A file of the history or of a table, as listed in the folder of its day."""

    path: str
    day: date
    size: int


@dataclass(frozen=True)
class Footer:
    """The footer of a file: its columns in words of Parquet, and the number of rows. ``error``: why there is none.

    ``nanoseconds``: the columns whose times are in nanoseconds.
    """

    file: Listed
    columns: str = ""
    nanoseconds: frozenset[str] = frozenset()
    rows: int = 0
    error: str | None = None


def list_files(storage: Storage, folders: Mapping[date, str]) -> list[Listed]:
    """Return the files in the folders of days, in this order and by name, without hidden ones.

    Folders are relative to the storage's URL.
    """
    return [
        Listed(entry.path, day, entry.size)
        for day, folder in folders.items()
        for entry in storage.files(f"{storage.url}/{folder}")
    ]


def read_footers(spark: SparkSession, files: Iterable[Listed]) -> Iterator[Footer]:
    """Yield the footer of every file, in order; several files are read at once.

    On a local disk PyArrow reads them, and Hadoop only those that PyArrow cannot read. On other storage Hadoop does,
    with two small reads per file.
    """
    through_hadoop = _hadoop_reader(spark)
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="footers") as threads:
        yield from threads.map(lambda file: _read_local(file) or through_hadoop(file), files)


def _read_local(file: Listed) -> Footer | None:
    """Return the footer of a file on a local disk; None if PyArrow cannot read it, or it is elsewhere."""
    path = local_path(file.path)
    if path is None:
        return None
    try:
        found = parquet.read_metadata(path)
        columns = str(found.schema).partition("\n")[2]  # the first line has an address in memory
    except (ArrowException, OSError, ValueError):
        return None
    return Footer(file, columns, frozenset(_NANOS.findall(columns)), found.num_rows)


def _hadoop_reader(spark: SparkSession) -> Callable[[Listed], Footer]:
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
                return Footer(file, columns, frozenset(_JAVA_NANOS.findall(columns)), opened.getRecordCount())
            finally:
                opened.close()
        except Py4JJavaError as error:
            if is_a(error, "FileNotFoundException"):
                raise went_away(java_message(error)) from error
            return Footer(file, error=java_message(error))

    return read


def went_away(what: str) -> AnalyticsError:
    """Return the error for files that disappeared after they were listed: another run has merged them."""
    return AnalyticsError(
        f"A file disappeared while it was read: another run may be compacting this history. Run again. ({what[:300]})"
    )
