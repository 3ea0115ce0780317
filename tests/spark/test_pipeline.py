"""A run over days: written days, unchanged days, and the output after a kill."""

import errno
import json
import os
import random
import shutil
import signal
import subprocess
import sys
from collections import defaultdict
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet

from celery_rmq_delay.analytics.days import ADVICE_DAYS, Days
from celery_rmq_delay.analytics.estimate.options import Options as Estimate
from celery_rmq_delay.analytics.run import computing, pipeline
from celery_rmq_delay.analytics.run.describe import evaluate_ladders
from celery_rmq_delay.analytics.run.pipeline import broken_file, partitions_for
from celery_rmq_delay.analytics.run.planning import Report, Run
from celery_rmq_delay.analytics.storage import files, writers
from celery_rmq_delay.analytics.storage.locking import LOCK, locked
from celery_rmq_delay.exceptions import AnalyticsError
from celery_rmq_delay.history.output import CURRENT, REPORT, RUNS
from celery_rmq_delay.history.tables import day_folder
from tests.support.spark import reference
from tests.support.spark.cluster import STARTS_SOONER
from tests.support.spark.frames import NOON, Row, event
from tests.support.spark.history_files import (
    contents,
    days_of,
    quarantined,
    rows_of,
    shown,
    without,
    write,
    write_day,
)
from tests.support.spark.random_files import NOW as RANDOM_NOW
from tests.support.spark.random_histories import DAYS, RandomHistory, first_day

DAY = NOON.date()
NOW = NOON + timedelta(days=10)
FEW = Estimate(bootstrap_rounds=0)
TIMES = ("occurred_at", "due_at", "first_failed_at")
#: All but those of bursts, which need many failures, and of named ladders.
TABLES = {
    "attempts",
    "failure_groups",
    "hourly",
    "ladder_advice",
    "quarantine",
    "recovery_curve",
    "episodes",
    "tier_outcomes",
}


def story(day, task_id):
    """A task that fails twice and recovers at noon, and one that waits till midnight has passed."""
    noon = day * 86_400
    return [
        event("parked", noon, task_id, exception_type="Timeout", fingerprint="f", tier=1, delay_ms=10_000),
        event(
            "parked", noon + 11, task_id, attempt=1, exception_type="Timeout", fingerprint="f", tier=2, delay_ms=60_000
        ),
        event("recovered", noon + 72, task_id, attempt=2, first_failed_at=event("parked", noon)["occurred_at"]),
        event(
            "parked", noon + 43_000, f"{task_id}-late", exception_type="Timeout", fingerprint="f", tier=2, delay_ms=1
        ),
        event("recovered", noon + 43_300, f"{task_id}-late", attempt=1),
        event("rollup", noon + 5, worker=f"w-{task_id}", ok_count=7, event_id=f"rollup-{task_id}"),
    ]


def unfinished(day):
    """A task that failed twice and still waits."""
    noon = day * 86_400
    return [
        event("parked", noon + 20 * attempt, "waiting", attempt=attempt, tier=1, delay_ms=10_000)
        for attempt in range(2)
    ]


@pytest.fixture(scope="module")
def done(shared_spark, tmp_path_factory):
    """Three days of a history with a bad row and a bad file, and what a run made of it. Tests work on copies."""
    place = tmp_path_factory.mktemp("done")
    for day in range(3):
        write(place / "history", story(day, f"t{day}"))
    write(place / "history", unfinished(2))
    write_day(place / "history" / f"day={DAY}", [{**event("parked", 3, "bad"), "attempt": -1}])
    (place / "history" / f"day={DAY}" / "notes.parquet").write_text("no table")
    work = Run(input=str(place / "history"), output=str(place / "output"), now=NOW, compact=False, estimate=FEW)
    shared_spark.run(lambda spark: pipeline.run(spark, work))
    return place


@pytest.fixture
def history(done, tmp_path):
    return Path(shutil.copytree(done / "history", tmp_path / "history of 100%"))


