"""Synthetic histories: repeatable, exact in their counts, and in agreement with their truth."""

import json
from collections import Counter, defaultdict
from dataclasses import fields
from datetime import date, datetime, timedelta, timezone
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from celery_rmq_delay.analytics import synth
from celery_rmq_delay.analytics.cli import main
from celery_rmq_delay.events.schema import Event, event_id
from celery_rmq_delay.exceptions import SettingsError
from celery_rmq_delay.history.tables import COLUMNS, day_folder
from tests.support import ROOT
from tests.support.corpus import corpus
from tests.support.snippets import snippets

SECOND = timedelta(seconds=1)
SMALL: dict[str, Any] = {"attempts": 3_000, "days": 3, "chunk_attempts": 1_000, "file_rows": 500}


class History(NamedTuple):
    """A history, with all of its rows and its truth."""

    folder: Path
    rows: list[dict[str, Any]]
    truth: dict[str, Any]


def written(folder, columns=None, **values):
    truth = synth.write(str(folder), synth.Spec(**values), processes=1)
    tables = [pq.read_table(path, columns=columns) for path in sorted(folder.glob("day=*/*.parquet"))]
    return History(folder, pa.concat_tables(tables).to_pylist(), truth)


@pytest.fixture(scope="module")
def history(tmp_path_factory):
    return written(tmp_path_factory.mktemp("synth"), **SMALL)


@pytest.mark.slow
def test_the_same_seed_writes_the_same_files_and_another_one_does_not(tmp_path):
    for name, processes, seed in (("one", 1, 7), ("two", 2, 7), ("other", 1, 8)):
        synth.write(str(tmp_path / name), synth.Spec(**SMALL, seed=seed), processes=processes)
    files = {
        name: {path.relative_to(tmp_path / name): path.read_bytes() for path in (tmp_path / name).rglob("*.*")}
        for name in ("one", "two", "other")
    }
    assert files["one"] == files["two"]
    assert files["one"].keys() & files["other"].keys() == {Path("_truth.json")}


def test_files_have_the_columns_of_the_collector_in_the_folders_of_their_days(history):
    paths = sorted(history.folder.glob("day=*/part-*.parquet"))
    assert len(paths) == history.truth["counts"]["files"]
    for path in paths:
        table = pq.read_table(path, partitioning=None)
        assert table.column_names == [each.name for each in COLUMNS]
        assert {day_folder(moment) for moment in table.column("occurred_at").to_pylist()} == {path.parent.name}
        assert table.num_rows <= SMALL["file_rows"]


def test_every_row_is_an_event(history):
    required = {each.name for each in COLUMNS if each.required}
    known = {field.name for field in fields(Event)}
    for row in history.rows:
        assert not [name for name in required if row[name] is None]
        event = Event(
            **{name: value for name, value in row.items() if name in known} | {"ladder_ms": tuple(row["ladder_ms"])}
        )
        assert Event.from_json(event.to_json()) == event
        if event.kind != "rollup":
            assert event.task_id is not None
            assert event.event_id == event_id(event.task_id, event.generation, event.attempt, event.kind)


def test_counts_are_exact(history):
    rows, counts = history.rows, history.truth["counts"]
    once = {row["event_id"]: row for row in rows}
    kinds = Counter(row["kind"] for row in once.values())
    assert len(rows) == counts["rows"]
    assert len(rows) - len(once) == counts["duplicates"] > 0
    assert {f"events.{kind}": count for kind, count in kinds.items()} == {
        name: count for name, count in counts.items() if name.startswith("events.")
    }
    assert sum(kinds[kind] for kind in ("parked", "forwarded", "recovered", "exhausted")) == SMALL["attempts"]
    assert sum(row["ok_count"] or 0 for row in once.values()) == counts["ok_count"]
    assert json.loads((history.folder / "_truth.json").read_text()) == history.truth


