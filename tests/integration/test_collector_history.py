"""The collector writes history files, and acks nothing that is not in them."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from celery_rmq_delay.contrib.django.collecting import collector as collecting
from celery_rmq_delay.contrib.django.models import CollectorStatus, TaskRecord
from celery_rmq_delay.events import EXHAUSTED, PARKED, RECOVERED, ROLLUP, Event
from tests.django.conftest import postgres, postgres_tables
from tests.django.databases import Database
from tests.django.test_history import rows
from tests.django.told import event, life, message
from tests.waiting import wait_for

from .collecting import Rig, ended, events_of
from .test_collector_killed import nursery, start, wait_until_ended

__all__ = ["postgres", "postgres_tables"]  # fixtures

KILLS = 12


@pytest.fixture
def rig(rmq_vhost: str, postgres: Database, tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(rmq_vhost, postgres.environ)
    rig.history = str(tmp_path)
    yield rig
    rig.close()


def ids(folder: Path) -> set[str]:
    return {row["event_id"] for row in rows(folder)}


def test_events_and_exhausted_messages_come_into_the_files(rig: Rig, tmp_path: Path) -> None:
    told = [event("a", PARKED), event("b", RECOVERED, 1), event("r", ROLLUP, ok_count=7)]
    rig.tell(*told, message("c"), b"nonsense")
    rig.collect()
    assert rig.left() == 0
    found = {row["task_id"]: row for row in rows(tmp_path)}
    assert {row["kind"] for row in found.values()} == {PARKED, RECOVERED, EXHAUSTED, ROLLUP}
    assert ids(tmp_path) == {*(each.event_id for each in told), event("c", EXHAUSTED, 3).event_id}
    assert found["r"]["ok_count"] == 7


def test_events_are_in_the_tables_before_their_file_is_due(rig: Rig, tmp_path: Path) -> None:
    with rig.collecting(file_age=3600):
        rig.tell(event("a"))
        wait_for(lambda: TaskRecord.objects.exists(), "the tables")
        assert rows(tmp_path) == []
    assert ids(tmp_path) == {event("a").event_id}
    assert rig.left() == 0


def test_a_file_is_due_when_it_is_old(rig: Rig, tmp_path: Path) -> None:
    with rig.collecting(file_age=0.3):
        rig.tell(event("a"))
        wait_for(lambda: rows(tmp_path), "the file of its seconds")
        rig.tell(event("b"))
        wait_for(lambda: len(rows(tmp_path)) == 2, "the next file")


def test_a_file_is_due_when_it_is_full(rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collecting, "FILE_MESSAGES", 200)
    with rig.collecting(batch=100, file_age=3600):
        rig.tell(*(event(f"t{number}") for number in range(1000)))
        wait_for(lambda: len(ids(tmp_path)) >= 800, "files of what is full")


def test_a_place_that_is_away_holds_the_collector_and_nothing_is_acked(rig: Rig, tmp_path: Path) -> None:
    place = tmp_path / "mount"
    rig.history = str(place)
    rig.tell(*(event(f"t{number}") for number in range(300)))
    with rig.collecting(batch=100, file_age=0.1) as health:
        wait_for(lambda: health.problem and "create it, or mount" in health.problem, "the problem")
        assert str(place) in str(health.problem)
        wait_for(lambda: TaskRecord.objects.exists(), "the tables, which are not away")
    assert not CollectorStatus.objects.exists()
    assert rig.left() == 300
    place.mkdir()
    with rig.collecting(batch=100, file_age=0.1) as health:
        wait_for(lambda: len(ids(place)) == 300, "the files")
        wait_for(lambda: health.problem is None, "it to be well")
    assert rig.left() == 0
    assert TaskRecord.objects.count() == 300


def test_a_place_that_comes_back_is_gone_on_with(rig: Rig, tmp_path: Path) -> None:
    place = tmp_path / "mount"
    rig.history = str(place)
    with rig.collecting(file_age=0.1) as health:
        rig.tell(event("a"))
        wait_for(lambda: health.problem and "mount" in health.problem, "the problem")
        place.mkdir()
        wait_for(lambda: ids(place) == {event("a").event_id}, "the file")
    assert rig.left() == 0


def test_a_lost_connection_repeats_what_was_in_no_file(rig: Rig, tmp_path: Path) -> None:
    stop = threading.Event()
    collector = rig.collector(stop, file_age=3600, max_seconds=60)
    thread = threading.Thread(target=collector.run)
    thread.start()
    rig.tell(*(event(f"t{number}") for number in range(50)))
    wait_for(lambda: TaskRecord.objects.count() == 50, "the tables")
    collector._consumer._connection.connection.transport.sock.shutdown(2)  # type: ignore[union-attr]
    rig.tell(event("later"))
    wait_for(lambda: TaskRecord.objects.count() == 51, "the tables after the loss")
    stop.set()
    thread.join(60)
    assert rig.left() == 0
    assert len(ids(tmp_path)) == 51


def test_the_command_writes_files_and_refuses_what_is_no_place(rig: Rig, tmp_path: Path) -> None:
    rig.tell(*(event(f"t{number}") for number in range(100)))
    with rig.command("--once", HISTORY_URL=str(tmp_path)) as process:
        code, said = ended(process)
    assert code == 0, said
    assert len(ids(tmp_path)) == 100
    with rig.command("--once", HISTORY_URL="here/history") as process:
        code, said = ended(process)
    assert code == 1
    assert "RMQ_DELAY['HISTORY_URL']: found 'here/history'. A path has to be absolute" in said


@pytest.mark.timeout(600)
def test_a_collector_killed_again_and_again_leaves_every_event_in_a_file_that_is_whole(
    rig: Rig, tmp_path: Path
) -> None:
    dice = random.Random(20261121)
    told: list[Event] = []
    for number in range(600):
        told += events_of(life(f"t{number}", 2, RECOVERED if number % 2 else EXHAUSTED))
    dice.shuffle(told)
    rig.environ = {**rig.environ, "HISTORY_URL": str(tmp_path)}
    interrupted, portion = 0, -(-len(told) // KILLS)
    with nursery(rig) as process:
        for first in range(0, len(told), portion):
            rig.tell(*told[first : first + portion])
            options = "--batch", str(dice.choice((5, 20, 100))), "--file-seconds", str(dice.choice((0, 0.02, 0.1)))
            before, known = rig.left(), len(list(tmp_path.rglob("*.parquet*")))
            collector = start(process, *options)
            wait_for(lambda b=before: rig.left() < b, "the collector to take something")  # type: ignore[misc]
            wait_for(lambda k=known: len(list(tmp_path.rglob("*.parquet*"))) > k, "a file")  # type: ignore[misc]
            time.sleep(dice.uniform(0.0, 0.1))
            os.kill(collector, signal.SIGKILL)
            wait_until_ended(process)
            interrupted += bool(rig.left())
        start(process, "--once")
        wait_until_ended(process)
    found = rows(tmp_path)
    torn = len(list(tmp_path.rglob(".*")))
    print(f"{interrupted} of {KILLS} kills left messages; {len(found)} rows of {len(told)} events, {torn} torn files")
    assert interrupted > KILLS / 2, "most kills came too late to matter"
    assert {row["event_id"] for row in found} == {each.event_id for each in told}
    assert rig.left() == 0
