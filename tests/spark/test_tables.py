"""The definitions of the tables, with figures that can be checked by hand."""

from datetime import timedelta
from typing import Any

import pytest
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from celery_rmq_delay.analytics import tables
from celery_rmq_delay.analytics.schema import DAY, FAILURE_GROUPS, HOURLY, INCIDENTS, TIER_OUTCOMES
from celery_rmq_delay.analytics.tables.attempts import attempts
from celery_rmq_delay.analytics.tables.outcomes import failure_groups, hourly, ok_counts, tier_outcomes, wilson
from tests.support.spark import reference
from tests.support.spark.frames import NOON, assert_same, at, event, frame, incidents, outage, rows

MIDNIGHT = 12 * 3600


def test_the_columns_are_those_of_the_schemas(spark):
    made = attempts(frame(spark, []))
    counts = made.to_counts()
    for found, schema in (
        (tier_outcomes(counts), TIER_OUTCOMES),
        (incidents(made.to_frame(), counts), INCIDENTS),
        (failure_groups(counts), FAILURE_GROUPS),
        (hourly(counts), HOURLY),
    ):
        assert [(field.name, field.dataType.simpleString()) for field in found.schema] == [
            (field.name, field.dataType.simpleString()) for field in [*schema, DAY]
        ]


def test_the_interval_of_a_share_is_wilsons(spark):
    low, high = wilson(F.col("good"), F.col("of"))
    found = spark.createDataFrame([(0, 10), (8, 10), (10, 10), (250, 1000)], "good long, of long")
    bounds = [(row.low, row.high) for row in found.select(low.alias("low"), high.alias("high")).collect()]
    # From SciPy's binomtest(good, of).proportion_ci(method="wilson").
    expected = [(0.0, 0.2775328), (0.4901625, 0.9433178), (0.7224672, 1.0), (0.2241531, 0.2777603)]
    assert bounds == [pytest.approx(pair, abs=1e-7) for pair in expected]


