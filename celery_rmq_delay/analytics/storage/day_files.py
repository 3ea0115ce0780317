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
from pyspark.sql.types import LongType, StructField, StructType

from ..days import Days
from ..schema import DAY

#: Bytes of rows that a task keeps before it writes them: a row group for each day.
_MOST_BYTES = 192 * 2**20

#: Files that a task has open at once: a process may usually have 1,024.
_MOST_OPEN = 500

_Batches = Iterator[pa.RecordBatch]

_WRITTEN = StructType([StructField("files", LongType())])


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
    rows.frame.mapInArrow(_writer(str(folder), days, list(repeating), rows.make), _WRITTEN).collect()


def _writer(
    folder: str, days: Days, repeating: list[str], make: Callable[[_Batches], _Batches] | None
) -> Callable[[_Batches], _Batches]:
    """Return the function that writes the rows of one partition, in a worker of Spark."""

    def write(batches: _Batches) -> _Batches:
        with _DayFiles(Path(folder), days, repeating) as files:
            for batch in make(batches) if make else batches:
                files.add(batch)
            files.write()
        yield pa.RecordBatch.from_pydict({"files": [files.count]})

    return write


class _DayFiles:
    """The files of one task, by day. Rows are collected until there are enough for a row group of each day.

    A history of more days than files may be open has several files per day.
    """

    def __init__(self, folder: Path, days: Days, repeating: list[str]) -> None:
        self._folder, self._days, self._repeating = folder, days, repeating
        self.count = 0
        self._writers: dict[date, parquet.ParquetWriter] = {}
        self._rows: dict[date, list[pa.RecordBatch]] = defaultdict(list)
        self._bytes = 0
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
            if end > first and (day := days[first].as_py()) in self._days:
                self._rows[day].append(rows.slice(first, end - first))
        self._bytes += rows.nbytes
        if self._bytes >= _MOST_BYTES:
            self.write()

    def write(self) -> None:
        """Write the collected rows."""
        for day, batches in self._rows.items():
            self._writer_of(day, batches[0].schema).write_table(pa.Table.from_batches(batches))
        self._rows.clear()
        self._bytes = 0

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
            self.count += 1
        return self._writers[day]
