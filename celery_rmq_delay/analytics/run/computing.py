"""Compute every table of a run: ``attempts`` from the events, the others from the tables already written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from pyspark import StorageLevel
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from ..days import Days
from ..estimate.lateness import named
from ..estimate.options import Options as Estimate
from ..schema import ATTEMPTS, DAY, EPISODES
from ..storage.day_files import Made
from ..storage.readers import Read
from ..storage.writers import Replacement, in_days
from ..tables.attempts import attempts, ended, last_waits, open_episodes
from ..tables.cleaning import by_task, clean
from ..tables.counts import counted_events, early_retries
from ..tables.exception_advice import exception_advice
from ..tables.incidents import days_of, described, failed_firsts, failures_in, find, scopes_of
from ..tables.ladder_advice import ladder_advice, recovery_curve, unseen, what_if
from ..tables.outcomes import failure_groups, hourly, ok_counts, tier_outcomes
from .planning import Ladders, Plan, Report

_ATTEMPTS, _EPISODES = "attempts", "episodes"

#: Partitions of the shuffle that are written into one file.
_MERGED = 8


@dataclass(frozen=True)
class Writing:
    """Where a run writes, which days, and where it reports and logs."""

    replacement: Replacement
    plan: Plan
    partitions: int
    report: Report
    log: Callable[[str], None]

    def table(self, name: str, rows: DataFrame, *, is_large: bool = False, days: Days | None = None) -> DataFrame:
        """Write the days of a table (None: the computed ones), and return the table as it was written."""
        with self.report.stage(name, self.log):
            files = self._files(rows) if is_large else None
            return self.replacement.write(rows, name, days or self.plan.days, files=files)

    def made(self, name: str, rows: Made) -> tuple[DataFrame, DataFrame]:
        """Write the computed days of a table, and return it as it was written, and the counts made beside it."""
        with self.report.stage(name, self.log):
            return self.replacement.write_made(rows, name, self.plan.days, files=self._files(rows.frame))

    def _files(self, rows: DataFrame) -> int:
        """Return the number of files of a day: a multiple of the cores, so that all are done at the same time."""
        cores = rows.sparkSession.sparkContext.defaultParallelism
        return cores * max(1, round(self.partitions / _MERGED / cores))


def write_attempts(writing: Writing, read: Read, now: datetime) -> tuple[DataFrame, DataFrame]:
    """Clean the events, write the attempts, and return them and their counts."""
    events = by_task(clean(read.events, now).events, writing.partitions)
    rows, counts = writing.made(_ATTEMPTS, attempts(events))
    report = writing.report
    report.rows_in = read.rows
    report.events, report.duplicates = counted_events(counts)
    retries, early = early_retries(counts)
    clocks, note = named(early, retries)
    report.clocks = dict(clocks)
    if note is not None:
        report.notes.append(note)
    return rows, counts


def write_tables(writing: Writing, read: Read, attempt_rows: DataFrame, counts: DataFrame, now: datetime) -> DataFrame:
    """Write the other tables of the days from the written attempts and their counts; return the failure episodes."""
    _write_quarantine(writing, read, now)
    known = writing.table(_EPISODES, ended(attempt_rows), is_large=True)
    writing.table("tier_outcomes", tier_outcomes(counts))
    writing.table("failure_groups", failure_groups(counts))
    writing.table("hourly", hourly(counts))
    _write_incidents(writing, attempt_rows, known, ok_counts(counts))
    return known


def _write_incidents(writing: Writing, attempt_rows: DataFrame, known: DataFrame, ok: DataFrame) -> None:
    """Write the incidents of all days that depend on the computed ones; days without attempts keep their incidents."""
    plan, replacement = writing.plan, writing.replacement
    for days in (plan.earlier(plan.around), plan.later(plan.around)):
        if days is not None:
            standing = replacement.standing(_ATTEMPTS, ATTEMPTS, days)
            # Not the standing episodes: older days of one table may have been removed.
            attempt_rows, known = attempt_rows.unionByName(standing), known.unionByName(ended(standing))
    with writing.report.stage("incidents", writing.log):
        counted = replacement.keep(failed_firsts(attempt_rows), "counted")
        days, scopes = plan.renewed(days_of(counted)), scopes_of(counted.sparkSession, find(counted, ok))
        failed = replacement.keep(failures_in(attempt_rows, scopes), "failed")
    writing.table("incidents", described(failed, known, scopes), days=days)


def advised(writing: Writing, attempt_rows: DataFrame, known: DataFrame) -> DataFrame:
    """Return the episodes for curves and advice: ended ones, also from the present output, and those still waiting."""
    plan, replacement = writing.plan, writing.replacement
    recent, ended_by_now = attempt_rows.where(in_days(plan.waiting)), known.where(in_days(plan.advice))
    if (days := plan.earlier(plan.waiting)) is not None:
        recent = recent.unionByName(replacement.standing(_ATTEMPTS, ATTEMPTS, days))
    if (days := plan.earlier(plan.advice)) is not None:
        ended_by_now = ended_by_now.unionByName(replacement.standing(_EPISODES, EPISODES, days))
    with writing.report.stage("open episodes", writing.log):
        waiting = replacement.keep(last_waits(recent), "_waiting")
        return ended_by_now.unionByName(replacement.keep(open_episodes(recent, waiting), "_open_episodes"))


def write_estimates(writing: Writing, episodes: DataFrame, estimate: Estimate, ladders: Ladders) -> None:
    """Write the estimates from the failure episodes of all days together, under the last day."""
    last = F.lit(writing.plan.days.last).alias(DAY.name)
    writing.table("recovery_curve", recovery_curve(episodes, estimate).select("*", last))
    writing.table("ladder_advice", ladder_advice(episodes, estimate).select("*", last))
    writing.table("exception_advice", exception_advice(episodes, estimate).select("*", last))
    if ladders:
        evaluated = writing.table("what_if", what_if(episodes, ladders, estimate).select("*", last))
        queues = {row["queue"] for row in evaluated.select("queue").distinct().collect()}
        writing.report.notes += unseen(ladders, queues)


def _write_quarantine(writing: Writing, read: Read, now: datetime) -> None:
    """Write and count the bad rows and files; those in folders of future days are written under the newest day."""
    report, bad = writing.report, read.rejected
    if report.rows_in == report.events + report.duplicates:
        rows = None
    else:
        rows = clean(read.events, now).quarantine.persist(StorageLevel.DISK_ONLY)
        report.quarantined = dict(rows.groupBy("reason").count().collect())
        bad = bad.unionByName(rows)
    if writing.plan.is_newest:
        bad = bad.withColumn(DAY.name, F.least(F.col(DAY.name), F.lit(writing.plan.days.last)))
    try:
        writing.table("quarantine", bad)
    finally:
        if rows is not None:
            rows.unpersist()