@pytest.fixture
def output(done, tmp_path):
    return Path(shutil.copytree(done / "output", tmp_path / "output"))


@pytest.fixture
def run(spark, history, output):
    """Run the pipeline over the history once more; days by their distance from the first."""

    def run(first=None, last=None, **more):
        days = {
            name: DAY + timedelta(days=number)
            for name, number in (("first", first), ("last", last))
            if number is not None
        }
        settings: dict[str, Any] = {"input": str(history), "output": str(output), "estimate": None, "compact": False}
        return pipeline.run(spark, Run(now=NOW, **{**settings, **days, **more}))

    return run


def test_a_run_writes_all_days_of_all_tables_and_reports_it(output):
    assert {each.partition("/")[0] for each in contents(output)} == TABLES
    # What failed on the third day ended on the fourth.
    assert days_of(output, "attempts") == days_of(output, "hourly") == [DAY + timedelta(days=day) for day in range(4)]
    assert days_of(output, "recovery_curve") == days_of(output, "ladder_advice") == [DAY + timedelta(days=3)]
    assert [reason for reason, _ in quarantined(output)] == ["bad_count", "unreadable_file"]
    assert sorted(path.name for path in output.iterdir()) == [CURRENT, RUNS]
    assert not list(output.glob(f"{RUNS}/*/_*"))


def test_waiting_tasks_are_censored_in_the_curve_and_not_in_the_table_of_episodes(output):
    curve = {(row["episodes"], row["censored"]) for row in rows_of(output, "recovery_curve") if row["scope"] == "task"}
    assert curve == {(7, 1)}
    assert len(rows_of(output, "episodes")) == 6


def test_a_run_reports_the_rows_it_read_and_wrote(output):
    (file,) = output.glob(f"{RUNS}/*/{REPORT}")
    saved = json.loads(file.read_text())
    assert (saved["first_day"], saved["last_day"], saved["read_from"]) == ("2026-03-02", "2026-03-05", "2026-02-23")
    assert (saved["rows_in"], saved["events"], saved["duplicates"]) == (21, 20, 0)
    assert (saved["quarantined"], saved["left_out"]) == ({"bad_count": 1}, {"unreadable_file": 1})
    assert (saved["tables"]["attempts"], saved["tables"]["quarantine"]) == (4, 1)
    assert saved["bytes_written"] > saved["bytes_read"] // 100 > 0
    assert {"attempts", "publish"} <= saved["seconds"].keys()
    text = Report(**{**saved, "started_at": datetime.fromisoformat(saved["started_at"])}).text()
    for part in ("quarantined: bad_count", "files left out: unreadable_file", "notes.parquet: unreadable_file"):
        assert part in text


def test_no_dictionary_is_made_of_values_that_hardly_repeat(output):
    group = parquet.read_metadata(next(output.glob(f"{RUNS}/*/attempts/*/*.parquet"))).row_group(0)
    columns = [group.column(number) for number in range(group.num_columns)]
    has = {each.path_in_schema: each.has_dictionary_page for each in columns}
    assert has["task"]
    assert not (has["task_id"] or has["ended_at"] or has["t_seconds"] or has["episode.low_seconds"])


@pytest.mark.slow
def test_spark_writes_the_same_tables_if_its_tasks_can_run_on_other_machines(run, output, monkeypatch):
    run()
    of_one_machine = contents(output)
    monkeypatch.setattr(files, "is_local", lambda spark: False)
    run()
    assert contents(output) == of_one_machine
    names = shown_names(output, "attempts")
    assert names
    assert all(".zstd." in name for name in names)


@pytest.mark.slow
def test_a_run_needs_no_other_file_system_than_those_of_its_folders(run, history, output, spark):
    spark.conf.set("fs.defaultFS", "hdfs://127.0.0.1:1")
    try:
        assert run(input=history.as_uri(), output=output.as_uri()).tables["tier_outcomes"] > 0
    finally:
        spark.conf.unset("fs.defaultFS")


