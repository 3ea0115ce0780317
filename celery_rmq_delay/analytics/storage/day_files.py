"""Write rows into one Parquet file per day with PyArrow, for output on the disk of the machine that runs Spark.

Spark's writer converts one value at a time, which took longer than computing the attempts. PyArrow gets whole columns.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from uuid import uuid4

import numpy as np
import pyarrow as pa
from pyarrow import compute, parquet
from pyspark.sql import DataFrame
from pyspark.sql.types import StringType, StructField, StructType

from ..days import Days
from ..schema import DAY

#: Bytes of rows that a task keeps before it writes them: a row group for each day.
_MOST_BYTES = 192 * 2**20
#: Pieces of batches that a task keeps: with many days they are small, and take more memory than their rows.
_MOST_SLICES = 20_000

#: Files that a task has open at once: a process may usually have 1,024.
_MOST_OPEN = 500

_EPOCH = date(1970, 1, 1)

_Batches = Iterator[pa.RecordBatch]

_WRITTEN = StructType([StructField("file", StringType())])


@dataclass(frozen=True)
class Rows:
    """Rows with a column ``day``: those of a ``frame``, or what ``make`` makes of the batches of each partition of it.

    ``schema``: of the rows; None for that of the frame. So made rows are written where they are made: moving them to
    Java and back takes as long as making them.
    """

    frame: DataFrame
    make: Callable[[_Batches], _Batches] | None = None
    schema: StructType | None = None

    def to_frame(self) -> DataFrame:
        """Return the rows as a frame."""
        if self.make is None or self.schema is None:
            return self.frame
        return self.frame.mapInArrow(self.make, self.schema)


def write_days(rows: Rows, folder: Path, days: Days, repeating: Sequence[str]) -> None:
    """Write ``<folder>/day=YYYY-MM-DD/*.parquet``: one file per day and partition of the frame.

    Files do not contain the column ``day``; rows of other days than ``days`` are left out. ``repeating``: Parquet's
    paths of the columns whose values repeat, which get a dictionary. The folder is created here, and not by the tasks:
    one that ends late cannot create it again.
    """
    folder.mkdir(parents=True, exist_ok=True)
    written = rows.frame.mapInArrow(_writer(str(folder), days, list(repeating), rows.make), _WRITTEN).collect()
    _remove_others(folder, {row["file"] for row in written})


def _remove_others(folder: Path, written: set[str]) -> None:
    """Remove the files of tasks that failed and were run again, which some masters do."""
    for of_day in folder.iterdir():
        files = set(map(str, of_day.iterdir()))
        for path in files - written:
            Path(path).unlink()
        if not files & written:
            of_day.rmdir()


def _writer(
    folder: str, days: Days, repeating: list[str], make: Callable[[_Batches], _Batches] | None
) -> Callable[[_Batches], _Batches]:
    """Return the function that writes the rows of one partition, in a worker of Spark."""

    def write(batches: _Batches) -> _Batches:
        with _DayFiles(Path(folder), days, repeating) as files:
            for batch in make(batches) if make else batches:
                files.add(batch)
            files.write()
        yield pa.RecordBatch.from_pydict({"file": files.names}, pa.schema([("file", pa.string())]))

    return write


class _DayFiles:
    """The files of one task, by day. Rows are collected until there are enough for a row group of each day.

    A history of more days than files may be open has several files per day.
    """

    def __init__(self, folder: Path, days: Days, repeating: list[str]) -> None:
        self._folder, self._repeating = folder, repeating
        self._first, self._last = ((day - _EPOCH).days for day in (days.first, days.last))
        self.names: list[str] = []
        self._writers: dict[date, parquet.ParquetWriter] = {}
        self._rows: dict[date, list[pa.RecordBatch]] = defaultdict(list)
        self._bytes = self._slices = 0
        self._open = ExitStack()

    def __enter__(self) -> _DayFiles:
        return self

    def __exit__(self, *error: object) -> None:
        self._open.close()

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
            folder = self._folder / f"{DAY.name}={day.isoformat()}"
            folder.mkdir(exist_ok=True)
            path = folder / f"part-{uuid4().hex}.parquet"
            writer = parquet.ParquetWriter(path, schema, compression="zstd", use_dictionary=self._repeating)
            self._writers[day] = self._open.enter_context(writer)
            self.names.append(str(path))
        return self._writers[day]
