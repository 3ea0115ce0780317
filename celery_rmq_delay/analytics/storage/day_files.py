"""Write rows into one Parquet file per day with PyArrow, for output on the disk of the machine that runs Spark.

Spark's writer converts one value at a time, which took longer than computing the attempts. PyArrow gets whole columns.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from datetime import date
from pathlib import Path
from uuid import uuid4

import numpy as np
import pyarrow as pa
from pyarrow import compute, parquet
from pyspark.sql import DataFrame
from pyspark.sql.types import LongType, StructField, StructType

from ..schema import DAY

#: Bytes of rows that a task keeps before it writes them: a row group for each day.
_MOST_BYTES = 192 * 2**20

_WRITTEN = StructType([StructField("files", LongType())])


def write_days(frame: DataFrame, folder: Path, repeating: Sequence[str]) -> None:
    """Write ``<folder>/day=YYYY-MM-DD/*.parquet``: at most one file per day and partition of the frame.

    ``frame`` has a column ``day``, which files do not contain. ``repeating``: Parquet's paths of the columns whose
    values repeat, which get a dictionary. The folder is created here, and not by the tasks: one that ends late
    cannot create it again.
    """
    folder.mkdir(parents=True, exist_ok=True)
    frame.mapInArrow(_writer(str(folder), list(repeating)), _WRITTEN).collect()


def _writer(folder: str, repeating: list[str]) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function that writes the rows of one partition, in a worker of Spark."""

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with _DayFiles(Path(folder), repeating) as files:
            for batch in batches:
                files.add(batch)
            files.write()
        yield pa.RecordBatch.from_pydict({"files": [len(files.writers)]})

    return write


class _DayFiles:
    """The files of one task, by day. Rows are collected until there are enough for a row group of each day."""

    def __init__(self, folder: Path, repeating: list[str]) -> None:
        self._folder, self._repeating = folder, repeating
        self.writers: dict[date, parquet.ParquetWriter] = {}
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
            if end > first:
                self._rows[days[first].as_py()].append(rows.slice(first, end - first))
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
        if day not in self.writers:
            folder = self._folder / f"{DAY.name}={day.isoformat()}"
            folder.mkdir(exist_ok=True)
            path = folder / f"part-{uuid4().hex}.parquet"
            writer = parquet.ParquetWriter(path, schema, compression="zstd", use_dictionary=self._repeating)
            self.writers[day] = self._open.enter_context(writer)
        return self.writers[day]