def shown_names(output, table):
    run = shown(output).run
    return [path.name for path in output.glob(f"{RUNS}/{run}/{table}/*/*.parquet")]


@pytest.mark.slow
@pytest.mark.parametrize("chosen", [slice(1, 2), slice(None)], ids=["one", "all"])
def test_a_day_has_the_same_rows_when_it_is_run_alone_and_leaves_other_days_files(spark, tmp_path, chosen):
    """End events a day late, rows in the folder of the next day, copies, clock skew, replays: all at random."""
    chance = random.Random(16)
    folders: dict[str, list[Row]] = defaultdict(list)
    for row in random_rows(12):
        later = timedelta(days=chance.random() < 0.1)
        folders[day_folder(row["occurred_at"] + later)].append(row)
    for folder, some in folders.items():
        write_day(tmp_path / "history" / folder, some)
    settings: dict[str, Any] = {"estimate": None, "compact": False, "now": NOW, "input": str(tmp_path / "history")}
    pipeline.run(spark, Run(**settings, output=str(tmp_path / "output")))
    together = contents(tmp_path / "output")
    assert len(days_of(tmp_path / "output", "attempts")) >= DAYS
    for day in days_of(tmp_path / "output", "attempts")[chosen]:
        before = shown(tmp_path / "output").used()
        pipeline.run(spark, Run(**settings, output=str(tmp_path / "output"), first=day, last=day))
        assert contents(tmp_path / "output") == together
        gone = before - shown(tmp_path / "output").used()
        # Incidents of the days around it depend on it.
        assert {each for _run, table, each in gone if table != "incidents"} == {day}


def random_rows(histories):
    """Return random histories of the same days. Events arrive within a day, as the pipeline reads no further."""
    rows: list[Row] = []
    for seed in range(histories):
        moved = DAY - first_day(seed)
        good = [row for row in RandomHistory(seed).rows if reference.reason(row, RANDOM_NOW) is None]
        rows += [{**row, **{name: row[name] and row[name] + moved for name in TIMES}} for row in good]
    first: dict[Any, datetime] = {}
    for row in sorted(rows, key=lambda row: row["occurred_at"]):
        first.setdefault(attempt_of(row), row["occurred_at"])
    return [row for row in rows if row["occurred_at"].date() - first[attempt_of(row)].date() <= timedelta(days=1)]


def attempt_of(row):
    return row["task_id"] or row["event_id"], row["generation"], row["attempt"]


@pytest.mark.slow
def test_a_day_whose_rows_are_gone_ends_empty_and_a_file_whose_rows_are_broken_is_left_out(run, history, output):
    for file in (history / f"day={DAY + timedelta(days=1)}").iterdir():
        file.unlink()
    broken = write_day(history / f"day={DAY}", [event("parked", number, f"x{number}") for number in range(500)])
    data = bytearray(broken.read_bytes())
    data[4 : len(data) // 2] = bytes(len(data) // 2 - 4)  # its end is whole
    broken.write_bytes(data)
    done = run(0, 1, lookback=timedelta(0))
    assert days_of(output, "attempts") == [DAY, DAY + timedelta(days=2), DAY + timedelta(days=3)]
    assert done.left_out == {"unreadable_file": 2}
    assert ("unreadable_file", broken.name) in quarantined(output)
    assert done.events == 5 + 8 + 1, "of the first day, and of the next ones, which are read for ends and traffic"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("advice_days", "since", "episodes"), [(ADVICE_DAYS, "2026-02-04", 7), (2, "2026-03-04", 4)], ids=["all", "two"]
)
def test_advice_of_a_day_that_is_run_alone_is_of_the_days_before_it_too(run, output, advice_days, since, episodes):
    """A run with named ladders; it reports those that belong to no queue."""

    def curves():
        """Return the numbers of failure episodes of the curves, and of those with an unknown end."""
        rows = rows_of(output, "recovery_curve")
        return {(row["scope"], row["name"]): (row["episodes"], row["censored"]) for row in rows}

    together = curves()
    ladders = {"payments": [(60_000,)], "mails": [(1_000,)]}
    report = run(3, 3, estimate=FEW, advice_days=advice_days, ladders=ladders)
    assert report.advice_from == since
    assert curves()["task", "shop.pay"] == (episodes, 1)
    assert (curves() == together) is (advice_days == ADVICE_DAYS)
    assert report.tables["what_if"] == 1
    assert "no retried failure of the queue mails" in report.notes


