"""The table ``tier_outcomes``: outcomes of the attempts after a wait, by tier and delay of the wait."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from ...events.schema import EXHAUSTED, RECOVERED
from ..estimate.wilson import Z_95
from ..schema import TIER_OUTCOMES
from .attempts import is_attempt, is_failed

#: Every message can have another exact delay: they are grouped by this many leading digits of their milliseconds.
_DIGITS = 2


def tier_outcomes(attempts: DataFrame) -> DataFrame:
    """Return the outcomes of waits (`TIER_OUTCOMES` and ``day``), under the day on which the next attempt ended.

    ``parked`` counts the tasks (and replays) whose wait ended with an attempt; tasks that were discarded while they
    waited are left out. A task that waits in a tier again and again counts once a day, with the last outcome of that
    day: one that is retried without a limit would outweigh all others. ``wasted_ms`` is the sum of all its attempts.
    Exact delays (``tier`` null) have their ``delay_ms`` rounded down to two digits.
    """
    waited = attempts.where(is_attempt() & (F.col("tier").isNotNull() | F.col("delay_ms").isNotNull()))
    low, high = wilson(F.col("recovered"), F.col("parked"))
    key = ("day", *TIER_OUTCOMES.fieldNames()[:5])
    code = F.when(F.col("outcome") == RECOVERED, 1).when(F.col("outcome") == EXHAUSTED, 2).otherwise(0)
    # A number, as Spark would sort all rows to find the last of texts.
    last = F.max(F.col("attempt").cast("long") * 3 + code) % 3
    counted = (
        waited.withColumns(
            {
                "exception_type": F.col("previous_exception_type"),
                "delay_ms": F.when(F.col("tier").isNull(), _rounded("delay_ms")).otherwise(F.col("delay_ms")),
            }
        )
        .groupBy(*key, "task_id", "generation")
        .agg(last.alias("last"), wasted_ms())
        .groupBy(*key)
        .agg(
            F.count("*").alias("parked"),
            F.count_if(F.col("last") == 1).alias("recovered"),
            F.count_if(F.col("last") == 2).alias("exhausted"),
            F.sum("wasted_ms").alias("wasted_ms"),
        )
    )
    rates = {"rate": F.col("recovered") / F.col("parked"), "rate_low": low, "rate_high": high}
    return counted.withColumns(rates).select(*TIER_OUTCOMES.fieldNames(), "day")


def wilson(successes: Column, trials: Column) -> tuple[Column, Column]:
    """Return the ends of the 95 % score interval of a share (Wilson 1927); ``trials`` is above 0."""
    share, weight = successes / trials, Z_95**2 / trials
    centre = share + weight / 2
    margin = F.sqrt(weight * (share * (1 - share) + weight / 4))
    return (
        F.greatest((centre - margin) / (1 + weight), F.lit(0.0)),
        F.least((centre + margin) / (1 + weight), F.lit(1.0)),
    )


def wasted_ms() -> Column:
    """Return the sum of the runtimes of failed attempts, in milliseconds."""
    return F.coalesce(F.sum(F.when(is_failed(), F.col("runtime_ms"))), F.lit(0)).alias("wasted_ms")


def _rounded(name: str) -> Column:
    length = F.length(F.col(name).cast("string"))
    unit = F.pow(F.lit(10), F.greatest(length - _DIGITS, F.lit(0))).cast("long")
    return F.col(name) - F.col(name) % unit
