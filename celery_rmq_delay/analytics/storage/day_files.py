"""Write rows into one Parquet file per day with PyArrow, and the counts that their function makes beside them.

Spark's writer converts one value at a time, which took longer than computing the attempts. PyArrow gets whole columns.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import date
from functools import cached_property
from itertools import chain
from pathlib import Path
from uuid import uuid4

import numpy as np
import pyarrow as pa
from pyarrow import compute, parquet
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StringType, StructField, StructType

from ...history.tables import day_folder
from ..days import Days
from ..schema import DAY

Batches = Iterator[pa.RecordBatch]

#: Receives counts: a table with some of their columns.
Count = Callable[[pa.Table], None]

_ROW, _COUNT = "row", "count"


@dataclass(frozen=True)
class Made:
    """Rows (``schema``) and counts (``counts``) that ``make`` makes of the batches of each partition of a ``frame``.

    It yields the rows, and calls its second argument with the counts. On one machine both are written where they are
    made: moving them to Java and back takes as long as making them.
    """

    frame: DataFrame
    make: Callable[[Batches, Count], Batches]
    schema: StructType
    counts: StructType

    @cached_property
    def both(self) -> DataFrame:
        """Rows and counts, made once if it is persisted: a ``row`` or a ``count``, the other one is null."""
        fields = StructType([StructField(_ROW, self.schema), StructField(_COUNT, self.counts)])
        return self.frame.mapInArrow(_both(self.make, fields), fields)

    def to_frame(self) -> DataFrame:
        """Return the rows."""
        return self.both.where(F.col(_ROW).isNotNull()).select(f"{_ROW}.*")

    def to_counts(self) -> DataFrame:
        """Return the counts."""
        return self.both.where(F.col(_COUNT).isNotNull()).select(f"{_COUNT}.*")


def with_columns(found: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return the columns of a schema; those that the table lacks are null."""
    nulls = {field.name: pa.nulls(len(found), field.type) for field in schema}
    columns = {**nulls, **{name: found[name].cast(schema.field(name).type) for name in found.column_names}}
    return pa.table([columns[name] for name in schema.names], schema=schema)


def _both(make: Callable[[Batches, Count], Batches], fields: StructType) -> Callable[[Batches], Batches]:
    """Return the function for Spark, which takes rows of one kind only."""

    def made(batches: Batches) -> Batches:
        schema = to_arrow_schema(fields, timezone="UTC")
        counted: list[pa.Table] = []

        def only(name: str, batch: pa.RecordBatch) -> pa.RecordBatch:
            values = pa.StructArray.from_arrays(batch.columns, fields=list(schema.field(name).type))
            others = {field.name: pa.nulls(len(batch), field.type) for field in schema}
            return pa.record_batch(list({**others, name: values}.values()), schema=schema)

        # Counts follow the last rows, too.
        for batch in chain(make(batches, counted.append), [None]):
            if batch is not None:
                yield only(_ROW, batch)
            while counted:
                each = with_columns(counted.pop(), pa.schema(list(schema.field(_COUNT).type)))
                yield from (only(_COUNT, batch) for batch in each.to_batches())

    return made


#: Bytes of rows that a task keeps before it writes them: a row group for each day.
_MOST_BYTES = 192 * 2**20
#: Pieces of batches that a task keeps: with many days they are small, and take more memory than their rows.
_MOST_SLICES = 20_000

#: Files that a task has open at once: a process may usually have 1,024.
_MOST_OPEN = 500

_EPOCH = date(1970, 1, 1)

_Make = Callable[[Batches, Count], Batches]

_WRITTEN = StructType([StructField("file", StringType())])


def write_days(rows: DataFrame, folder: Path, days: Days, repeating: Sequence[str]) -> None:
    """Write ``<folder>/day=YYYY-MM-DD/*.parquet`` of rows with a column ``day``: one file per day and partition.

    Files do not contain the column ``day``; rows of other days than ``days`` are left out. ``repeating``: Parquet's
    paths of the columns whose values repeat, which get a dictionary. The folder is created here, and not by the tasks:
    one that ends late cannot create it again.
    """
    _write(rows, _Folder(folder, days, list(repeating)), lambda batches, count: batches)


def write_made(made: Made, folder: Path, days: Days, repeating: Sequence[str], counts: Path) -> list[str]:
    """Write made rows as `write_days` does, and their counts into files in the folder ``counts``; return the names."""
    counts.mkdir(parents=True, exist_ok=True)
    counted = to_arrow_schema(made.counts, timezone="UTC")
    written = _write(made.frame, _Folder(folder, days, list(repeating), counts, counted), made.make)
    return [path.name for path in map(Path, written) if path.parent == counts]


