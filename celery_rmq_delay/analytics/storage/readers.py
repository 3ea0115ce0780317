"""Read the history's files as one DataFrame; files that cannot be read are reported and left out."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date
from functools import reduce

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.sql.types import StringType, StructField, StructType

from ...exceptions import AnalyticsError
from ...history.columns import COLUMNS, day_folder
from ..days import Days, day_of
from ..schema import DAY, EVENTS, QUARANTINE
from ..session import prepare
from .addresses import PATTERN
from .conversions import converted
from .footers import Footer, Listed, list_files, read_footers, went_away
from .local import open_storage

#: Reasons for which a whole file is left out, besides ``missing:<column>``.
UNREADABLE, WRONG_SCHEMA = "unreadable_file", "wrong_schema"

#: Columns that `read_events` adds to the history's: the file of a row, and for a row with a value of the wrong type,
#: why it is bad and the row as JSON.
ORIGIN = (
    StructField("file", StringType()),
    StructField("problem", StringType()),
    StructField("raw", StringType()),
)

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
    read, frames = [], [_no_rows(spark)]
    for footers in by_columns.values():
        found = _scan(spark, footers)
        if isinstance(found, DataFrame):
            frames.append(found)
            read += footers
        else:
            left_out += [replace(found, file=footer.file) for footer in footers]
    events = reduce(DataFrame.unionByName, frames[1:] or frames)
    return Read(events, _rejected(spark, left_out), tuple(read), tuple(left_out))


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
    rows = spark.read.schema(_known(found)).parquet(*[each.file.path for each in footers])
    return _with_origin(rows, values, wrong)


def _known(found: StructType) -> StructType:
    """Return the columns of files that are in the history's schema; others are not read."""
    return StructType([field for field in found if field.name in EVENTS.names])


def _with_origin(rows: DataFrame, values: list[Column], wrong: list[Column]) -> DataFrame:
    problem = F.coalesce(*wrong) if wrong else F.lit(None).cast("string")
    raw = F.when(problem.isNotNull(), F.to_json(F.struct(*rows.columns))) if wrong else F.lit(None).cast("string")
    origin = (F.col("_metadata.file_path"), problem, raw)
    return rows.select(*values, *[column.alias(field.name) for column, field in zip(origin, ORIGIN, strict=True)])


def _no_rows(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame([], StructType([*EVENTS, *ORIGIN]))


def _rejected(spark: SparkSession, left_out: Iterable[Rejected]) -> DataFrame:
    return spark.createDataFrame(list(_rejected_rows(left_out)), StructType([*QUARANTINE, DAY]))


def _rejected_rows(left_out: Iterable[Rejected]) -> Iterator[tuple[str, str, str, date]]:
    for each in left_out:
        yield each.reason, each.file.path, json.dumps({"error": each.error}), each.file.day
