"""Read the history's files as one DataFrame. Broken ones are found by their footers, reported and left out."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import date
from functools import reduce
from typing import Any, NamedTuple

from py4j.protocol import Py4JJavaError
from pyarrow import ArrowException, parquet
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegralType,
    LongType,
    NullType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from ...exceptions import AnalyticsError
from ...history.tables import COLUMNS, day_folder
from ..days import Days, day_of
from ..schema import DAY, EVENTS, QUARANTINE
from ..session import prepare
from .addresses import PATTERN
from .files import Storage, hadoop_configuration, is_a, java_message, local_path, open_storage

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
    """A footer: columns as Parquet names them, those with times in nanoseconds, rows; ``error``: why there is none."""

    file: Listed
    columns: str = ""
    nanoseconds: frozenset[str] = frozenset()
    rows: int = 0
    error: str | None = None


def list_files(storage: Storage, folders: Mapping[date, str]) -> list[Listed]:
    """Return the files in the folders (relative to the storage's URL) of days, without hidden ones, in order."""
    return [
        Listed(entry.path, day, entry.size)
        for day, folder in folders.items()
        for entry in storage.files(f"{storage.url}/{folder}")
    ]


def read_footers(spark: SparkSession, files: Iterable[Listed]) -> Iterator[Footer]:
    """Yield the footer of every file, in order: PyArrow reads those on a local disk if it can, else Hadoop."""
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


#: Numbers that may have a fraction; pandas also writes whole numbers so if some are missing.
_FRACTIONS = (FloatType, DoubleType, DecimalType)
_NANOS_IN_MICRO = 1000


class Converted(NamedTuple):
    """The value in the history's type, and whether it is wrong: present, but without an equivalent in that type."""

    value: Column
    is_wrong: Column | None = None


def converted(name: str, found: DataType, wanted: DataType, *, nanoseconds: bool = False) -> Converted | None:
    """Return a column as the type ``wanted``; None if no value can be. ``nanoseconds``: a time as their number."""
    column = F.col(name)
    if nanoseconds:
        # Integer arithmetic only: a double, the result of "/", cannot represent today's nanoseconds.
        micros = F.expr(f"(`{name}` - pmod(`{name}`, {_NANOS_IN_MICRO})) div {_NANOS_IN_MICRO}")
        return Converted(F.timestamp_micros(micros)) if isinstance(wanted, TimestampType) else None
    if isinstance(found, NullType):
        return Converted(F.lit(None).cast(wanted))
    if isinstance(wanted, ArrayType):
        return _delays(column, found, wanted)
    if found == wanted:
        return Converted(column)
    if isinstance(wanted, TimestampType):
        possible = isinstance(found, (TimestampNTZType, DateType, StringType))
    elif isinstance(wanted, StringType):
        possible = isinstance(found, (StringType, IntegralType))
    else:
        possible = isinstance(found, (IntegralType, StringType, *_FRACTIONS))
    return _cast(column, found, wanted) if possible else None


def _cast(column: Column, found: DataType, wanted: DataType) -> Converted:
    if isinstance(found, (FloatType, DoubleType)):
        column = F.when(~F.isnan(column), column)
    value = column.try_cast(wanted)
    wrong = column.isNotNull() & value.isNull()
    if isinstance(found, _FRACTIONS):
        wrong = wrong | (column != F.floor(column))
    return Converted(value, wrong)


def _delays(column: Column, found: DataType, wanted: ArrayType) -> Converted | None:
    if not isinstance(found, ArrayType):
        return None
    if isinstance(found.elementType, LongType):
        return Converted(column, F.exists(column, lambda each: each.isNull()))
    if not isinstance(found.elementType, (IntegralType, StringType, NullType)):
        return None
    value = F.transform(column, lambda each: each.try_cast(wanted.elementType))
    return Converted(value, F.exists(value, lambda each: each.isNull()))


#: Reasons for which a whole file is left out, besides ``missing:<column>``.
UNREADABLE, WRONG_SCHEMA = "unreadable_file", "wrong_schema"

#: Columns that `read_events` adds to the history's: the file of a row, and for a row with a value of the wrong type,
#: why it is bad and the row as JSON.
ORIGIN = tuple(StructField(name, StringType()) for name in ("file", "problem", "raw"))

#: Values of required columns that files of early versions lack.
_WITHOUT = {"generation": 0}
_REQUIRED = [column.name for column in COLUMNS if column.required and column.name not in _WITHOUT]


@dataclass(frozen=True)
class Rejected:
    """A file that is left out."""

    file: Listed
    reason: str
    error: str


@dataclass(frozen=True)
class Read:
    """Content of the days: ``events`` (`EVENTS`, `ORIGIN`); ``rejected``, a row per file (`QUARANTINE`, ``day``)."""

    events: DataFrame
    rejected: DataFrame
    files: tuple[Footer, ...]
    left_out: tuple[Rejected, ...]

    @property
    def days(self) -> tuple[date, ...]:
        """The days that have files, broken files included."""
        return tuple(sorted({each.file.day for each in self.files} | {each.file.day for each in self.left_out}))

    @property
    def rows(self) -> int:
        """Rows of the files that are read, by their footers."""
        return sum(each.rows for each in self.files)

    @property
    def size(self) -> int:
        """Bytes of the files that are read."""
        return sum(each.file.size for each in self.files)

    @property
    def problems(self) -> Counter[str]:
        """How many files are left out, by reason."""
        return Counter(each.reason for each in self.left_out)


def list_days(spark: SparkSession, url: str) -> list[date]:
    """Return the days for which a history has folders. Raises `AnalyticsError` if the URL is not that of a history."""
    storage = open_storage(spark, url)
    folders = storage.folders(storage.url)
    days = sorted(day for folder in folders if (day := day_of(folder.name)))
    if days:
        return days
    if storage.find(storage.url) is None:
        raise AnalyticsError(f"{storage.url}: there is no such folder. Use the value of HISTORY_URL.")
    if names := [entry.name for entry in storage.entries(storage.url) if not entry.hidden]:
        found = f"{storage.url}: found {', '.join(names[:3])}, but no folder day=YYYY-MM-DD."
        raise AnalyticsError(f"{found} Use the value of HISTORY_URL.")
    return []


def day_of_file(path: str) -> Column:
    """Return the day of the folder that a file is in, from the column with its path; null: there is none."""
    return F.regexp_extract(path, r".*/day=(\d{4}-\d{2}-\d{2})/", 1).try_cast(DAY.dataType)


def read_events(spark: SparkSession, url: str, days: Days | None = None, without: Sequence[str] = ()) -> Read:
    """Return the events in the folders of these days; of all days for None.

    Reads the footers of all files now, the rows later. Files whose columns have other types that can be converted, or
    that lack nullable columns, are read; others are `Read.left_out`, as are those in ``without``, whose rows turned out
    to be broken. Raises `AnalyticsError` if the URL is not that of a history.
    """
    prepare(spark)
    wanted = {day: day_folder(day) for day in list_days(spark, url) if days is None or day in days}
    by_columns: dict[str, list[Footer]] = defaultdict(list)
    left_out = []
    for footer in read_footers(spark, list_files(open_storage(spark, url), wanted)):
        if special := PATTERN.search(footer.file.path):
            error = f"Its name contains {special[0]!r}, which Spark takes for a pattern of names."
            left_out.append(Rejected(footer.file, UNREADABLE, error))
        elif footer.file.path in without:
            left_out.append(Rejected(footer.file, UNREADABLE, "Its footer is complete, but its rows are broken."))
        elif footer.error is not None:
            left_out.append(Rejected(footer.file, UNREADABLE, footer.error))
        else:
            by_columns[footer.columns].append(footer)
    read, frames = [], []
    for footers in by_columns.values():
        found = _scan(spark, footers)
        if isinstance(found, DataFrame):
            frames.append(found)
            read += footers
        else:
            left_out += [replace(found, file=footer.file) for footer in footers]
    events = reduce(DataFrame.unionByName, frames or [spark.createDataFrame([], StructType([*EVENTS, *ORIGIN]))])
    rejected = [(each.reason, each.file.path, json.dumps({"error": each.error}), each.file.day) for each in left_out]
    bad = spark.createDataFrame(rejected, StructType([*QUARANTINE, DAY]))
    return Read(events, bad, tuple(read), tuple(left_out))


def _scan(spark: SparkSession, footers: list[Footer]) -> DataFrame | Rejected:
    """Return the rows of files that have the same columns, or why they cannot be read."""
    first = footers[0].file
    try:
        found = spark.read.parquet(first.path).schema
    except AnalysisException as error:
        if error.getCondition() == "PATH_NOT_FOUND":
            raise went_away(first.path) from error
        return Rejected(first, WRONG_SCHEMA, " ".join(str(error).split())[:300])
    if missing := next((name for name in _REQUIRED if name not in found.names), None):
        return Rejected(first, f"missing:{missing}", f"The column {missing} is missing.")
    values, wrong = [], []
    for field in EVENTS:
        if field.name not in found.names:
            values.append(F.lit(_WITHOUT.get(field.name)).cast(field.dataType).alias(field.name))
            continue
        kind = found[field.name].dataType
        way = converted(field.name, kind, field.dataType, nanoseconds=field.name in footers[0].nanoseconds)
        if way is None:
            what = f"The column {field.name} is {kind.simpleString()}, not {field.dataType.simpleString()}."
            return Rejected(first, WRONG_SCHEMA, what)
        values.append(way.value.alias(field.name))
        if way.is_wrong is not None:
            wrong.append(F.when(way.is_wrong, f"wrong_type:{field.name}"))
    known = StructType([field for field in found if field.name in EVENTS.names])
    rows = spark.read.schema(known).parquet(*[each.file.path for each in footers])
    problem = raw = F.lit(None).cast("string")
    if wrong:
        problem = F.coalesce(*wrong)
        raw = F.when(problem.isNotNull(), F.to_json(F.struct(*rows.columns)))
    origin = (F.col("_metadata.file_path"), problem, raw)
    return rows.select(*values, *[column.alias(field.name) for column, field in zip(origin, ORIGIN, strict=True)])