def test_ladders_are_estimated_from_a_finished_output(spark, output):
    named = {"payments": [(60_000,), (10_000, 600_000)], "mails": [(1_000,)]}
    found = evaluate_ladders(spark, str(output), Days(date.min, date.max), named, FEW)
    assert [row[:3] for row in found.rows] == [("payments", "10s,10m", 7), ("payments", "1m", 7)]
    unseen, few = found.notes
    assert unseen == "no retried failure of the queue mails"
    assert few.startswith("payments: ")


@pytest.mark.slow
def test_ladders_are_estimated_without_tasks_whose_end_was_lost(run, spark, history, output):
    """The task that waited on the third day is silent for more than a week."""
    write(history, [event("parked", 10 * 86_400 - 5, "mail", queue="mails")])
    run(10, 10)
    found = evaluate_ladders(spark, str(output), Days(date.min, date.max), {"payments": [(60_000,)]}, FEW)
    assert [row[2] for row in found.rows] == [6]


@pytest.mark.slow
def test_late_events_count_when_their_day_is_run_again(run, history, output):
    before = contents(output)
    write(history, [event("parked", 100, "straggler")])
    run(0, 0)
    after = contents(output)
    changed = {name for name in after if after[name] != before.get(name)}
    assert f"attempts/day={DAY}" in changed
    assert {name.partition("/")[2] for name in changed} == {f"day={DAY}"}
    assert before.keys() == after.keys()


def test_an_empty_range_is_reported_and_no_error(run, output):
    before = contents(output)
    report = run(None, -5)
    assert report.notes == ["The history has no files of these days: nothing was computed."]
    assert report.first_day is None
    assert contents(output) == before


def test_a_run_that_fails_leaves_the_output_as_it_was(run, output, monkeypatch):
    before = contents(output)

    def fail(*args):
        raise RuntimeError("in the middle")

    monkeypatch.setattr(computing, "tier_outcomes", fail)
    with pytest.raises(RuntimeError, match="in the middle"):
        run()
    assert contents(output) == before
    assert sorted(path.name for path in output.iterdir()) == [CURRENT, RUNS]
    assert len(list((output / RUNS).iterdir())) == 1


def test_a_full_disk_leaves_the_output_and_is_named(run, output, monkeypatch):
    before = contents(output)

    def full(*args):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(writers, "write_made", full)
    with pytest.raises(AnalyticsError, match=r"A disk is full\. Use another one with --output"):
        run()
    assert contents(output) == before


def test_files_of_which_none_can_be_read_end_the_run_and_leave_the_output(run, history, output):
    """The files of the days before it, which are read too, are whole."""
    before = contents(output)
    for file in (history / f"day={DAY + timedelta(days=2)}").glob("*.parquet"):
        file.write_text("no table")
    with pytest.raises(AnalyticsError, match=r"None of the \d+ files of 2026-03-04 can be read: nothing was computed"):
        run(2, 2)
    assert contents(output) == before


@pytest.mark.slow
def test_days_without_files_are_left_as_they_are_or_named(run, history, output):
    """A day that the retention of the history removed: alone, and with others."""
    before = contents(output)
    shutil.rmtree(history / f"day={DAY}")
    assert run(-9, -9).notes == ["The history has no files of these days: nothing was computed."]
    assert contents(output) == before
    assert run(0, 1).notes[0] == f"The history has no files of {DAY}: these days are now empty."
    assert DAY not in days_of(output, "attempts")