def test_each_task_advances_through_its_ladder_until_it_ends(history):
    episodes = defaultdict(dict)
    for row in history.rows:
        if row["kind"] != "rollup":
            episodes[row["task_id"]][row["attempt"]] = row
    assert len(episodes) == history.truth["counts"]["episodes"]
    ends: dict[str, int] = defaultdict(int)
    for attempts in episodes.values():
        assert sorted(attempts) == list(range(len(attempts)))
        *failed, last = [attempts[number] for number in sorted(attempts)]
        assert {row["kind"] for row in failed} <= {"parked", "forwarded"}
        ends[last["reason"] or last["kind"]] += 1
        for row in failed:
            assert row["delay_ms"] == row["ladder_ms"][row["tier"] - 1]
            assert row["tier"] == row["attempt"] + 1
        if last["reason"] == "retries_used":
            assert last["attempt"] == last["max_retries"] == len(last["ladder_ms"])
        if last["kind"] == "recovered":
            assert last["attempt"] > 0
            assert last["exception_type"] is None
    by_truth: dict[str, int] = defaultdict(int)
    for task in history.truth["tasks"].values():
        for name, count in task.items():
            by_truth["revoked" if name == "discarded" else name] += count
    assert dict(ends) == {name: by_truth[name] for name in ends}


def test_a_queue_changes_its_ladder_half_way(history):
    queue = synth.default_shop().queues[0]
    middle = datetime(2026, 1, 2, 12, tzinfo=timezone.utc)
    ladders = defaultdict(set)
    for row in history.rows:
        if row["queue"] == queue.name and row["kind"] != "rollup" and abs(row["first_failed_at"] - middle) > SECOND:
            ladders[row["first_failed_at"] > middle].add(tuple(row["ladder_ms"]))
    assert ladders == {False: {queue.ladder_ms}, True: {queue.later_ms}}


@pytest.mark.slow
@corpus("name", sorted(synth.NAMED))
def test_failures_last_as_the_truth_states(tmp_path, name):
    shop = synth.default_shop(synth.NAMED[name], hard=0.5)
    spec = synth.Spec(attempts=60_000, days=10, shop=shop, outages="independent")
    truth = synth.write(str(tmp_path), spec, processes=1)
    for curve in truth["recovery"]:
        error = np.abs(np.array(curve["drawn"]) - np.array(curve["expected"])).max()
        assert error < 2 / np.sqrt(curve["episodes"]), curve["name"]
        assert curve["expected"][-1] == pytest.approx(0.5, abs=1e-3)


def test_recovery_in_the_files_is_within_the_bounds_of_the_truth(tmp_path):
    """No failure is over before its last failed attempt; recovered ones are over."""
    columns = ["task", "kind", "occurred_at", "first_failed_at", "reason", "task_id"]
    _folder, rows, truth = written(tmp_path, columns, attempts=60_000, days=10, discarded=0.0, skew_s=0.0)
    curves = {curve["name"]: curve for curve in truth["recovery"]}
    begun: dict[str, Any] = {}
    for row in rows:
        if row["kind"] in ("recovered", "exhausted") and row["reason"] in (None, "retries_used"):
            begun.setdefault(row["task"], {})[row["task_id"]] = row
    for task, ends in begun.items():
        grid, drawn = truth["grid_s"], curves[task]["drawn"]
        recovered = [row for row in ends.values() if row["kind"] == "recovered"]
        lasted = np.sort([(row["occurred_at"] - row["first_failed_at"]).total_seconds() for row in recovered])
        seen = np.searchsorted(lasted, grid, side="right") / curves[task]["episodes"]
        assert (seen <= np.array(drawn) + 1e-3).all()


def test_shared_outages_hit_all_tasks_of_a_dependency_and_no_others(tmp_path):
    _folder, rows, truth = written(tmp_path, **SMALL, skew_s=0.0, start=date(2026, 3, 1))
    begin = datetime(2026, 3, 1, tzinfo=timezone.utc)
    dependency = {task.name: task.dependency for task in synth.default_shop().tasks}
    for row in rows:
        if row["kind"] == "parked" and row["attempt"] == 0:
            at = (row["first_failed_at"] - begin) / SECOND
            assert any(low - 0.01 <= at <= high + 0.01 for low, high in truth["outages"][dependency[row["task"]]])


