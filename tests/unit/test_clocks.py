"""Workers whose clocks differ: retries that ended before their delay can have passed show it."""

from datetime import datetime, timedelta, timezone

import numpy as np
import pyarrow as pa
import pytest

from celery_rmq_delay.analytics.estimate.intervals import Intervals
from celery_rmq_delay.analytics.estimate.lateness import Early, named, offsets
from celery_rmq_delay.analytics.estimate.options import Options
from celery_rmq_delay.analytics.estimate.shares import shares
from celery_rmq_delay.analytics.tables import along
from celery_rmq_delay.analytics.tables.aggregation import intervals_of
from celery_rmq_delay.analytics.tables.counts import CLOCKS, counts_of
from celery_rmq_delay.analytics.tables.ladder_advice import _advice, _rows
from tests.support.recoveries import Seen, ms, rows, todays
from tests.support.spark.columns import EVENTS, SCHEMA

OPTIONS = Options(bootstrap_rounds=10)
LADDER = (10, 60, 600, 3600)
WORKERS = ("w1", "w2", "w3", "w4")


def history(skews, count=1_500, seed=3, cut=0):
    """Return events of tasks whose failures last 5 s or 40 minutes, with the clocks of four workers (seconds).

    ``cut``: the waits of so many tasks are ended by a person, at once.
    """
    random = np.random.default_rng(seed)
    began = datetime(2026, 3, 2, tzinfo=timezone.utc)
    lasts = np.where(random.random(count) < 0.7, 5.0, 2400.0) * random.uniform(0.8, 1.2, count)
    found = []
    for task in range(count):
        ended = random.uniform(0, 30 * 86_400)
        origin = ended
        for attempt in range(len(LADDER) + 1):
            worker = int(random.integers(len(WORKERS)))
            is_over = attempt > 0 and ended - origin >= lasts[task]
            outcome = "recovered" if is_over else "exhausted" if attempt == len(LADDER) else "parked"
            row = dict.fromkeys(EVENTS.names) | {
                "task_id": f"{task:05}", "event_id": f"{attempt}", "outcome": outcome, "kind": outcome,
                "ended_at": began + timedelta(seconds=ended + skews[worker]), "generation": 0, "attempt": attempt,
                "task": "shop.pay", "queue": "payments", "worker": WORKERS[worker], "runtime_ms": 200,
                "ladder_ms": list(ms(LADDER)), "max_retries": len(LADDER),
            }  # fmt: skip
            if outcome == "parked":
                row |= {"tier": attempt + 1, "delay_ms": 1000 * LADDER[attempt]}
            found.append(row)
            if outcome != "parked":
                break
            if task < cut and attempt == 0:
                found.append(row | {"event_id": "0r", "outcome": "requeued", "kind": "requeued"})
            waited = 0 if task < cut and attempt == 0 else LADDER[attempt]
            ended += waited + 0.2 + random.exponential(0.5)
    events = pa.Table.from_pylist(found, EVENTS)
    return along.attempts_of(events, SCHEMA)


def seen(attempts):
    """Return the failures of attempts, as `episodes.ended` and `aggregation.counted_intervals` make them."""
    last = attempts.filter(pa.compute.is_in(attempts["outcome"], pa.array(along.ENDS))).to_pylist()
    over = np.array([row["outcome"] == "recovered" for row in last])
    waited = np.array([row["episode"]["waited_ms"] for row in last], dtype=float) / 1000
    begins = [row["episode"]["first_failed_at"].timestamp() // 3600 for row in last]
    return Seen(
        np.array([row["episode"]["low_seconds"] for row in last]),
        np.where(over, [row["t_seconds"] for row in last], np.nan),
        np.array(begins, dtype=np.int64),
        np.array([row["episode"]["failed_attempts"] for row in last]),
        np.zeros(len(last), dtype=np.int64),
        waited,
    )


def pairs(attempts):
    """Return the early retries by workers, and the number of retries."""
    counts = pa.concat_tables(list(counts_of(attempts)), promote_options="default").to_pylist()
    clocks = [row for row in counts if row["of"] == CLOCKS]
    early = [
        Early(row["previous_worker"], row["worker"], row["early"], row["early_ms"] / 1000)
        for row in clocks
        if row["early"]
    ]
    return early, sum(row["retries"] or 0 for row in clocks)


@pytest.mark.parametrize("skew", [-60.0, 60.0])
def test_the_worker_whose_clock_is_wrong_is_named_with_the_difference(skew):
    found, note = named(*pairs(history((0, 0, 0, skew))))
    assert list(found) == ["w4"]
    assert found["w4"] == pytest.approx(skew, abs=1.0)
    assert f"w4 by {skew:+.0f}"[:-1] in note


def test_clocks_that_agree_are_not_reported():
    assert named(*pairs(history((0.0, 0.3, -0.2, 0.0)))) == ({}, None)


def test_waits_that_a_person_ended_do_not_show_that_clocks_differ():
    attempts = history((0, 0, 0, 0), cut=200)
    assert pairs(attempts)[0] == []
    row = _advice(("q", True, ""), rows(seen(attempts), OPTIONS), todays(LADDER), OPTIONS).iloc[0]
    assert "clocks" not in row["reason"]


def test_a_wrong_clock_does_not_bend_the_curve_and_there_is_no_advice():
    counted = rows(seen(history((0, 0, 0, -60.0))), OPTIONS)
    curve = shares(intervals_of(counted, OPTIONS), OPTIONS).likely[0]
    assert curve[OPTIONS.grid.cells([5.0])[0]] < 0.4
    assert curve[OPTIONS.grid.cells([1.0])[0]] < 0.05
    row = _advice(("q", True, ""), counted, todays(LADDER), OPTIONS).iloc[0]
    assert (row["enough_data"], row["advised_ms"]) == (False, None)
    assert row["reason"].startswith("the clocks of the workers differ, by about 58 s: ")
    other = _rows("q", counted, [ms((30, 3600))], OPTIONS).iloc[0]
    assert not other["enough_data"]
    assert other["reason"] == row["reason"]


def test_the_fewest_workers_that_explain_early_retries_have_wrong_clocks():
    found = offsets([Early("a", "b", 50, 30.0), Early("c", "b", 40, 31.0), Early("d", "a", 20, 5.0)])
    assert found == {"b": -30.5, "a": -5.0}
    assert offsets([]) == {}


def test_a_recovery_before_its_delay_counts_at_the_time_when_the_delay_has_passed():
    counted = rows(Seen(*(np.array([each]) for each in (0.0, 0.1, 5, 1, 0, 10.0))), OPTIONS)
    (high,) = intervals_of(counted, OPTIONS).high
    assert high == OPTIONS.grid.cells([10.0])[0]
    assert high < Intervals.OPEN
