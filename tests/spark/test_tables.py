"""The definitions of the tables, with figures that can be checked by hand."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from celery_rmq_delay.analytics.schema import DAY, FAILURE_GROUPS, HOURLY, INCIDENTS, TIER_OUTCOMES
from celery_rmq_delay.analytics.tables.attempts import attempts
from celery_rmq_delay.analytics.tables.failure_groups import failure_groups
from celery_rmq_delay.analytics.tables.hourly import hourly
from celery_rmq_delay.analytics.tables.incidents import Bursts, incidents
from celery_rmq_delay.analytics.tables.outcomes import tier_outcomes, wilson
from celery_rmq_delay.exceptions import SettingsError
from tests.support.spark import reference
from tests.support.spark.frames import NOON, Row, assert_same, at, event, frame, rows

MIDNIGHT = 12 * 3600


def failures(start: float, count: int, name: str = "t", day: int = 0) -> list[Row]:
    """Return so many tasks that fail within a minute from ``start``, in seconds from noon."""
    return [
        event("parked", day * 86_400 + start + number / 100, task_id=f"{name}-{day}-{start}-{number}")
        for number in range(count)
    ]


def test_the_columns_are_those_of_the_schemas(spark: SparkSession) -> None:
    none = frame(spark, [])
    made = attempts(none)
    for found, schema in (
        (tier_outcomes(made), TIER_OUTCOMES),
        (incidents(made), INCIDENTS),
        (failure_groups(made), FAILURE_GROUPS),
        (hourly(made, none), HOURLY),
    ):
        assert [(field.name, field.dataType.simpleString()) for field in found.schema] == [
            (field.name, field.dataType.simpleString()) for field in [*schema, DAY]
        ]


def test_the_interval_of_a_share_is_wilsons(spark: SparkSession) -> None:
    low, high = wilson(F.col("good"), F.col("of"))
    found = spark.createDataFrame([(0, 10), (8, 10), (10, 10), (250, 1000)], "good long, of long")
    bounds = [(row.low, row.high) for row in found.select(low.alias("low"), high.alias("high")).collect()]
    # From SciPy's binomtest(good, of).proportion_ci(method="wilson").
    expected = [(0.0, 0.2775328), (0.4901625, 0.9433178), (0.7224672, 1.0), (0.2241531, 0.2777603)]
    assert bounds == [pytest.approx(pair, abs=1e-7) for pair in expected]


def test_a_wait_counts_under_the_exception_before_it_by_the_attempt_after_it(spark: SparkSession) -> None:
    first = {"tier": 1, "delay_ms": 10_000, "exception_type": "Timeout", "runtime_ms": 100}
    events = [
        event("parked", 0, task_id="good", **first),
        event("recovered", 11, task_id="good", attempt=1, runtime_ms=100),
        event("parked", 0, task_id="lost", **first),
        event("exhausted", 11, task_id="lost", attempt=1, runtime_ms=70, exception_type="Refused"),
        event("parked", 0, task_id="taken", **first),
        event("discarded", 5, task_id="taken", attempt=1, reason="revoked"),
        event("parked", 0, task_id="exact", delay_ms=12_345),
        event("recovered", 13, task_id="exact", attempt=1),
    ]
    found = rows(tier_outcomes(attempts(frame(spark, events))))
    counts = ("exception_type", "tier", "delay_ms", "parked", "recovered", "exhausted", "wasted_ms")
    assert sorted(tuple(row[name] for name in counts) for row in found if row["tier"]) == [
        ("Timeout", 1, 10_000, 2, 1, 1, 70)
    ]
    assert [row["delay_ms"] for row in found if row["tier"] is None] == [12_000]


def test_incidents_are_bursts_of_one_day(spark: SparkSession) -> None:
    """One history of three days: close bursts, a burst over midnight, and a day that is bad all the time."""
    counts = {0: 20, 50: 12}  # at least 10, but only 20 is five times the others' 3
    bad_all_day = [
        one for minute in range(-700, 700) for one in failures(minute * 60, counts.get(minute % 100, 3), "noise", day=2)
    ]
    events = [
        *failures(0, 10),
        *failures(300, 3),  # not hot, but between two hot minutes
        *failures(600, 14),
        *failures(600 + 660, 20, "other"),
        *failures(3_600, 9),
        *failures(MIDNIGHT - 60, 15, "late"),
        *failures(MIDNIGHT, 11, "early"),
        event("recovered", 900, task_id="t-0-0-0", attempt=1),
        event("exhausted", 901, task_id="t-0-0-1", attempt=1, runtime_ms=3),
        event("recovered", MIDNIGHT + 5, task_id="t-0-0-2", attempt=1),
        *bad_all_day,
    ]
    made = attempts(frame(spark, events)).cache()
    found = sorted(rows(incidents(made)), key=lambda row: row["started_at"])
    columns = ("started_at", "failures", "peak_per_minute", "tasks_touched", "recovered_share")
    assert [tuple(row[name] for name in columns) for row in found[:4]] == [
        (at(0), 27, 14, 27, 0.5),
        (at(1_260), 20, 20, 20, None),
        (at(MIDNIGHT - 60), 15, 15, 15, None),
        (at(MIDNIGHT), 11, 11, 11, None),
    ]
    noisy = found[4:]
    assert {row["failures"] for row in noisy} == {20}, "only what stands out of a bad day"
    assert len(noisy) == 14
    long = rows(incidents(made, Bursts(threshold=9, gap_minutes=60)))
    assert max(row["ended_at"] - row["started_at"] for row in long if row["day"] == NOON.date()) > timedelta(hours=1)
    made.unpersist()


@pytest.mark.parametrize("wrong", [{"threshold": 0}, {"factor": -1}, {"gap_minutes": 0}, {"factor": float("nan")}])
def test_invalid_thresholds_of_incidents_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(SettingsError, match=rf"Bursts\.{next(iter(wrong))}"):
        Bursts(**wrong)


def test_a_group_shows_its_first_failure_of_the_day(spark: SparkSession) -> None:
    def failed(seconds: float, task_id: str, message: str, **more: Any) -> Row:
        failure = {"exception_type": "Timeout", "exception_message": message, "fingerprint": "f"}
        return event("parked", seconds, task_id=task_id, **failure, **more)

    events = [
        failed(5, "a", "a comes first by the alphabet"),
        failed(0, "b", "earlier"),
        failed(0, "c", "earliest, by the text", task="shop.mail"),
        failed(9, "a", "again", attempt=1),
        event("parked", 1, task_id="d"),
    ]
    (group,) = rows(failure_groups(attempts(frame(spark, events))))
    assert group == {
        "day": NOON.date(),
        "fingerprint": "f",
        "exception_type": "Timeout",
        "exception_message": "earlier",
        "tasks": ["shop.mail", "shop.pay"],
        "failures": 4,
        "tasks_touched": 3,
        "exhausted": 0,
        "first_seen": at(0),
        "last_seen": at(9),
    }


def test_first_attempts_are_the_sum_of_successes_and_failures(spark: SparkSession) -> None:
    events = [
        event("rollup", 10, ok_count=40),
        event("rollup", 3_599.999, ok_count=2),
        event("rollup", 3_600, ok_count=5),
        event("parked", 20),
        event("parked", 31, attempt=1),
        event("exhausted", 20, task_id="b"),
        event("recovered", 3_700, attempt=2),
        event("discarded", 7_300, task_id="c", attempt=1, first_failed_at=at(0)),
    ]
    cleaned = frame(spark, events)
    found = sorted(rows(hourly(attempts(cleaned), cleaned)), key=lambda row: row["hour"])
    columns = ("hour", "first_attempts", "failures", "parked", "recovered", "exhausted")
    assert [tuple(row[name] for name in columns) for row in found] == [
        (at(0), 44, 3, 2, 0, 1),
        (at(3_600), 5, 0, 0, 1, 0),
    ]


def test_a_comparison_names_the_rows_and_columns_that_differ() -> None:
    with pytest.raises(AssertionError) as caught:
        assert_same([{"id": 1, "x": 1.0}, {"id": 2, "x": None}], [{"id": 1, "x": 2.0}, {"id": 3, "x": 1.0}], ["id"])
    assert str(caught.value).splitlines()[:4] == [
        "the rows differ:",
        "[id=1] x: found 1.0, expected 2.0",
        "[id=2] is too many",
        "[id=3] is missing",
    ]


def test_the_references_interval_is_wilsons_too() -> None:
    assert reference.wilson(8, 10) == pytest.approx((0.4901625, 0.9433178), abs=1e-7)