def test_bad_rows_and_files_come_on_top(tmp_path):
    truth = synth.write(str(tmp_path), synth.Spec(**SMALL, bad_rows=25, bad_files=True), processes=1)
    counts = truth["counts"]
    assert sum(count for name, count in counts.items() if name.startswith("bad.")) == 25
    names = {name.removeprefix("bad_file.") for name in counts if name.startswith("bad_file.")}
    written = {path.stem.removeprefix("part-") for path in tmp_path.glob("day=2026-01-01/part-*")}
    assert names < written
    assert pq.read_table(tmp_path / "day=2026-01-01" / "part-bad-rows.parquet").num_rows == 25
    with pytest.raises((pa.ArrowInvalid, OSError)):
        pq.read_table(tmp_path / "day=2026-01-01" / "part-truncated.parquet")


def test_a_folder_that_is_not_empty_is_left_alone(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(SettingsError, match=r"contains 'notes\.txt': use a new folder"):
        synth.write(str(tmp_path), synth.Spec(**SMALL))
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


@corpus(
    "values, message",
    [
        ({"attempts": 0}, r"Spec\.attempts: found 0\. Use a whole number from 1"),
        ({"days": 1.5}, r"Spec\.days: found 1\.5"),
        ({"late": 2}, r"Spec\.late: found 2\. It must be a share"),
        ({"gave_up": 0.6, "poison": 0.6}, "Together at most 1"),
        ({"skew_s": -1}, r"Spec\.skew_s: found -1"),
        ({"outages": "none"}, '"shared" or "independent"'),
    ],
)
def test_values_that_contradict_are_refused_at_once(values, message):
    with pytest.raises(SettingsError, match=message):
        synth.Spec(**values)


def test_a_ladder_longer_than_the_days_is_refused():
    shop = synth.default_shop()
    queues = (*shop.queues[:2], synth.Queue("stock", (86_400_000,)))
    with pytest.raises(SettingsError, match="use more days or shorter ladders"):
        synth.Spec(days=1, shop=synth.Shop(shop.dependencies, queues, shop.tasks))


def test_a_task_names_a_queue_of_its_shop():
    shop = synth.default_shop()
    with pytest.raises(SettingsError, match=r"Task 'shop\.tasks\.charge', queue: found 'payments'"):
        synth.Shop(shop.dependencies, shop.queues[1:], shop.tasks)


def test_the_command_writes_a_history_and_prints_its_contents(tmp_path):
    options = ["synth", "--output", str(tmp_path / "history"), "--attempts", "2000", "--days", "2", "--processes", "1"]
    done = CliRunner().invoke(main, [*options, "--distribution", "half-hard", "--outages", "independent"])
    assert done.exit_code == 0, done.output
    truth = json.loads((tmp_path / "history" / "_truth.json").read_text())
    assert f"{truth['counts']['rows']:,} events of {truth['counts']['episodes']:,} failed tasks" in done.output
    assert {each["hard"] for each in truth["spec"]["shop"]["dependencies"]} == {0.5}
    again = CliRunner().invoke(main, options)
    assert again.exit_code == 2
    assert "use a new folder" in again.output


def test_the_shop_of_the_documentation_works(tmp_path):
    page = ROOT / "docs" / "test" / "try-with-synthetic-history.md"
    [code] = [snippet.code for snippet in snippets(page) if snippet.title == "shop.py"]
    exec(compile(code.replace("/tmp/transfers", str(tmp_path)), str(page), "exec"), {})
    truth = json.loads((tmp_path / "_truth.json").read_text())
    assert truth["counts"]["attempts"] == 100_000
    assert list(truth["tasks"]) == ["bank.tasks.transfer"]
