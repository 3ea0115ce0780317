"""Run the pipeline: read and clean the history, compute every table, and publish all of them at the end."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from urllib.parse import unquote
from uuid import uuid4

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from ...exceptions import AnalyticsError
from ..days import Days
from ..session import no_jobs_left, prepare
from ..storage.addresses import address_of
from ..storage.compaction import compact
from ..storage.locking import locked
from ..storage.readers import Read, list_days, read_events, went_away
from ..storage.writers import Replacement, remove_unused, shown_tables
from .computing import Writing, advised, write_attempts, write_estimates, write_tables
from .planning import Plan, Report, Run, planned

#: Rows of one partition of the shuffle: a worker can sort this many in little memory.
ROWS_OF_PARTITION = 400_000
_MOST_PARTITIONS = 4_000
#: Partitions per core that are few.
_FEW_PARTITIONS = 4
#: Broken files found while rows are read: after this many the run fails, as the cause is not the files.
_MOST_BROKEN = 100
#: Most files that the report names one by one.
_MOST_NAMED = 20

_BROKEN = re.compile(r"FAILED_READ_FILE\.(\w+)\][^\n]*? file (\S+?)\.? ")

#: Where the lines of Java's trace begin in the text of an error.
_TRACE = re.compile(r"\s+at (?:org|java|scala|jdk|sun)\.")

#: Errors of Spark, and of a disk that is written without it.
_EXPLAINED = (PySparkException, Py4JError, OSError)

Log = Callable[[str], None]


def run(spark: SparkSession, what: Run, log: Log = lambda line: None) -> Report:
    """Compute and publish the tables for the days. Raises `AnalyticsError`; the output is then unchanged."""
    prepare(spark)
    name = f"{what.now:%Y%m%dT%H%M%SZ}-{uuid4().hex[:8]}"
    report = Report(name, address_of(what.input).url, address_of(what.output).url, what.now)
    present = list_days(spark, what.input)
    with locked(spark, what.output, report.run) as lock:
        storage = lock.storage
        shown = shown_tables(storage)
        report.notes += remove_unused(storage, what.keep_runs, lock.now(), lock.held)
        plan = planned(present, what)
        if plan is None:
            report.notes.append("The history has no files of these days: nothing was computed.")
            return report
        report.first_day, report.last_day = str(plan.days.first), str(plan.days.last)
        if gone := [str(day) for day in shown.folders("attempts", plan.days) if day not in present]:
            report.notes.append(f"The history has no files of {', '.join(gone)}: these days are now empty.")
        replacement = Replacement(spark, what.output, report.run, shown)
        with _undone_after_an_error(replacement), no_jobs_left(spark):
            read = _compute(spark, what, plan, replacement, report, log)
            with report.stage("publish", log):
                replacement.publish(_text(report), lock.now(), lock.held)
        if what.compact:
            _compact(spark, what, read, report, log)
        replacement.write_report(_text(report))
    return report


def _text(report: Report) -> str:
    return json.dumps(report.to_json(), indent=2)


@contextmanager
def _undone_after_an_error(replacement: Replacement) -> Iterator[None]:
    """Remove what was written, if it is not published; explain Spark's errors."""
    try:
        yield
    except BaseException as error:
        with suppress(AnalyticsError, Py4JError, OSError):  # the next run removes it
            replacement.discard()
        if isinstance(error, _EXPLAINED):
            raise AnalyticsError(explained(error)) from error
        raise


def partitions_for(rows: int, cores: int) -> int:
    """Return the number of shuffle partitions: a multiple of the cores, each small enough to be sorted in memory."""
    return min(_MOST_PARTITIONS, cores * max(1, -(-rows // (ROWS_OF_PARTITION * cores))))


def _compute(spark: SparkSession, what: Run, plan: Plan, replacement: Replacement, report: Report, log: Log) -> Read:
    """Write all tables; return what was read."""
    with report.stage("read footers", log):
        read = read_events(spark, what.input, plan.read)
    partitions = partitions_for(read.rows, spark.sparkContext.defaultParallelism)
    with _shuffling(spark, partitions):
        writing = Writing(replacement, plan, partitions, report, log)
        read, attempt_rows, counts = _attempts(spark, what, read, writing)
        known = write_tables(writing, read, attempt_rows, counts, what.now)
        if what.estimate is not None:
            write_estimates(writing, advised(writing, attempt_rows, known), what.estimate, what.ladders)
    report.tables, report.bytes_written = replacement.sizes()
    return read


def _attempts(spark: SparkSession, what: Run, read: Read, writing: Writing) -> tuple[Read, DataFrame, DataFrame]:
    """Write the attempts, and return them and their counts. If a file turns out to be broken, read again without it."""
    broken: list[str] = []
    while True:
        _check_files(read, writing.plan.days)
        try:
            attempt_rows, counts = write_attempts(writing, read, what.now)
            break
        except (PySparkException, Py4JError) as error:
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
    return read, attempt_rows, counts


def _check_files(read: Read, days: Days) -> None:
    """Raise `AnalyticsError` if there are files of the computed days, and none of them can be read."""
    left_out = [each for each in read.left_out if each.file.day in days]
    if left_out and not any(each.file.day in days for each in read.files):
        first = left_out[0]
        raise AnalyticsError(
            f"None of the {len(left_out)} files of {days} can be read: nothing was computed, the output is unchanged."
            f" The first one: {first.file.path}: {first.reason}: {first.error}"
        )


def _compact(spark: SparkSession, what: Run, read: Read, report: Report, log: Log) -> None:
    """Merge small files of the history. An error here is reported and does not affect the computed tables."""
    try:
        with report.stage("compact", log), locked(spark, what.input, report.run):
            files, into = compact(spark, what.input, read, what.now.date())
        report.compacted = {"files": files, "into": into} if files else {}
    except (AnalyticsError, *_EXPLAINED) as error:
        report.notes.append(f"small files were not merged: {explained(error)}")


@contextmanager
def _shuffling(spark: SparkSession, partitions: int) -> Iterator[None]:
    """Set the number of partitions of every shuffle; with few of them Spark has nothing to gain by planning again."""
    settings = {"spark.sql.shuffle.partitions": str(partitions)}
    if partitions <= _FEW_PARTITIONS * spark.sparkContext.defaultParallelism:
        settings["spark.sql.adaptive.enabled"] = "false"
    before = {name: spark.conf.get(name) for name in settings}
    try:
        for name, value in settings.items():
            spark.conf.set(name, value)
        yield
    finally:
        for name, earlier in before.items():
            spark.conf.set(name, str(earlier))


def broken_file(error: str) -> str | None:
    """Return the file whose rows could not be read according to Spark's error; None for any other error."""
    match = _BROKEN.search(error)
    if match is None or match[1] == "FILE_NOT_EXIST":
        return None
    # Spark writes a URL; Hadoop, which lists the files, writes a path, with one slash if it is local.
    return unquote(match[2]).replace("file:///", "file:/")


def explained(error: Exception) -> str:
    """Return an error of Spark or of a disk in one line, with a hint where its cause is known."""
    text = _TRACE.split(" ".join(str(error).split()))[0]
    if "FILE_NOT_EXIST" in text or "FileNotFoundException" in text:
        return str(went_away(text))
    if "No space left on device" in text:
        where = "--output, or --conf spark.local.dir=FOLDER for Spark's temporary files"
        return f"A disk is full. Use another one with {where}. ({text[:300]})"
    if "OutOfMemoryError" in text:
        return f"Java ran out of memory. Use --conf spark.driver.memory=8g, or a cluster. ({text[:300]})"
    return text[:1000]