@dataclass(frozen=True)
class _Folder:
    """What the tasks write: rows of the ``days`` into ``path``, and counts (columns ``counted``) into ``counts``."""

    path: Path
    days: Days
    repeating: list[str]
    counts: Path | None = None
    counted: pa.Schema | None = None


def _write(frame: DataFrame, folder: _Folder, make: _Make) -> set[str]:
    """Write what ``make`` makes of each partition, and return the files."""
    folder.path.mkdir(parents=True, exist_ok=True)
    written = {row["file"] for row in frame.mapInArrow(_writer(folder, make), _WRITTEN).collect()}
    _remove_others(folder.path, written)
    return written


def _remove_others(folder: Path, written: set[str]) -> None:
    """Remove the files of tasks that failed and were run again, which some masters do."""
    for of_day in folder.iterdir():
        files = set(map(str, of_day.iterdir()))
        for path in files - written:
            Path(path).unlink()
        if not files & written:
            of_day.rmdir()


def _writer(folder: _Folder, make: _Make) -> Callable[[Batches], Batches]:
    """Return the function that writes the rows of one partition, in a worker of Spark."""

    def write(batches: Batches) -> Batches:
        with _DayFiles(folder) as files:
            for batch in make(batches, files.count):
                files.add(batch)
            files.write()
        yield pa.RecordBatch.from_pydict({"file": files.names}, pa.schema([("file", pa.string())]))

    return write


class _DayFiles:
    """The files of one task: several a day if there are more days than files may be open. Rows wait for a row group."""

    def __init__(self, folder: _Folder) -> None:
        self._folder = folder
        self._first, self._last = ((day - _EPOCH).days for day in (folder.days.first, folder.days.last))
        self.names: list[str] = []
        self._writers: dict[date, parquet.ParquetWriter] = {}
        self._rows: dict[date, list[pa.RecordBatch]] = defaultdict(list)
        self._bytes = self._slices = 0
        self._open, self._counting = ExitStack(), ExitStack()
        self._counts: parquet.ParquetWriter | None = None

    def __enter__(self) -> _DayFiles:
        return self

    def __exit__(self, *error: object) -> None:
        with self._counting, self._open:
            pass

    def count(self, found: pa.Table) -> None:
        """Write counts."""
        if self._folder.counts is None or self._folder.counted is None:
            raise TypeError("rows that are written without counts")
        if self._counts is None:
            path = self._folder.counts / f"part-{uuid4().hex}.parquet"
            writer = parquet.ParquetWriter(path, self._folder.counted, compression="zstd")
            self._counts = self._counting.enter_context(writer)
            self.names.append(str(path))
        self._counts.write_table(with_columns(found, self._folder.counted))

    def add(self, batch: pa.RecordBatch) -> None:
        """Add rows; they are sorted by day once, so that those of a day are a slice."""
        ordered = batch.take(compute.sort_indices(batch.column(DAY.name)))
        days = ordered.column(DAY.name)
        rows = ordered.drop_columns([DAY.name])
        numbers = days.cast(pa.int32()).to_numpy()
        starts = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist()]
        for first, end in zip(starts, [*starts[1:], len(numbers)], strict=True):
            # As numbers: Python has no dates before the year 1.
            if end > first and self._first <= numbers[first] <= self._last:
                self._rows[days[first].as_py()].append(rows.slice(first, end - first))
                self._slices += 1
        self._bytes += rows.nbytes
        if self._bytes >= _MOST_BYTES or self._slices >= _MOST_SLICES:
            self.write()

    def write(self) -> None:
        """Write the collected rows."""
        for day, batches in self._rows.items():
            self._writer_of(day, batches[0].schema).write_table(pa.Table.from_batches(batches))
        self._rows.clear()
        self._bytes = self._slices = 0

    def _writer_of(self, day: date, schema: pa.Schema) -> parquet.ParquetWriter:
        if day not in self._writers:
            if len(self._writers) == _MOST_OPEN:
                self._open.close()
                self._writers.clear()
            folder = self._folder.path / day_folder(day)
            folder.mkdir(exist_ok=True)
            path = folder / f"part-{uuid4().hex}.parquet"
            writer = parquet.ParquetWriter(path, schema, compression="zstd", use_dictionary=self._folder.repeating)
            self._writers[day] = self._open.enter_context(writer)
            self.names.append(str(path))
        return self._writers[day]
