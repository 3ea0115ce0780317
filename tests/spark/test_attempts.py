from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import SparkSession

from celery_rmq_delay.analytics.schema import ATTEMPTS, DAY
from celery_rmq_delay.analytics.tables.attempts import attempts
from tests.support.spark.frames import Row, Stories, at, event, exchanges, frame, rows
from tests.support.spark.machine import SharedSpark

story = Stories()


@pytest.fixture(scope="module")
def all_found(shared_spark: SharedSpark) -> list[dict[str, Any]]:
    return shared_spark.run(lambda spark: rows(attempts(story.frame(spark)).to_frame()))


@pytest.fixture
def found(request: pytest.FixtureRequest, all_found: list[dict[str, Any]]) -> list[Row]:
    """The attempts of the story of a test."""
    return story.of(request.function.__name__, all_found)


def picked(found: list[Row], *names: str) -> list[tuple[Any, ...]]:
    return [tuple(row[name] for name in names) for row in found]


@story(
    event("parked", 0, tier=1, delay_ms=10_000, runtime_ms=300, exception_type="Timeout"),
    event("forwarded", 11, attempt=1, tier=2, delay_ms=60_000, runtime_ms=200, exception_type="Refused"),
    event("recovered", 73, attempt=2, runtime_ms=50),
)
def test_an_attempt_has_the_wait_before_it_and_the_duration_of_the_failure(found: list[Row]) -> None:
    columns = ("outcome", "tier", "delay_ms", "previous_exception_type", "t_seconds", "previous_t_seconds")
    assert picked(found, *columns) == [
        ("parked", None, None, None, 0.0, None),
        ("parked", 1, 10_000, "Timeout", 10.8, 0.0),
        ("recovered", 2, 60_000, "Refused", 72.95, 10.8),
    ]
    assert found[-1]["episode"] == {
        "first_failed_at": at(0),
        "exception_type": "Timeout",
        "failed_attempts": 2,
        "wasted_ms": 500,
        "low_seconds": 10.8,
        "waited_ms": 70_000,
        "exact_waits": 0,
    }


@story(
    event("parked", 0, tier=1, delay_ms=10_000, runtime_ms=20),
    event("parked", 10.5, attempt=1, delay_ms=60_000, runtime_ms=30),
    event("recovered", 200, attempt=2, runtime_ms=120_000),
)
def test_what_an_attempt_finds_when_it_starts_decides_how_long_the_failure_lasted(found: list[Row]) -> None:
    assert picked(found, "t_seconds") == [(0.0,), (10.47,), (80.0,)]
    assert found[-1]["episode"]["low_seconds"] == 10.47
    assert found[-1]["episode"]["exact_waits"] == 1, "it had no tier"


def test_the_columns_are_those_of_the_schema(spark: SparkSession) -> None:
    found = attempts(frame(spark, [])).to_frame()
    assert [(field.name, field.dataType) for field in found.schema] == [
        (field.name, field.dataType) for field in [*ATTEMPTS, DAY]
    ]


@story(
    *[
        one
        for second in ("exhausted", "forwarded", "recovered")
        for one in (
            event(second, 5, task_id=second, event_id=f"{second} too"),
            event("parked", 0, task_id=second),
            event("recovered", 20, task_id=second, attempt=1),
        )
    ]
)
def test_two_events_of_one_attempt_are_one_row(found: list[Row]) -> None:
    assert picked(found, "task_id", "attempt", "outcome") == [
        ("exhausted", 0, "exhausted"),
        ("exhausted", 1, "recovered"),
        ("forwarded", 0, "parked"),
        ("forwarded", 1, "recovered"),
        ("recovered", 0, "recovered"),
        ("recovered", 1, "recovered"),
    ]


@story(event("exhausted", 5), event("parked", 0, tier=1, delay_ms=10_000), event("recovered", 20, attempt=1))
def test_the_wait_is_known_from_the_parked_event_of_an_attempt_that_was_exhausted_too(found: list[Row]) -> None:
    assert (found[1]["tier"], found[1]["delay_ms"]) == (1, 10_000)


@story(event("parked", 0, tier=1, delay_ms=10_000), event("recovered", 90, attempt=2))
def test_an_attempt_whose_predecessor_is_not_known_has_nulls_for_it(found: list[Row]) -> None:
    (_, last) = found
    assert [last[name] for name in ("tier", "delay_ms", "previous_t_seconds")] == [None, None, None]
    assert (last["t_seconds"], last["episode"]["low_seconds"], last["episode"]["failed_attempts"]) == (90.0, 0.0, 1)


@story(event("recovered", 90, attempt=2, first_failed_at=at(-10)))
def test_the_first_failure_is_known_from_a_later_event(found: list[Row]) -> None:
    (only,) = found
    assert only["t_seconds"] == 100.0
    assert only["episode"]["first_failed_at"] == at(-10)


@story(
    event("parked", 0),
    event("parked", 100, attempt=1, worker="fast"),
    event("parked", -5, attempt=2, worker="slow"),
    event("recovered", 60, attempt=3),
)
def test_time_never_runs_backwards_with_skewed_clocks(found: list[Row]) -> None:
    assert picked(found, "t_seconds", "previous_t_seconds") == [
        (0.0, None),
        (100.0, 0.0),
        (100.0, 100.0),
        (100.0, 100.0),
    ]


@story(
    event("parked", 0, tier=1, delay_ms=10_000),
    event("exhausted", 15, attempt=1, reason="retries_used"),
    event("requeued", 500, attempt=1),
    event("parked", 510, generation=1, tier=1, delay_ms=10_000),
    event("recovered", 530, generation=1, attempt=1),
)
def test_a_replay_starts_from_nothing(found: list[Row]) -> None:
    assert picked(found, "generation", "attempt", "t_seconds", "delay_ms") == [
        (0, 0, 0.0, None),
        (0, 1, 15.0, 10_000),
        (1, 0, 0.0, None),
        (1, 1, 20.0, 10_000),
    ]
    assert found[3]["episode"]["first_failed_at"] == at(510)


@story(event("recovered", 5, generation=1))
def test_a_replay_that_succeeds_at_once_ends_an_episode_without_failures(found: list[Row]) -> None:
    (only,) = found
    assert (only["episode"]["failed_attempts"], only["episode"]["first_failed_at"]) == (0, None)


@story(event("parked", 0), event("recovered", 10, attempt=1), event("exhausted", 9_000, attempt=2, reason="gave_up"))
def test_attempts_after_the_end_under_the_same_id_belong_to_no_episode(found: list[Row]) -> None:
    assert picked(found, "outcome", "t_seconds") == [("parked", 0.0), ("recovered", 10.0), ("exhausted", None)]
    assert found[2]["episode"] is None


@story(event("exhausted", 0, task_id=None, event_id="digest", reason="undecodable"))
def test_a_task_without_an_id_goes_by_the_id_of_its_event(found: list[Row]) -> None:
    (only,) = found
    assert (only["task_id"], only["outcome"]) == ("digest", "exhausted")


@story(event("parked", 43_199.9), event("recovered", 43_200, attempt=1))
def test_an_attempt_belongs_to_the_day_on_which_it_ended(found: list[Row]) -> None:
    assert [row["day"].isoformat() for row in found] == ["2026-03-02", "2026-03-03"]


def test_events_that_are_partitioned_by_task_are_not_moved_again(spark: SparkSession) -> None:
    assert exchanges(attempts(frame(spark, [event("parked", 0)])).to_frame()) == 1
