"""The collector writes history files, and acks only messages that are in them."""

import threading

import pytest

from celery_rmq_delay.contrib.django.collecting import collector as collecting
from celery_rmq_delay.contrib.django.models import CollectorStatus, TaskRecord
from celery_rmq_delay.events.schema import EXHAUSTED, PARKED, RECOVERED, ROLLUP
from tests.support.django.collecting import ended
from tests.support.django.history import rows
from tests.support.django.reported import event, message
from tests.support.waiting import SECONDS, wait_for

pytestmark = pytest.mark.parametrize("database", ["postgres"], indirect=True)


@pytest.fixture(autouse=True)
def history(rig, tmp_path):
    """Let the collectors of the rig write files."""
    rig.history = str(tmp_path)


def ids(folder):
    return {row["event_id"] for row in rows(folder)}


def test_events_and_exhausted_messages_come_into_the_files(rig, tmp_path):
    events = [event("a", PARKED), event("b", RECOVERED, 1), event("r", ROLLUP, ok_count=7)]
    rig.send(*events, message("c"), b"nonsense")
    rig.collect()
    assert rig.left() == 0
    found = {row["task_id"]: row for row in rows(tmp_path)}
    assert {row["kind"] for row in found.values()} == {PARKED, RECOVERED, EXHAUSTED, ROLLUP}
    assert ids(tmp_path) == {*(each.event_id for each in events), event("c", EXHAUSTED, 3).event_id}
    assert found["r"]["ok_count"] == 7


def test_events_are_in_the_tables_before_their_file_is_due_because_it_is_old(rig, tmp_path):
    with rig.collecting(file_age=3600):
        rig.send(event("a"))
        wait_for(lambda: TaskRecord.objects.exists(), "the tables")
        assert rows(tmp_path) == []
    assert ids(tmp_path) == {event("a").event_id}
    assert rig.left() == 0
    with rig.collecting(file_age=0.3):
        rig.send(event("b"))
        wait_for(lambda: len(rows(tmp_path)) == 2, "the file of its seconds")
        rig.send(event("c"))
        wait_for(lambda: len(rows(tmp_path)) == 3, "the next file")


def test_a_file_is_due_when_it_is_full(rig, tmp_path, monkeypatch):
    monkeypatch.setattr(collecting, "FILE_MESSAGES", 200)
    with rig.collecting(batch=100, file_age=3600):
        rig.send(*(event(f"t{number}") for number in range(1000)))
        wait_for(lambda: len(ids(tmp_path)) >= 800, "files of what is full")


def test_an_unreachable_place_stops_the_collector_until_it_returns_and_nothing_is_acked(rig, tmp_path):
    place = tmp_path / "mount"
    rig.history = str(place)
    rig.send(*(event(f"t{number}") for number in range(300)))
    with rig.collecting(batch=100, file_age=0.1) as health:
        wait_for(lambda: health.problem and "create it, or mount" in health.problem, "the problem")
        assert str(place) in str(health.problem)
        wait_for(lambda: TaskRecord.objects.exists(), "the tables, which are not away")
    assert not CollectorStatus.objects.exists()
    assert rig.left() == 300
    with rig.collecting(batch=100, file_age=0.1) as health:
        wait_for(lambda: health.problem and "mount" in health.problem, "the problem")
        place.mkdir()
        wait_for(lambda: len(ids(place)) == 300, "the files")
        wait_for(lambda: health.problem is None, "it to be healthy")
    assert rig.left() == 0
    assert TaskRecord.objects.count() == 300


def test_events_that_were_in_no_file_are_collected_again_after_a_lost_connection(rig, tmp_path):
    stop = threading.Event()
    collector = rig.collector(stop, file_age=3600, max_seconds=60)
    thread = threading.Thread(target=collector.run)
    thread.start()
    rig.send(*(event(f"t{number}") for number in range(50)))
    wait_for(lambda: TaskRecord.objects.count() == 50, "the tables")
    collector._consumer._connection.connection.transport.sock.shutdown(2)  # type: ignore[union-attr]
    rig.send(event("later"))
    wait_for(lambda: TaskRecord.objects.count() == 51, "the tables after the loss")
    stop.set()
    thread.join(SECONDS)
    assert rig.left() == 0
    assert len(ids(tmp_path)) == 51


@pytest.mark.slow
def test_the_command_writes_files_and_refuses_an_invalid_place(rig, tmp_path):
    rig.send(*(event(f"t{number}") for number in range(100)))
    with rig.command("--once", HISTORY_URL=str(tmp_path)) as process:
        code, output = ended(process)
    assert code == 0, output
    assert len(ids(tmp_path)) == 100
    with rig.command("--once", HISTORY_URL="here/history") as process:
        code, output = ended(process)
    assert code == 1
    assert "RMQ_DELAY['HISTORY_URL']: found 'here/history'. A path has to be absolute" in output
