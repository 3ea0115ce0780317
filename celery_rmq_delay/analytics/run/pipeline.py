"""Run the pipeline: read and clean the history, compute every table, and replace the days at the end."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from urllib.parse import unquote
from uuid import uuid4

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from ...exceptions import AnalyticsError
from ..session import prepare
from ..storage.addresses import address_of
from ..storage.compaction import compact
from ..storage.files import Storage
from ..storage.footers import went_away
from ..storage.locking import Lock, locked
from ..storage.readers import Read, list_days, read_events
from ..storage.writers import Replacement, recover
from .computing import Writing, advised, write_attempts, write_estimates, write_tables
from .planning import Plan, Run, planned
from .report import Report

#: Rows of one partition of the shuffle: a worker can sort this many in little memory.
ROWS_OF_PARTITION = 400_000
_MOST_PARTITIONS = 4_000
#: Broken files found while rows are read: after this many the run fails, as the cause is not the files.
_MOST_BROKEN = 100
#: Most files that the report names one by one.
_MOST_NAMED = 20

_BROKEN = re.compile(r"FAILED_READ_FILE\.(\w+)\][^\n]*? file (\S+?)\.? ")

Log = Callable[[str], None]


def run(spark: SparkSession, what: Run, log: Log = lambda line: None) -> Report:
    """Compute the tables for the days and replace these days.

    Raises `AnalyticsError`. The output is then unchanged; but if the storage fails while days are being replaced, the
    next run completes the replacement.
    """
    prepare(spark)
    report = Report(uuid4().hex, address_of(what.input).url, address_of(what.output).url, what.now)
    present = list_days(spark, what.input)
    with locked(spark, what.output, report.run) as lock:
        report.notes += recover(spark, what.output)
        plan = planned(present, what)
        if plan is None:
            report.notes.append("The history has no files of these days: nothing was computed.")
        else:
            report.first_day, report.last_day = str(plan.days.first), str(plan.days.last)
            replacement = Replacement(spark, what.output, report.run)
            read = _compute(spark, what, plan, replacement, lock, report, log)
            with report.stage("publish", log):
                _publish(replacement)
            _compact(spark, what, read, report, log)
        storage = Storage(spark, what.output)
        name, text = report.file()
        storage.write_whole(f"{storage.url}/{name}", text)
    return report


def partitions_for(rows: int, cores: int) -> int:
    """Return the number of shuffle partitions: at least one per core, each small enough to be sorted in memory."""
    return min(_MOST_PARTITIONS, max(cores, -(-rows // ROWS_OF_PARTITION)))


def _compute(
    spark: SparkSession, what: Run, plan: Plan, replacement: Replacement, lock: Lock, report: Report, log: Log
) -> Read:
    """Write all tables and commit the replacement; return what was read. After an error the output is unchanged."""
    try:
        with report.stage("read footers", log):
            read = read_events(spark, what.input, plan.read)
        partitions = partitions_for(read.rows, spark.sparkContext.defaultParallelism)
        with _shuffling(spark, partitions):
            writing = Writing(replacement, plan, partitions, report, log)
            read, attempt_rows = _attempts(spark, what, read, writing)
            known = write_tables(writing, read, attempt_rows, what.now)
            if what.estimate is not None:
                write_estimates(writing, advised(writing, attempt_rows, known), what.estimate, what.ladders)
        report.bytes_written = replacement.size()
        for swap in replacement.decide(lock.check):
            report.tables[swap.table] = report.tables.get(swap.table, 0) + bool(swap.files)
    except (PySparkException, Py4JJavaError) as error:
        replacement.discard()
        raise AnalyticsError(_explained(error)) from error
    except BaseException:
        replacement.discard()
        raise
    return read


def _publish(replacement: Replacement) -> None:
    try:
        replacement.complete()
    except AnalyticsError as error:
        raise AnalyticsError(
            f"{error} - All tables are computed, but only some of their days are replaced. Correct the error and run"
            " again: the next run, for any days, completes the replacement first."
        ) from error


def _attempts(spark: SparkSession, what: Run, read: Read, writing: Writing) -> tuple[Read, DataFrame]:
    """Write the attempts, and return them. If a file turns out to be broken, read again without it."""
    broken: list[str] = []
    while True:
        try:
            attempt_rows = write_attempts(writing, read, what.now)
            break
        except (PySparkException, Py4JJavaError) as error:
            path = broken_file(str(error))
            if path is None or path in broken or len(broken) == _MOST_BROKEN:
                raise
            broken.append(path)
            read = read_events(spark, what.input, writing.plan.read, broken)
    report = writing.report
    report.read_from = str(writing.plan.read.first)
    report.advice_from = None if what.estimate is None else str(writing.plan.advice.first)
    report.files, report.bytes_read, report.left_out = len(read.files), read.size, dict(read.problems)
    report.notes += [f"left out {each.file.path}: {each.reason}: {each.error}" for each in read.left_out[:_MOST_NAMED]]
    if len(read.left_out) > _MOST_NAMED:
        report.notes.append(f"left out {len(read.left_out) - _MOST_NAMED} more files: see the table quarantine")
    return read, attempt_rows


def _compact(spark: SparkSession, what: Run, read: Read, report: Report, log: Log) -> None:
    """Merge small files of the history. An error here is reported and does not affect the computed tables."""
    if not what.compact:
        return
    try:
        with report.stage("compact", log), locked(spark, what.input, report.run):
            done = compact(spark, what.input, read, what.now.date())
        report.compacted = {"files": done.before, "into": done.after} if done.before else {}
    except (AnalyticsError, PySparkException, Py4JJavaError) as error:
        report.notes.append(f"small files were not merged: {_explained(error)}")


@contextmanager
def _shuffling(spark: SparkSession, partitions: int) -> Iterator[None]:
    """Set the number of partitions of every shuffle."""
    name = "spark.sql.shuffle.partitions"
    before = spark.conf.get(name)
    spark.conf.set(name, str(partitions))
    try:
        yield
    finally:
        spark.conf.set(name, str(before))


def broken_file(error: str) -> str | None:
    """Return the file whose rows could not be read according to Spark's error; None for any other error."""
    match = _BROKEN.search(error)
    if match is None or match[1] == "FILE_NOT_EXIST":
        return None
    # Spark writes a URL; Hadoop, which lists the files, writes a path, with one slash if it is local.
    return unquote(match[2]).replace("file:///", "file:/")


def _explained(error: Exception) -> str:
    text = " ".join(str(error).split())
    if "FILE_NOT_EXIST" in text or "FileNotFoundException" in text:
        return str(went_away(text))
    if "No space left on device" in text:
        return f"The disk is full. Set Spark's temporary folder with --conf spark.local.dir=FOLDER. ({text[:300]})"
    if "OutOfMemoryError" in text:
        return f"Java ran out of memory. Use --conf spark.driver.memory=8g, or a cluster. ({text[:300]})"
    return text[:1000]
