"""Attempts and failure episodes of short stories, with results that can be checked by hand.

`test_reference.py` compares all of their columns with a reference, for random histories.
"""

from typing import Any

from celery_rmq_delay.analytics.schema import ATTEMPTS, DAY, EPISODES
from celery_rmq_delay.analytics.tables.attempts import attempts
from tests.support.spark.frames import Row, all_episodes, at, event, frame, rows

#: Events; then generation, number, outcome, tier, delay_ms and t_seconds of each attempt; then outcome, low_seconds,
#: high_seconds and failed_attempts of each failure episode.
STORIES: dict[str, tuple[list[Row], list[tuple[Any, ...]], list[tuple[Any, ...]]]] = {
    "two failures, each with its wait": (
        [
            event("parked", 0, tier=1, delay_ms=10_000, runtime_ms=300, exception_type="Timeout"),
            event("forwarded", 11, attempt=1, tier=2, delay_ms=60_000, runtime_ms=200, exception_type="Refused"),
            event("recovered", 73, attempt=2, runtime_ms=50),
        ],
        [(0, 0, "parked", None, None, 0.0), (0, 1, "parked", 1, 10_000, 10.8), (0, 2, "recovered", 2, 60_000, 72.95)],
        [("recovered", 10.8, 72.95, 2)],
    ),
    "what an attempt finds when it starts counts": (
        [event("parked", 0), event("recovered", 200, attempt=1, runtime_ms=120_000)],
        [(0, 0, "parked", None, None, 0.0), (0, 1, "recovered", None, None, 80.0)],
        [("recovered", 0.0, 80.0, 1)],
    ),
    "an attempt that was parked and exhausted": (
        [event("exhausted", 5), event("parked", 0, tier=1, delay_ms=10_000), event("recovered", 20, attempt=1)],
        [(0, 0, "exhausted", None, None, 0.0), (0, 1, "recovered", 1, 10_000, None)],
        [("exhausted", 0.0, None, 1)],
    ),
    "an attempt without its predecessor": (
        [event("parked", 0, tier=1, delay_ms=10_000), event("recovered", 90, attempt=2)],
        [(0, 0, "parked", None, None, 0.0), (0, 2, "recovered", None, None, 90.0)],
        [("recovered", 0.0, 90.0, 1)],
    ),
    "a first failure that only a later event names": (
        [event("recovered", 90, attempt=2, first_failed_at=at(-10))],
        [(0, 2, "recovered", None, None, 100.0)],
        [("recovered", 0.0, 100.0, 0)],
    ),
    "a first failure that is not known": (
        [event("recovered", 50, attempt=3)],
        [(0, 3, "recovered", None, None, None)],
        [("recovered", 0.0, None, 0)],
    ),
    "clocks that differ": (
        [
            event("parked", 0),
            event("parked", 100, attempt=1),
            event("parked", -5, attempt=2, worker="slow"),
            event("recovered", 60, attempt=3),
        ],
        [
            *((0, at, "parked", None, None, seconds) for at, seconds in enumerate((0.0, 100.0, 100.0))),
            (0, 3, "recovered", None, None, 100.0),
        ],
        [("recovered", 100.0, 100.0, 3)],
    ),
    "replays": (
        [
            event("parked", 0, tier=1, delay_ms=10_000),
            event("exhausted", 15, attempt=1, reason="retries_used"),
            event("requeued", 500, attempt=1),
            event("parked", 510, generation=1, tier=1, delay_ms=10_000),
            event("recovered", 530, generation=1, attempt=1),
            event("recovered", 540, generation=2),
        ],
        [
            (0, 0, "parked", None, None, 0.0),
            (0, 1, "exhausted", 1, 10_000, 15.0),
            (1, 0, "parked", None, None, 0.0),
            (1, 1, "recovered", 1, 10_000, 20.0),
            (2, 0, "recovered", None, None, None),
        ],
        [("exhausted", 15.0, None, 2), ("recovered", 0.0, 20.0, 1), ("recovered", 0.0, None, 0)],
    ),
    "an attempt after the end": (
        [event("parked", 0), event("recovered", 10, attempt=1), event("exhausted", 9_000, attempt=2, reason="gave_up")],
        [
            (0, 0, "parked", None, None, 0.0),
            (0, 1, "recovered", None, None, 10.0),
            (0, 2, "exhausted", None, None, None),
        ],
        [("recovered", 0.0, 10.0, 1)],
    ),
    "an end without a run": (
        [event("parked", 0), event("exhausted", 80, attempt=1, reason="expired")],
        [(0, 0, "parked", None, None, 0.0), (0, 1, "exhausted", None, None, 80.0)],
        [("exhausted", 0.0, None, 2)],
    ),
    "a person discards a waiting task": (
        [event("parked", 0), event("parked", 7, attempt=1), event("discarded", 30, attempt=1, reason="discard")],
        [(0, 0, "parked", None, None, 0.0), (0, 1, "parked", None, None, 7.0), (0, 1, "discarded", None, None, None)],
        [("discarded", 7.0, None, 2)],
    ),
    "a person discards an exhausted task": (
        [event("exhausted", 7), event("discarded", 30)],
        [(0, 0, "exhausted", None, None, 0.0)],
        [("exhausted", 0.0, None, 1)],
    ),
    "a person runs a waiting task early": (
        [event("parked", 0), event("requeued", 3), event("recovered", 5, attempt=1)],
        [(0, 0, "parked", None, None, 0.0), (0, 1, "recovered", None, None, 5.0)],
        [("recovered", 0.0, 5.0, 1)],
    ),
    "a task that waits": (
        [event("parked", 0), event("parked", 12, attempt=1)],
        [(0, 0, "parked", None, None, 0.0), (0, 1, "parked", None, None, 12.0)],
        [("open", 12.0, None, 2)],
    ),
}


def test_attempts_and_failure_episodes_are_as_calculated_by_hand(spark):
    events = [{**row, "task_id": name} for name, (some, _, _) in STORIES.items() for row in some]
    made = attempts(frame(spark, events)).to_frame().cache()
    episodes = all_episodes(made)
    for table, schema in ((made, ATTEMPTS), (episodes, EPISODES)):
        assert [(each.name, each.dataType) for each in table.schema] == [
            (each.name, each.dataType) for each in (*schema, DAY)
        ]
    columns = ("generation", "attempt", "outcome", "tier", "delay_ms", "t_seconds")
    of_episodes = ("outcome", "low_seconds", "high_seconds", "failed_attempts")
    found: dict[str, list[list[tuple[Any, ...]]]] = {name: [[], []] for name in STORIES}
    for row in sorted(rows(made), key=lambda row: (row["generation"], row["attempt"], row["outcome"] == "discarded")):
        found[row["task_id"]][0].append(tuple(row[name] for name in columns))
    for row in sorted(rows(episodes), key=lambda row: row["generation"]):
        found[row["task_id"]][1].append(tuple(row[name] for name in of_episodes))
    assert found == {name: results for name, (_, *results) in STORIES.items()}


def test_events_that_are_partitioned_by_task_are_not_moved_again(spark):
    plan: Any = attempts(frame(spark, [event("parked", 0)])).to_frame()._jdf
    assert plan.queryExecution().executedPlan().toString().count("Exchange hashpartitioning") == 1
