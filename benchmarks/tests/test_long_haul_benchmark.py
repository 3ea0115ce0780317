"""Evaluation of the samples of the long haul: slopes, verdicts, tables, charts."""

from __future__ import annotations

import math
import random

import pytest

from benchmarks import charts, docs_part
from benchmarks.growth import trend
from benchmarks.long_haul_report import (
    Record,
    Sample,
    from_json,
    is_flat,
    most_per_second,
    panels,
    tables,
    worker_growth,
)

MB = 1024 * 1024


def test_a_line_through_samples_has_their_slope_and_bounds_around_it():
    noise = random.Random(7)
    times = [10.0 * each for each in range(400)]
    values = [50 + 6 * at / 3600 + noise.gauss(0, 0.5) for at in times]
    found = trend(times, values)
    assert found.low < 6 < found.high
    assert found.per_hour == pytest.approx(6, abs=0.3)
    assert found.growth == pytest.approx(6 * times[-1] / 3600, rel=0.05)
    assert (found.first, found.last) == pytest.approx((50, 56.65), abs=0.3)
    assert [found.verdict(bound) for bound in (10, 2)] == ["flat", "grows"]


def test_correlated_samples_widen_the_bounds_of_a_slope():
    times = [10.0 * each for each in range(360)]
    noise = random.Random(1)
    alone = [noise.gauss(0, 3) for _ in times]
    waves = [3 * math.sin(at / 400) for at in times]
    sure, unsure = trend(times, alone), trend(times, waves)
    assert unsure.high - unsure.low > 3 * (sure.high - sure.low)
    assert trend(times, [-each for each in waves]).verdict(0.1) in {"flat", "unclear"}


def test_the_warm_up_does_not_count_and_few_samples_have_no_trend():
    times = [float(each) for each in range(60)]
    values = [100 - at if at < 20 else 80.0 for at in times]
    assert trend(times, values, after=20).per_hour == 0
    assert trend(times, values, after=55) is None


def sample(seconds, worker, parked, *, collector=None, broker=100 * MB):
    return Sample(seconds, worker, collector, broker, 2 * broker, 300 * MB, parked, 10, int(seconds))


def hauled():
    samples = [
        sample(0, 100 * MB, 2_000),
        sample(60, 101 * MB, 500_000),
        sample(100, 101 * MB, 1_000_000, broker=1_100 * MB),
        sample(150, 100 * MB + MB // 2, 1_000_000, broker=1_050 * MB),
        sample(200, 104 * MB, 400_000),
        sample(212, 104 * MB, 0),
    ]
    facts = {"messages": 1_000_000, "rejected": 600_000, "published": 400_000, "done": 1_000_000, "done_rate": 1234.5}
    return Record(
        "quorum",
        {"RabbitMQ": "4.3.6"},
        facts,
        samples,
        {"warm": 0, "rejected": 70, "parked": 90, "due": 160, "done": 212},
    )


def test_a_worker_is_flat_by_its_memory_while_all_tasks_are_parked():
    record = hauled()
    assert worker_growth(record) == 1.0
    assert is_flat(record)
    [(title, head, rows)] = tables(record)
    assert title == "1,000,000 parked, quorum"
    assert all(len(row) == len(head) for row in rows)
    assert ["worker grew by, MB", "+1.0 (flat)"] in rows
    assert ["tasks that were done", "1,000,000 of 1,000,000"] in rows
    assert ["broker bytes per parked task: memory, files", "1,051, 0"] in rows


def test_the_rate_of_coming_back_is_the_highest_over_ten_seconds():
    assert most_per_second(hauled().samples) == pytest.approx(400_000 / 12)
    assert most_per_second([sample(0, 1, 50), sample(5, 1, 0)]) == 10


@pytest.mark.parametrize("name", ["haul", "soak"])
def test_a_record_survives_json_and_is_drawn(name, tmp_path):
    record = hauled() if name == "haul" else soaked()
    assert from_json(record.to_json()) == record
    assert len(panels(record)) == (4 if name == "haul" else 2)
    charts.write(panels(record), tmp_path / "chart.svg")
    assert all(panel.title in (tmp_path / "chart.svg").read_text() for panel in panels(record))


def soaked():
    samples = [
        sample(10.0 * each, 100 * MB, 40, collector=80 * MB + each * MB // 10, broker=90 * MB + each % 3 * MB)
        for each in range(361)
    ]
    return Record("soak", {}, {"tasks published": 5}, samples, {"steady": 0.0})


def test_a_soak_has_a_verdict_for_each_process():
    [(_title, head, rows), counts] = tables(soaked())
    assert all(len(row) == len(head) for row in rows)
    assert {row[0]: row[-1] for row in rows} == {
        "worker": "flat (bound 2)",
        "collector": "grows (bound 4)",
        "broker": "flat (bound 10)",
    }
    assert counts[2] == [["tasks published", "5"]]


@pytest.mark.parametrize("name", ["classic", "quorum", "soak"])
def test_the_documentation_has_a_part_for_each_run(name):
    docs_part.replaced((docs_part.PAGES / "contributing/long-haul.md").read_text(), f"long-haul-{name}", "")
