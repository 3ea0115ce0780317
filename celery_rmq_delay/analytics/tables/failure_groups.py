"""Failure groups: the failures of a day that have the same fingerprint."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from ...events.schema import EXHAUSTED
from ..schema import FAILURE_GROUPS
from .attempts import Keep, is_failed, not_kept

_KEY = ("day", "fingerprint")


def failure_groups(attempts: DataFrame, keep: Keep = not_kept) -> DataFrame:
    """Return the groups of each day (`FAILURE_GROUPS` and ``day``); failures without a fingerprint are left out.

    Exception and message are those of the first failure of the day, so that every run has the same.
    """
    failed = attempts.where(is_failed() & F.col("fingerprint").isNotNull())
    # Spark knows that the stored figures are small, and does not move all failures to find the first of each group.
    figures = keep(_figures(failed))
    found = figures.join(_touched(failed), [*_KEY]).join(_samples(failed, figures), [*_KEY])
    return found.select(*FAILURE_GROUPS.fieldNames(), "day")


def _figures(failed: DataFrame) -> DataFrame:
    by_task = failed.groupBy(*_KEY, "task").agg(
        F.count("*").alias("failures"),
        F.count_if(F.col("outcome") == EXHAUSTED).alias("exhausted"),
        F.min("ended_at").alias("first_seen"),
        F.max("ended_at").alias("last_seen"),
    )
    return by_task.groupBy(*_KEY).agg(
        F.sort_array(F.collect_set("task")).alias("tasks"),
        F.sum("failures").alias("failures"),
        F.sum("exhausted").alias("exhausted"),
        F.min("first_seen").alias("first_seen"),
        F.max("last_seen").alias("last_seen"),
    )


def _touched(failed: DataFrame) -> DataFrame:
    return failed.select(*_KEY, "task_id").distinct().groupBy(*_KEY).agg(F.count("*").alias("tasks_touched"))


def _samples(failed: DataFrame, figures: DataFrame) -> DataFrame:
    """Return exception and message of each group's first failure.

    A minimum of texts over all failures would sort them: Spark compares only numbers while it aggregates rows.
    """
    firsts = figures.select(*_KEY, F.col("first_seen").alias("ended_at"))
    sample = F.min(F.struct("exception_type", "exception_message"))
    samples = failed.join(firsts, [*_KEY, "ended_at"]).groupBy(*_KEY).agg(sample.alias("sample"))
    return samples.select(*_KEY, "sample.exception_type", "sample.exception_message")
