"""Incidents over midnight, in runs over some of the days."""

import shutil
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from celery_rmq_delay.analytics.run import pipeline
from celery_rmq_delay.analytics.run.planning import Run
from tests.support.spark.frames import NOON, event, outage
from tests.support.spark.history_files import contents, days_of, shown, write

pytestmark = pytest.mark.slow

DAY = NOON.date()
NOW = NOON + timedelta(days=10)
MIDNIGHT = 12 * 3600
DAYS = 3

RunDays = Callable[..., dict[str, list[str]]]


def story():
    """Return an outage over the first midnight, one on each day, and some failures and successes at all times."""
    rows = outage(0, MIDNIGHT - 900, 40, 3, exception_type="Down")
    for day in range(DAYS):
        rows += outage(day, 3_600, 20, 3, "noon", exception_type="Full", task="shop.mail")
        rows += [event("recovered", day * 86_400 + 7_200, f"noon-{day}-3600-{at}", attempt=1) for at in range(20)]
        for hour in range(-12, 12):
            at = day * 86_400 + hour * 3_600
            rows.append(event("parked", at + 5, f"usual-{day}-{hour}", exception_type="Down"))
            rows.append(event("rollup", at, ok_count=30 + day, event_id=f"ok-{day}-{hour}"))
    return rows


@pytest.fixture
def run(spark, tmp_path):
    """Run over days (by their distance from the first) into an output; return its incidents by day."""
    write(tmp_path / "history", story())

    def run(output, first, last):
        days = {"first": DAY + timedelta(days=first), "last": DAY + timedelta(days=last)}
        where = tmp_path / output
        settings: dict[str, Any] = {"estimate": None, "compact": False, "now": NOW, **days}
        pipeline.run(spark, Run(input=str(tmp_path / "history"), output=str(where), **settings))
        return {name: rows for name, rows in contents(where).items() if name.startswith("incidents/")}

    return run


@pytest.mark.parametrize("days", [2, pytest.param(DAYS, marks=pytest.mark.slow)])
def test_incidents_are_the_same_however_the_days_are_divided_into_runs(run, days):
    alone = run("by day", 0, 0)
    together = run("together", 0, days - 1)
    numbers = {f"incidents/day={DAY + timedelta(days=day)}": 1 + (day == 0) for day in range(days)}
    assert {name: len(rows) for name, rows in together.items()} == numbers
    assert alone != {name: together[name] for name in alone}, "it went on after midnight"
    for day in range(1, days):
        found = run("by day", day, day)
    assert found == together
    assert run("by day", 0, 0) == together, "an old day that is computed again"


@pytest.mark.slow
def test_a_day_whose_attempts_were_removed_keeps_its_incidents(run, tmp_path):
    before = run("output", 0, 1)
    shutil.rmtree(tmp_path / "output" / shown(tmp_path / "output").folders("attempts")[DAY])
    after = run("output", 1, 1)
    assert after[f"incidents/day={DAY}"] == before[f"incidents/day={DAY}"]
    assert days_of(tmp_path / "output", "incidents") == [DAY, DAY + timedelta(days=1)]


@pytest.mark.slow
def test_a_day_whose_episodes_were_removed_keeps_the_share_of_recoveries(run, tmp_path):
    before = run("output", 0, 1)
    shutil.rmtree(tmp_path / "output" / shown(tmp_path / "output").folders("episodes")[DAY])
    assert run("output", 1, 1) == before
    assert "'recovered_share': 1.0" in str(before)
