"""The benchmark of incidents: its generator, its matching, and one of its loads."""

from __future__ import annotations

from datetime import timedelta

import pytest
from pyarrow import compute, dataset

from benchmarks.incidents import Found, Score, faults, markdown, score
from benchmarks.outage_loads import FIRST, LOADS, SCHEMA, Outage
from celery_rmq_delay.history.tables import COLUMNS


def outage(start: float, end: float, *tasks: str, failures: int = 100) -> Outage:
    return Outage("total", "api", "Down", start, end, tasks=set(tasks), failures=[failures])


def found(start: float, end: float, *tasks: str) -> Found:
    return Found(start, end, frozenset(tasks))


def scored(outages: list[Outage], incidents: list[Found]) -> Score:
    score = Score("x")
    score.add(outages, incidents)
    return score


def test_an_incident_matches_an_outage_with_which_it_shares_time_and_a_task():
    one = scored([outage(0, 100, "a", "b")], [found(20, 90, "a", "c"), found(200, 300, "a"), found(0, 100, "c")])
    assert (one.precision, one.recall, one.start_errors) == (pytest.approx(1 / 3), 1.0, [20])
    assert (one.bystanders, one.named) == (1, 2)
    assert len(list(faults(one))) == 2
    assert markdown([one]).splitlines()[2] == "| x | 1 | 3 | 0.333 | 1.000 | 20 | 20 | 1 | 2 |"


def test_an_outage_in_two_parts_and_two_outages_in_one_are_errors():
    parts = scored([outage(0, 100, "a")], [found(0, 30, "a"), found(40, 100, "a")])
    assert (parts.precision, parts.recall, parts.start_errors) == (0.5, 1.0, [40])
    merged = scored([outage(0, 100, "a"), outage(10, 90, "b")], [found(0, 100, "a", "b")])
    assert (merged.precision, merged.recall) == (1.0, 0.5)


def test_a_small_outage_is_neither_missing_nor_wrong():
    small = outage(0, 100, "a", failures=19)
    for incidents in ([], [found(0, 100, "a")]):
        one = scored([small, outage(500, 600, "b")], [*incidents, found(500, 600, "b")])
        assert (one.precision, one.recall, one.outages) == (1.0, 1.0, 1)


def test_histories_have_the_columns_of_the_collectors_files_and_their_known_outages(tmp_path):
    assert SCHEMA.names == [column.name for column in COLUMNS]
    load = LOADS["busy neighbour"](1)
    load.write(tmp_path, FIRST, 1)
    rows = dataset.dataset(tmp_path, format="parquet").to_table()
    (one,) = load.outages
    down = rows.filter(compute.equal(rows["exception_type"], one.exception))
    assert compute.sum(compute.equal(down["attempt"], 0)).as_py() == sum(one.failures) == pytest.approx(600, abs=100)
    assert one.tasks == {"shop.pay"}
    times = sorted(time - FIRST for time in down.filter(compute.equal(down["attempt"], 0))["occurred_at"].to_pylist())
    assert timedelta(0) < times[0] - timedelta(seconds=one.start) < timedelta(minutes=2)
    busy = rows.filter(compute.equal(rows["task"], "feeds.fetch"))
    parked = busy.filter(compute.and_(compute.equal(busy["kind"], "parked"), compute.equal(busy["attempt"], 0)))
    assert len(parked) / 1_440 == pytest.approx(60, rel=0.1)


@pytest.mark.slow
def test_an_outage_behind_a_busy_neighbour_is_found(tmp_path):
    one = score("busy neighbour", [1], tmp_path)
    assert (one.precision, one.recall, one.bystanders) == (1.0, 1.0, 0)
    assert one.start_errors[0] < 60
