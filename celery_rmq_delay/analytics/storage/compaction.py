"""Merge the many small files of a day into few: the collector writes one every few seconds.

The merged file is written, and its rows are counted, before the first small one is removed. After a crash in between,
rows exist twice, which cleaning detects. Only files that the run has read are merged, never those of today.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from uuid import uuid4

from pyspark.sql import SparkSession

from ...exceptions import AnalyticsError
from ..session import no_jobs_left
from .files import Entry, Storage, parent_of
from .footers import Footer, Listed, read_footers
from .local import open_storage
from .readers import Read

#: Files of at least this many bytes are not merged; merged files have about `MERGED_BYTES`.
SMALL_BYTES = 32 * 2**20
MERGED_BYTES = 128 * 2**20
#: Fewer small files than this are not merged.
LEAST_FILES = 8

_UNFINISHED = "_compact-"


@dataclass(frozen=True)
class Compacted:
    """The numbers of files before and after merging."""

    before: int = 0
    after: int = 0

    def __add__(self, other: Compacted) -> Compacted:
        return Compacted(self.before + other.before, self.after + other.after)


def compact(spark: SparkSession, url: str, read: Read, today: date) -> Compacted:
    """Merge the small files of the days before ``today`` (UTC). Raises `AnalyticsError` if that fails."""
    storage, done = open_storage(spark, url), Compacted()
    for day in (day for day in read.days if day < today):
        _remove_unfinished(storage, f"{storage.url}/day={day}")
    for files in mergeable(read.files, today):
        done += _merge(spark, storage, files)
    return done


def mergeable(files: tuple[Footer, ...], today: date) -> Iterator[list[Footer]]:
    """Yield the lists of files to merge: small, of one day, and with identical columns."""
    alike: dict[tuple[date, str], list[Footer]] = defaultdict(list)
    for each in files:
        # Times in nanoseconds would be written as plain numbers.
        if each.file.day < today and each.file.size < SMALL_BYTES and not each.nanoseconds:
            alike[each.file.day, each.columns].append(each)
    return (found for found in alike.values() if len(found) >= LEAST_FILES)


def _merge(spark: SparkSession, storage: Storage, files: list[Footer]) -> Compacted:
    folder = parent_of(files[0].file.path)
    unfinished = f"{folder}/{_UNFINISHED}{uuid4().hex}"
    try:
        with no_jobs_left(spark):
            written = _write_merged(spark, storage, files, unfinished)
        for entry in written:
            storage.rename(entry.path, f"{folder}/part-{uuid4().hex}.parquet")
        for each in files:
            storage.delete(each.file.path)
    finally:
        storage.delete(unfinished)
    return Compacted(len(files), len(written))


def _write_merged(spark: SparkSession, storage: Storage, files: list[Footer], folder: str) -> list[Entry]:
    parts = 1 + sum(each.file.size for each in files) // MERGED_BYTES
    spark.read.parquet(*[each.file.path for each in files]).coalesce(parts).write.parquet(folder)
    written = [entry for entry in storage.entries(folder) if not entry.hidden]
    _check_rows(spark, [Listed(entry.path, files[0].file.day, entry.size) for entry in written], files)
    return written


def _check_rows(spark: SparkSession, written: list[Listed], files: list[Footer]) -> None:
    found, wanted = sum(each.rows for each in read_footers(spark, written)), sum(each.rows for each in files)
    if found != wanted:
        raise AnalyticsError(
            f"{parent_of(files[0].file.path)}: the merged file has {found} rows, the small ones have {wanted}. "
            "Nothing was removed; use --no-compact."
        )


def _remove_unfinished(storage: Storage, folder: str) -> None:
    for entry in storage.entries(folder):
        if entry.name.startswith(_UNFINISHED):
            storage.delete(entry.path)
