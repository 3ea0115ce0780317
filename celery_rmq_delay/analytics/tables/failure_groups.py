"""Failure groups: the failures of a day that have the same fingerprint."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from ..schema import FAILURE_GROUPS
from .counts import FAILURES, of


def failure_groups(counts: DataFrame) -> DataFrame:
    """Return the groups of each day (`FAILURE_GROUPS` and ``day``); failures without a fingerprint are left out.

    ``counts``: those of the attempts. Exception and message are those of the first failure of the day, and of several
    at the same time the first ones in order, so that every run has the same.
    """
    sums = [F.sum(name).alias(name) for name in ("failures", "exhausted", "tasks_touched")]
    first = F.min(F.struct("first_seen", "exception_type", "exception_message")).alias("first")
    tasks, last = F.sort_array(F.collect_set("task")).alias("tasks"), F.max("last_seen").alias("last_seen")
    groups = of(counts, FAILURES).groupBy("day", "fingerprint").agg(*sums, first, tasks, last)
    return groups.select("*", "first.*").select(*FAILURE_GROUPS.fieldNames(), "day")
