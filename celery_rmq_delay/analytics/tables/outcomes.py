"""The table ``tier_outcomes``: outcomes of the attempts after a wait, by tier and delay of the wait."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from ..estimate.wilson import Z_95
from ..schema import TIER_OUTCOMES
from .counts import WAITS, of


def tier_outcomes(counts: DataFrame) -> DataFrame:
    """Return the outcomes of waits (`TIER_OUTCOMES` and ``day``), under the day on which the next attempt ended.

    ``counts``: those of the attempts. ``parked`` counts the tasks (and replays) whose wait ended with an attempt; tasks
    that were discarded while they waited are left out. A task that waits in a tier again and again counts once a day,
    with the last outcome of that day: one that is retried without a limit would outweigh all others. ``wasted_ms`` is
    the sum of all its attempts. Exact delays (``tier`` null) have their ``delay_ms`` rounded down to two digits.
    """
    low, high = wilson(F.col("recovered"), F.col("parked"))
    sums = [F.sum(name).alias(name) for name in ("parked", "recovered", "exhausted", "wasted_ms")]
    counted = of(counts, WAITS).groupBy("day", *TIER_OUTCOMES.fieldNames()[:5]).agg(*sums)
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
