from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import SparkSession

from celery_rmq_delay.analytics.schema import DAY, EPISODES
from celery_rmq_delay.analytics.tables.attempts import attempts
from tests.support.spark.frames import Row, Stories, all_episodes, at, event, frame, rows
from tests.support.spark.machine import SharedSpark

story = Stories()


@pytest.fixture(scope="module")
def all_found(shared_spark: SharedSpark) -> list[dict[str, Any]]:
    return shared_spark.run(lambda spark: rows(all_episodes(attempts(story.frame(spark)).to_frame())))


@pytest.fixture
def found(request: pytest.FixtureRequest, all_found: list[dict[str, Any]]) -> list[Row]:
    """The failure episodes of the story of a test."""
    return story.of(request.function.__name__, all_found)


def interval(row: Row) -> tuple[str, float | None, float | None]:
    return row["outcome"], row["low_seconds"], row["high_seconds"]


@story(
    event("parked", 0, runtime_ms=100, exception_type="Timeout"),
    event("parked", 12, attempt=1, runtime_ms=150, exception_type="Refused"),
    event("recovered", 75, attempt=2),
)
def test_a_failure_ends_between_the_last_failed_attempt_and_the_good_one(found: list[Row]) -> None:
    (episode,) = found
    assert interval(episode) == ("recovered", 11.85, 75.0)
    assert (episode["first_failed_at"], episode["ended_at"]) == (at(0), at(75))
    assert (episode["exception_type"], episode["failed_attempts"], episode["wasted_ms"]) == ("Timeout", 2, 250)


def test_the_columns_are_those_of_the_schema(spark: SparkSession) -> None:
    found = all_episodes(attempts(frame(spark, [])).to_frame())
    assert [(field.name, field.dataType) for field in found.schema] == [
        (field.name, field.dataType) for field in [*EPISODES, DAY]
    ]


@story(event("parked", 0), event("exhausted", 12, attempt=1, reason="gave_up"))
def test_an_exhausted_task_had_not_recovered_by_its_last_attempt(found: list[Row]) -> None:
    (episode,) = found
    assert interval(episode) == ("exhausted", 12.0, None)
    assert episode["reason"] == "gave_up"


@story(event("parked", 0), event("parked", 12, attempt=1), event("exhausted", 80, attempt=2, reason="expired"))
def test_a_task_that_ended_without_a_run_lasted_until_the_attempt_before_for_certain(found: list[Row]) -> None:
    (episode,) = found
    assert interval(episode) == ("exhausted", 12.0, None)
    assert episode["reason"] == "expired"


@story(event("parked", 0), event("discarded", 30, attempt=1, reason="revoked"))
def test_a_retry_that_was_revoked_ends_its_episode(found: list[Row]) -> None:
    (episode,) = found
    assert interval(episode) == ("discarded", 0.0, None)
    assert (episode["ended_at"], episode["failed_attempts"]) == (at(30), 1)


@story(event("parked", 0), event("parked", 7, attempt=1), event("discarded", 30, attempt=1, reason="discard"))
def test_a_parked_task_that_a_person_discarded_ends_its_episode(found: list[Row]) -> None:
    (episode,) = found
    assert interval(episode) == ("discarded", 7.0, None)


@story(event("parked", 0), event("exhausted", 7, attempt=1), event("discarded", 30, attempt=1))
def test_an_exhausted_task_that_is_discarded_stays_exhausted(found: list[Row]) -> None:
    (episode,) = found
    assert interval(episode) == ("exhausted", 7.0, None)


@story(event("parked", 0), event("requeued", 3), event("recovered", 5, attempt=1))
def test_a_waiting_task_that_a_person_ran_early_goes_on_with_its_episode(found: list[Row]) -> None:
    (episode,) = found
    assert interval(episode) == ("recovered", 0.0, 5.0)


@story(event("recovered", 50, attempt=3, first_failed_at=at(-50)))
def test_an_episode_without_a_failed_attempt_began_at_the_time_in_its_end_event(found: list[Row]) -> None:
    (episode,) = found
    assert interval(episode) == ("recovered", 0.0, 100.0)
    assert episode["failed_attempts"] == 0


@story(event("recovered", 50, attempt=3))
def test_an_episode_of_unknown_origin_bounds_nothing(found: list[Row]) -> None:
    (episode,) = found
    assert interval(episode) == ("recovered", 0.0, None)
    assert episode["first_failed_at"] is None


@story(
    event("exhausted", 0),
    event("parked", 100, generation=1),
    event("recovered", 130, generation=1, attempt=1),
    event("recovered", 140, generation=2),
)
def test_each_replay_has_an_episode_of_its_own(found: list[Row]) -> None:
    assert [interval(episode) for episode in found] == [
        ("exhausted", 0.0, None),
        ("recovered", 0.0, 30.0),
        ("recovered", 0.0, None),
    ]


@story(event("parked", 0), event("parked", 12, attempt=1))
def test_a_task_that_waits_is_open(found: list[Row]) -> None:
    (episode,) = found
    assert interval(episode) == ("open", 12.0, None)
    assert episode["ended_at"] is None
