"""History files: their contents, and that each is complete or missing."""

import errno
import os
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet
import pytest

from celery_rmq_delay.contrib.django import history_files
from celery_rmq_delay.contrib.django.collecting import batches as writing
from celery_rmq_delay.contrib.django.collecting.facts import Fact, Reading, Unreadable
from celery_rmq_delay.contrib.django.collecting.gathering import History, open_files
from celery_rmq_delay.contrib.django.history_files import SCHEMA, HistoryFiles, table_of
from celery_rmq_delay.contrib.django.models import TaskRecord, UnreadableMessage
from celery_rmq_delay.events.schema import EXHAUSTED, PARKED, ROLLUP, Event
from celery_rmq_delay.exceptions import AbandonedError, HistoryError
from celery_rmq_delay.history.tables import COLUMNS
from tests.support import ROOT
from tests.support.django.batches import batch, writer
from tests.support.django.history import rows
from tests.support.django.reported import BEGIN, event, fact
from tests.support.waiting import SECONDS, wait_for

SECRET = "wJalrXUtnFEMI"


def history(folder):
    return History(open_files(str(folder)))


def rollup(**given):
    return Fact(replace(event("t", ROLLUP, ok_count=3, **given), task_id=None, root_id=None))


# -- contents of the files -----------------------------------------------------------------------------------------


def test_every_field_of_an_event_comes_back_out_of_the_file(tmp_path):
    made: list[Event] = [event("a", PARKED), event("b", EXHAUSTED, 3), rollup().event]
    files = history(tmp_path)
    files.write([fact("a", PARKED), fact("b", EXHAUSTED, 3), rollup()])
    assert rows(tmp_path) == []
    files.flush()
    expected = [{**{column.name: getattr(each, column.name) for column in COLUMNS}} for each in made]
    assert rows(tmp_path) == [{**each, "ladder_ms": list(each["ladder_ms"])} for each in expected]
    (file,) = tmp_path.glob("*/*")
    assert file.parent.name == "day=2026-01-31"
    assert pyarrow.parquet.ParquetFile(file).schema_arrow.equals(SCHEMA)


def test_each_day_has_a_folder_and_each_flush_a_file(tmp_path):
    late, early = datetime(2026, 2, 1, tzinfo=timezone.utc), datetime(1, 1, 1, tzinfo=timezone.utc)
    files = history(tmp_path)
    files.write([fact("a"), fact("b", occurred_at=late)])
    files.write([fact("c"), fact("d", occurred_at=early)])
    files.flush()
    files.flush()
    files.write([fact("e")])
    files.flush()
    found = {folder.name: len(list(folder.iterdir())) for folder in tmp_path.iterdir()}
    assert found == {"day=0001-01-01": 1, "day=2026-01-31": 2, "day=2026-02-01": 1}


def test_a_batch_that_is_written_again_is_gathered_once(tmp_path):
    files = history(tmp_path)
    for _ in range(3):
        files.write([fact("a"), fact("b")])
    files.flush()
    assert [row["task_id"] for row in rows(tmp_path)] == ["a", "b"]


def test_unreadable_messages_have_no_row(tmp_path):
    files = history(tmp_path)
    files.write([Unreadable("digest", "q", "error", b"body", b"headers")])
    files.flush()
    assert list(tmp_path.iterdir()) == []


# -- where files cannot be written ---------------------------------------------------------------------------------


def test_a_folder_that_is_missing_is_not_made(tmp_path):
    files = history(tmp_path / "mount")
    files.write([fact("a")])
    with pytest.raises(HistoryError, match=r"mount: .*there is no such folder: create it, or mount"):
        files.flush()
    (tmp_path / "mount").mkdir()
    files.flush()
    assert [row["task_id"] for row in rows(tmp_path / "mount")] == ["a"]


@pytest.mark.parametrize("broken", ["fsync", "rename"])
def test_a_failed_write_leaves_no_file_and_is_repeated_later(tmp_path, monkeypatch, broken):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    files = history(tmp_path)
    files.write([fact("a"), fact("b", occurred_at=BEGIN.replace(month=3))])
    with monkeypatch.context() as patched:
        patched.setattr(*(os, "fsync") if broken == "fsync" else (Path, "rename"), full)
        with pytest.raises(HistoryError, match="No space left on device"):
            files.flush()
    assert [file for file in tmp_path.rglob("*") if file.is_file()] == []
    files.flush()
    assert [row["task_id"] for row in rows(tmp_path)] == ["a", "b"]


def test_an_error_shows_no_secret():
    files = HistoryFiles(f"s3://AKIAEXAMPLE:{SECRET}@bucket/history?region=eu-west-1&scheme=nonsense")
    with pytest.raises(HistoryError, match=r"cannot be written to s3://bucket/history") as raised:
        files.write("day=2026-01-31", [table_of([vars(event("a"))])])
    assert SECRET not in str(raised.value)
    assert raised.value.__cause__ is None


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """Make a URL open a file system that pyarrow does not treat as local."""
    real, local = pyarrow.fs.FileSystem, pyarrow.fs.SubTreeFileSystem(str(tmp_path), pyarrow.fs.LocalFileSystem())

    class Elsewhere:
        @staticmethod
        def from_uri(url):
            return (local, "warehouse/history") if url.startswith("hdfs://") else real.from_uri(url)

    monkeypatch.setattr(history_files.pyarrow.fs, "FileSystem", Elsewhere)
    return tmp_path / "warehouse/history"


