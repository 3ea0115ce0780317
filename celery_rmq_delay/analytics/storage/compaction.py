"""Merge the many small files of a day into few: the collector writes one every few seconds.

The merged file is written, and its rows are counted, before the first small one is removed. After a crash in between,
rows exist twice, which cleaning detects. Only files that the run has read are merged, never those of today.
"""

from __future__ import annotations

from collections import defaultdict, deque
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from functools import partial
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
from pyarrow import parquet
from pyspark.sql import SparkSession

from ...exceptions import AnalyticsError
from ...history.tables import day_folder
from ..session import no_jobs_left
from .files import Storage, local_path, open_storage, shared_folder, system_errors
from .readers import Footer, Listed, Read, list_files, read_footers

#: Files of at least this many bytes are not merged; merged files have about `MERGED_BYTES`.
SMALL_BYTES = 32 * 2**20
MERGED_BYTES = 128 * 2**20
#: Fewer small files than this are not merged.
LEAST_FILES = 8

#: Bytes of rows in memory that become one row group.
_ROW_GROUP_BYTES = 64 * 2**20

_UNFINISHED = "_compact-"


def compact(spark: SparkSession, url: str, read: Read, today: date) -> tuple[int, int]:
    """Merge the small files of days before ``today`` (UTC); return how many, and into how many."""
    storage, groups = open_storage(spark, url), _mergeable(read.files, today)
    for day in (day for day in read.days if day < today):
        _remove_unfinished(storage, f"{storage.url}/{day_folder(day)}")
    # Merging a day's files is the work of one core: as many days at a time as there are cores.
    with ThreadPoolExecutor(spark.sparkContext.defaultParallelism) as pool:
        return sum(map(len, groups)), sum(pool.map(partial(_merge, spark, storage), groups))


def _mergeable(files: tuple[Footer, ...], today: date) -> list[list[Footer]]:
    """Return the lists of files to merge: small, of one day, and with identical columns."""
    alike: dict[tuple[date, str], list[Footer]] = defaultdict(list)
    for each in files:
        # Times in nanoseconds would be written as plain numbers.
        if each.file.day < today and each.file.size < SMALL_BYTES and not each.nanoseconds:
            alike[each.file.day, each.columns].append(each)
    return [found for found in alike.values() if len(found) >= LEAST_FILES]


def _merge(spark: SparkSession, storage: Storage, files: list[Footer]) -> int:
    folder = f"{storage.url}/{day_folder(files[0].file.day)}"
    unfinished = f"{_UNFINISHED}{uuid4().hex}"
    try:
        with no_jobs_left(spark):
            written = _write_merged(spark, storage, files, unfinished)
        merged = [f"{folder}/part-{uuid4().hex}.parquet" for _ in written]
        for each, path in zip(written, merged, strict=True):
            storage.rename(each.path, path)
        storage.flush([*merged, folder])
        for small in files:
            storage.delete(small.file.path)
    finally:
        storage.delete(f"{folder}/{unfinished}")
    return len(written)


def _write_merged(spark: SparkSession, storage: Storage, files: list[Footer], name: str) -> list[Listed]:
    """Write the rows of a day's files into the folder ``name`` in that of the day, and return the written files."""
    day, size = files[0].file.day, sum(each.file.size for each in files)
    within = f"{day_folder(day)}/{name}"
    folder = f"{storage.url}/{within}"
    local = shared_folder(spark, folder)
    if local is None or not _merged_here(files, local):
        rows = spark.read.parquet(*[each.file.path for each in files])
        rows.coalesce(1 + size // MERGED_BYTES).write.mode("overwrite").parquet(folder)
    written = list_files(storage, {day: within})
    found, wanted = sum(each.rows for each in read_footers(spark, written)), sum(each.rows for each in files)
    if found != wanted:
        raise AnalyticsError(
            f"{storage.url}/{day_folder(day)}: the merged file has {found} rows, the small ones have {wanted}. "
            "Nothing was removed; use --no-compact."
        )
    return written


def _merged_here(files: list[Footer], folder: Path) -> bool:
    """Merge files with PyArrow, which opens one in a tenth of Spark's time; False: it cannot read or write them."""
    waiting = deque(files)
    with system_errors(str(folder)):
        folder.mkdir()
        try:
            while waiting:
                _write_one(waiting, folder / f"part-{uuid4().hex}.parquet")
        except pa.ArrowException:
            return False
    return True


def _write_one(waiting: deque[Footer], path: Path) -> None:
    """Move rows of the first files into a new one, until it has about `MERGED_BYTES`."""
    schema = parquet.read_schema(local_path(waiting[0].file.path))
    if any(pa.types.is_timestamp(each) and each.unit == "ns" for each in schema.types):
        raise pa.ArrowNotImplementedError("times of the type INT96, for which PyArrow's nanoseconds end in 2262")
    size, held, rows = 0, 0, list[pa.Table]()
    with parquet.ParquetWriter(path, schema, compression="zstd") as writer:
        while waiting and size < MERGED_BYTES:
            each = waiting.popleft()
            rows.append(parquet.ParquetFile(local_path(each.file.path)).read())
            size, held = size + each.file.size, held + rows[-1].nbytes
            if held >= _ROW_GROUP_BYTES or not waiting or size >= MERGED_BYTES:
                writer.write_table(pa.concat_tables(rows))
                held = 0
                rows.clear()


def _remove_unfinished(storage: Storage, folder: str) -> None:
    for entry in storage.entries(folder):
        if entry.name.startswith(_UNFINISHED):
            storage.delete(entry.path)