def test_a_task_that_waits_in_a_tier_again_and_again_counts_once_a_day(spark):
    wait = {"tier": 2, "delay_ms": 60_000, "exception_type": "Timeout", "runtime_ms": 10}
    events = [event("parked", 61 * number, "endless", attempt=number, **wait) for number in range(800)]
    events += [event("parked", 0, f"t{number}", attempt=1, **wait) for number in range(3)]
    events += [event("recovered", 61, f"t{number}", attempt=2) for number in range(3)]
    events += [event("exhausted", 61 * 800, "endless", attempt=800, exception_type="Timeout", runtime_ms=10)]
    found = sorted(rows(tier_outcomes(attempts(frame(spark, events)).to_counts())), key=lambda row: row["day"])
    counts = ("parked", "recovered", "exhausted", "rate", "wasted_ms")
    assert [tuple(row[name] for name in counts) for row in found] == [
        (4, 3, 0, 0.75, 10 * (MIDNIGHT // 61)),
        (1, 0, 1, 0.0, 10 * (800 - MIDNIGHT // 61)),
    ]


#: Days of the stories of incidents: so far apart that none depends on another one.
PLAIN, BUSY, LATE, RATES, TWO, ENDLESS = range(0, 60, 10)


def stories():
    """Return the events of all stories of incidents."""
    down: dict[str, Any] = {"exception_type": "Down", "runtime_ms": 10}
    busy: dict[str, Any] = {"queue": "feeds", "task": "feeds.fetch", "exception_type": "Timeout"}
    plain, rates = PLAIN * 86_400, RATES * 86_400
    return [
        *outage(PLAIN, 30, 5, 10, **down),
        *[event("exhausted", plain + 200 + number, f"t-0-30-{number}", attempt=1, **down) for number in range(4)],
        event("recovered", plain + 900, "t-0-30-5", attempt=1),
        event("recovered", plain + 86_400, "t-0-30-6", attempt=1),
        event("recovered", plain + 2 * 86_400, "t-0-30-7", attempt=1),
        *outage(PLAIN, 5_000, 5, 3, **down),  # too few
        # An hour in one queue, while another one fails all day, more often by far.
        *outage(BUSY, -MIDNIGHT, 1_440, 5, "busy", **busy),
        *outage(BUSY, 7, 60, 10, **down),
        *outage(LATE, MIDNIGHT - 1_200, 50, 5, **down),
        # First more traffic, then more failures.
        *outage(RATES, -3_600, 300, 2, "usual", **down),
        *outage(RATES, 0, 10, 18, "peak", **down),
        *outage(RATES, 7_200, 10, 18, "trouble", **down),
        *[
            event("rollup", rates + minute * 60, ok_count=180 if 0 <= minute < 10 else 18, event_id=f"ok-{minute}")
            for minute in range(-60, 240)
        ],
        # Two queues at the same time, which have nothing in common; one of them in two tasks.
        *outage(TWO, 0, 30, 5, "one", **down),
        *outage(TWO, 13, 30, 3, "one-too", **{**down, "task": "shop.mail"}),
        *outage(TWO, 25, 30, 4, "two", **{**busy, "exception_type": "Full"}),
        # One task that fails every ten seconds.
        *[event("parked", ENDLESS * 86_400 + 10 * number, "endless", attempt=number, **down) for number in range(700)],
    ]


@pytest.fixture(scope="module")
def found_incidents(shared_spark):
    """The incidents by the story's day, those with the most excess first."""

    def find(spark):
        made = attempts(frame(spark, stories()))
        return rows(incidents(made.to_frame().cache(), made.to_counts().cache()))

    found = sorted(shared_spark.run(find), key=lambda row: -row["excess"])
    return {day: [row for row in found if row["day"] == (NOON + timedelta(days=day)).date()] for day in range(70)}


@pytest.mark.slow
def test_an_incident_is_described_by_the_failures_in_its_scope(found_incidents):
    assert found_incidents[PLAIN] == [
        {
            "day": NOON.date(),
            "started_at": at(30),
            "ended_at": at(30 + 49 * 6),
            "queues": ["payments"],
            "tasks": ["shop.pay"],
            "exceptions": ["Down"],
            "peak_per_minute": 14,
            "failures": 54,
            "excess": 50,
            "failure_rate": None,
            "usual_rate": None,
            "tasks_touched": 50,
            "recovered_share": 2 / 6,  # of those that ended by the end of the next day
            "wasted_ms": 540,
        }
    ]


def test_an_outage_behind_a_busy_queue_is_found_without_that_queue(found_incidents):
    (one,) = found_incidents[BUSY]
    assert (one["queues"], one["tasks"], one["exceptions"]) == (["payments"], ["shop.pay"], ["Down"])
    start = BUSY * 86_400 + 7
    assert (one["started_at"], one["ended_at"]) == (at(start), at(start + 3_600 - 6))
    assert (one["failures"], one["excess"]) == (600, 600)


def test_an_incident_that_spans_midnight_belongs_to_the_day_on_which_it_began(found_incidents):
    (one,) = found_incidents[LATE]
    start = LATE * 86_400 + MIDNIGHT - 1_200
    assert (one["started_at"], one["ended_at"]) == (at(start), at(start + 3_000 - 12))
    assert (one["failures"], found_incidents[LATE + 1]) == (250, [])


def test_failures_are_compared_with_the_traffic(found_incidents):
    (one,) = found_incidents[RATES]
    assert one["started_at"] == at(RATES * 86_400 + 7_200)
    assert one["usual_rate"] == pytest.approx(0.1, abs=0.01)
    assert one["failure_rate"] == pytest.approx(20 / 38, abs=0.01)
    assert one["excess"] == pytest.approx(200 - 38, abs=4)


def test_outages_that_share_no_failures_are_two_incidents(found_incidents):
    assert [(one["tasks"], one["exceptions"], one["failures"]) for one in found_incidents[TWO]] == [
        (["shop.mail", "shop.pay"], ["Down"], 240),
        (["feeds.fetch"], ["Full"], 120),
    ]


def test_one_task_that_is_retried_without_end_is_no_incident(found_incidents):
    assert not found_incidents[ENDLESS]


@pytest.mark.slow
def test_a_day_of_any_number_of_exceptions_and_fingerprints_has_a_bounded_number_of_series(spark, monkeypatch):
    monkeypatch.setattr(tables.incidents, "MOST_SOURCES", 3)
    monkeypatch.setattr(tables.incidents, "LEAST_OF_FINGERPRINT", 5)
    names = [(f"E{number % 9}", f"f{number}", number * 7) for number in range(81)]
    names += [("Down", "down" if number % 2 else f"rare{number}", 3_600 + number) for number in range(60)]
    events = [
        event("parked", at, f"t{number}", exception_type=exception, fingerprint=mark)
        for number, (exception, mark, at) in enumerate(names)
    ]
    both = attempts(frame(spark, events))
    made, counts = both.to_frame(), both.to_counts()
    series = rows(tables.incidents.series_by_day(tables.incidents.failed_firsts(made), ok_counts(counts)))
    own = {(row["exception_type"], row["fingerprint"]) for row in series}
    assert own == {("Down", "down"), ("Down", ""), ("E0", ""), ("E1", "")}
    assert [row["exceptions"] for row in rows(incidents(made, counts))] == [["Down"]]


def test_a_comparison_names_the_rows_and_columns_that_differ():
    with pytest.raises(AssertionError) as caught:
        assert_same([{"id": 1, "x": 1.0}, {"id": 2, "x": None}], [{"id": 1, "x": 2.0}, {"id": 3, "x": 1.0}], ["id"])
    assert str(caught.value).splitlines()[:4] == [
        "the rows differ:",
        "[id=1] x: found 1.0, expected 2.0",
        "[id=2] is too many",
        "[id=3] is missing",
    ]


def test_the_references_interval_is_wilsons_too():
    assert reference.wilson(8, 10) == pytest.approx((0.4901625, 0.9433178), abs=1e-7)