def test_elsewhere_files_are_renamed_when_they_are_complete(elsewhere, monkeypatch):
    files = History(open_files("hdfs://name/warehouse/history"))
    files.write([fact("a")])
    with monkeypatch.context() as patched:
        patched.setattr(history_files, "_temporary", lambda name: "no/such/folder/x")
        with pytest.raises(HistoryError):
            files.flush()
    files.flush()
    assert [row["task_id"] for row in rows(elsewhere)] == ["a"]
    assert [file.suffix for file in elsewhere.rglob("*") if file.is_file()] == [".parquet"]


def test_on_an_object_store_a_file_is_put_under_its_name(store):
    url = f"s3://AKIAEXAMPLE:{SECRET}@bucket"
    files = open_files(f"{url}/history?{store}")
    gathered = History(files)
    gathered.write([fact("a"), fact("b")])
    with pytest.raises(HistoryError, match=r"cannot be written to s3://bucket/history: .*NO_SUCH_BUCKET") as raised:
        gathered.flush()
    assert SECRET not in str(raised.value)
    bucket, _ = pyarrow.fs.FileSystem.from_uri(f"{url}?{store}&allow_bucket_creation=true")
    bucket.create_dir("bucket")
    gathered.flush()
    found = bucket.get_file_info(pyarrow.fs.FileSelector("bucket/history", recursive=True))
    (file,) = [each for each in found if each.is_file]
    assert file.path.startswith("bucket/history/day=2026-01-31/part-")
    assert [row["task_id"] for row in pyarrow.parquet.read_table(file.path, filesystem=bucket).to_pylist()] == [
        "a",
        "b",
    ]
    assert files.has_others("day=2026-01-31", "backfill")
    assert not files.has_others("day=2026-01-31", "part")
    assert not files.has_others("day=2026-02-01", "backfill")


def test_without_pyarrow_the_error_names_the_package_to_install(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "celery_rmq_delay.contrib.django.history_files", None)
    with pytest.raises(HistoryError, match=r"pip install \"celery-rmq-delay\[history\]\""):
        open_files("/srv/history")


# -- beside the tables ---------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("database")
def test_files_that_cannot_be_written_hold_the_writer_until_they_can(tmp_path, monkeypatch):
    monkeypatch.setattr(writing, "FIRST_PAUSE", 0.001)
    place, stop = tmp_path / "mount", threading.Event()
    waiting = writer(stop=stop, history=history(place))
    waiting.write(batch(event("a"), event("b")))
    thread = threading.Thread(target=waiting.flush)
    thread.start()
    wait_for(lambda: waiting.problem, "the writer to see it")
    assert waiting.problem is not None
    assert waiting.problem.startswith(f"History files cannot be written to {place}: FileNotFoundError")
    place.mkdir()
    thread.join(SECONDS)
    assert waiting.problem is None
    assert {row["task_id"] for row in rows(place)} == {"a", "b"}
    assert UnreadableMessage.objects.count() == 0


@pytest.mark.usefixtures("database")
def test_a_stop_abandons_files_that_cannot_be_written(tmp_path):
    stop = threading.Event()
    waiting = writer(stop=stop, history=history(tmp_path / "mount"))
    waiting.write(batch(event("a")))
    stop.set()
    with pytest.raises(AbandonedError, match="stays in the broker: History files"):
        waiting.flush()


class Choosy(History):
    """Has no column for the event of one task."""

    def write(self, batch):
        if any(not isinstance(each, Unreadable) and each.event.task_id == "bad" for each in batch):
            raise pa.ArrowInvalid("this is no number")
        super().write(batch)


@pytest.mark.usefixtures("database")
def test_an_event_that_fits_no_column_is_set_aside_and_the_rest_is_in_the_files(tmp_path):
    choosy = Choosy(open_files(str(tmp_path)))
    waiting = writer(history=choosy)
    tasks = [*(f"t{number}" for number in range(20)), "bad"]
    waiting.write(batch(*(event(task) for task in tasks)))
    waiting.flush()
    assert {row["task_id"] for row in rows(tmp_path)} == {*tasks} - {"bad"}
    assert UnreadableMessage.objects.count() == 1
    assert TaskRecord.objects.count() == 21


_Make = Callable[[], Reading]


@pytest.mark.parametrize("make", [lambda: fact("a" * 255), lambda: rollup(queue="ä", worker="\U0001f600" * 255)])
def test_the_largest_values_of_an_event_fit_their_columns(tmp_path, make):
    most, small = 2**63 - 1, 2**31 - 1
    numbers: dict[str, Any] = dict.fromkeys(("runtime_ms", "ok_count"), most)
    numbers |= dict.fromkeys(("attempt", "crashes", "max_retries"), small)
    moment = datetime.max.replace(tzinfo=timezone.utc)
    full = replace(event("b"), **numbers, occurred_at=moment, ladder_ms=(most,) * 100)
    read = Event.from_json(full.to_json())
    files = history(tmp_path)
    files.write([make(), Fact(read)])
    files.flush()
    assert len(rows(tmp_path)) == 2


def test_every_column_is_documented_with_its_type():
    page = (ROOT / "docs/reference/history-files.md").read_text()
    types = {"text": "string", "time": "timestamp[us, UTC]", "delays": "list of int64"}
    expected = [f"| `{each.name}` | {types.get(each.kind, each.kind)} |{' yes' * each.required} |" for each in COLUMNS]
    assert [line for line in page.splitlines() if line.startswith("| `")] == expected