@pytest.mark.slow
def test_files_without_the_column_generation_are_read_as_first_runs(run, history, output):
    late = write_day(history / f"day={DAY}", [event("parked", 5, "old")], without("generation"))
    report = run(0, 0)
    assert late.name not in {name for _reason, name in quarantined(output)}
    assert report.left_out == {"unreadable_file": 1}
    assert [row["generation"] for row in rows_of(output, "attempts") if row["task_id"] == "old"] == [0]


def test_a_second_run_on_the_same_output_is_refused(spark, run, output):
    with locked(spark, str(output), "first"), pytest.raises(AnalyticsError, match=r"the run first .* writes there"):
        run()


KILLED = """
import os, signal, sys
from datetime import datetime
from celery_rmq_delay.analytics import session
from celery_rmq_delay.analytics.run import pipeline, planning
from celery_rmq_delay.analytics.storage import files

moment, history, output, now, java = sys.argv[1:]
write, name = files.LocalStorage.write, moment.partition(" ")[2]

def die():
    os.kill(os.getpid(), signal.SIGKILL)

def killed(self, path, text, *, replace=True):
    if moment == f"before {path.rpartition('/')[2]}":
        die()
    done = write(self, path, text, replace=replace)
    if moment == f"after {path.rpartition('/')[2]}":
        die()
    return done

def report(line):
    if line == moment:
        die()

files.LocalStorage.write = killed
conf = {"spark.driver.memory": "1g", "spark.driver.extraJavaOptions": java, "spark.sql.shuffle.partitions": "2"}
spark = session.open_session("local[2]", conf)
now = datetime.fromisoformat(now)
pipeline.run(spark, planning.Run(input=history, output=output, now=now, estimate=None, compact=False), report)
"""


def kill(moment, history, output):
    """Run the pipeline in a process of its own that is killed at a moment: a stage, or around the write of a file."""
    arguments = [moment, str(history), str(output), NOW.isoformat(), STARTS_SOONER]
    command = [sys.executable, "-c", KILLED, *arguments]
    killed = subprocess.run(command, env=os.environ, capture_output=True, text=True, timeout=600)
    assert killed.returncode == -signal.SIGKILL, killed.stderr[-2_000:]


@pytest.mark.slow
def test_a_run_that_is_killed_before_it_is_published_changes_nothing_and_leaves_nothing_later(run, history, output):
    before = contents(output)
    write(history, [event("parked", 86_400 * day + 100, f"straggler{day}") for day in range(3)])
    for moment in ("hourly ...", "after manifest.json", "before current.json"):
        kill(moment, history, output)
        assert contents(output) == before
        assert (output / LOCK).exists()
        assert len(list((output / RUNS).iterdir())) == 2, "the next run has removed the files of the last one"
    kill("after current.json", history, output)
    after = contents(output)
    assert before.keys() == after.keys()
    for day in range(3):
        assert any(f"straggler{day}" in row for row in after[f"attempts/day={DAY + timedelta(days=day)}"])
    assert [note for note in run().notes if not note.startswith("left out ")] == []
    assert contents(output) == after
    assert not (output / LOCK).exists()


def test_partitions_grow_with_the_rows_and_are_a_multiple_of_the_cores():
    rows = (0, 400_000, 800_001, 100_000_000, 10**12)
    assert [partitions_for(each, 2) for each in rows] == [2, 2, 4, 250, 4_000]


def test_the_broken_file_is_found_in_spark_s_error():
    error = "x: [FAILED_READ_FILE.NO_HINT] Encountered error while reading file file:///h%201/day=2026-01-01/a%25. SQL"
    assert broken_file(error) == "file:/h 1/day=2026-01-01/a%"
    assert broken_file(error.replace("NO_HINT", "FILE_NOT_EXIST")) is None
    assert broken_file("something else") is None
