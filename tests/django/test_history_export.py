"""History files made of the tables: the same events as the collector's, with the same ids."""

import tracemalloc
from datetime import date, timedelta

import pytest
from django.core.management import CommandError
from django.utils import timezone

from celery_rmq_delay.contrib.django.collecting.database import Database
from celery_rmq_delay.contrib.django.collecting.facts import Fact
from celery_rmq_delay.contrib.django.collecting.gathering import History, open_files
from celery_rmq_delay.contrib.django.models import Attempt, Operation, Tally, TaskRecord
from celery_rmq_delay.contrib.django.services import history_export
from celery_rmq_delay.contrib.django.services.history_export import days, export_days
from celery_rmq_delay.contrib.django.services.operations.claims import add_to_history
from celery_rmq_delay.events.schema import EXHAUSTED, RECOVERED, REQUEUED, ROLLUP
from tests.support.django.commands import manage
from tests.support.django.history import rows
from tests.support.django.records import record
from tests.support.django.reported import BEGIN, event, fact, life

pytestmark = pytest.mark.usefixtures("database")

DAY = date(2026, 1, 31)


def exported(folder, **options):
    return manage("export", "--format", "parquet", "--output", str(folder), **options)


def by_id(found):
    return {row["event_id"]: row for row in found}


def test_attempts_become_the_events_that_they_came_from(tmp_path):
    facts = [each for each in (*life("a", 2, RECOVERED), *life("b", 3, EXHAUSTED)) if each.message is None]
    Database().write(facts)
    live, backfill = tmp_path / "live", tmp_path / "backfill"
    live.mkdir()
    backfill.mkdir()
    files = History(open_files(str(live)))
    files.write(facts)
    files.flush()
    exported(backfill)
    expected, found = by_id(rows(live)), by_id(rows(backfill))
    assert found.keys() == expected.keys()
    assert len(found) == 7
    for event_id, row in found.items():
        assert row == expected[event_id]


def test_successes_that_were_counted_are_rollups_with_an_id_of_their_own(tmp_path):
    Database().write([Fact(event(f"r{n}", ROLLUP, occurred_at=BEGIN, ok_count=n)) for n in (3, 4)])
    Database().write([Fact(event("late", ROLLUP, occurred_at=BEGIN + timedelta(minutes=15), ok_count=5))])
    exported(tmp_path)
    exported(tmp_path)
    found = rows(tmp_path)
    assert len(found) == 4
    assert sorted(row["ok_count"] for row in by_id(found).values()) == [5, 7]
    assert {row["kind"] for row in found} == {ROLLUP}


def test_successes_are_left_out_where_the_collector_has_written_files(tmp_path):
    facts = [fact("a"), Fact(event("r", ROLLUP, ok_count=3))]
    Database().write(facts)
    files = History(open_files(str(tmp_path)))
    files.write(facts)
    files.flush()
    assert "2026-01-31: 1 rows, successes are in the collector's files" in exported(tmp_path)
    found = rows(tmp_path)
    assert len(found) == 3
    assert by_id(found).keys() == {each.event.event_id for each in facts}


def test_slots_that_still_change_are_left_out(tmp_path):
    Database().write([Fact(event("r", ROLLUP, occurred_at=timezone.now(), ok_count=3))])
    assert Tally.objects.exists()
    exported(tmp_path)
    assert rows(tmp_path) == []


def test_only_the_days_that_are_asked_for_are_written(tmp_path):
    Database().write([fact(f"t{n}", occurred_at=BEGIN + timedelta(days=n)) for n in range(5)])
    assert days() == [DAY + timedelta(days=n) for n in range(5)]
    output = exported(tmp_path, since=DAY + timedelta(days=1), until=DAY + timedelta(days=3))
    assert {row["task_id"] for row in rows(tmp_path)} == {"t1", "t2", "t3"}
    assert "3 rows of 3 days into 3 files" in output
    assert days(since=date(2030, 1, 1)) == []


def test_tables_with_nothing_in_them_write_nothing(tmp_path):
    assert "0 rows of 0 days" in exported(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_pages_and_files_cut_no_attempt_off(tmp_path, monkeypatch):
    monkeypatch.setattr(history_export, "_PAGE", 7)
    monkeypatch.setattr(history_export, "FILE_ROWS", 20)
    facts = [fact(f"t{number}", occurred_at=BEGIN + timedelta(seconds=number // 10)) for number in range(100)]
    Database().write(facts)
    exported(tmp_path)
    found = rows(tmp_path)
    assert len(found) == len(by_id(found)) == 100
    assert len(list(tmp_path.glob("*/backfill-*.parquet"))) == 5


def test_actions_of_users_are_exported_without_their_names(tmp_path):
    one = record()
    act = Operation.objects.create(kind=Operation.Kind.REQUEUE, actor="alice")
    add_to_history(REQUEUED, act, [one], BEGIN)
    exported(tmp_path)
    (row,) = [row for row in rows(tmp_path) if row["kind"] == REQUEUED]
    assert (row["event_id"], row["task_id"]) == (Attempt.objects.get(kind=REQUEUED).event_id, one.task_id)
    assert (row["worker"], row["reason"]) == ("", "requeue")


def test_secrets_do_not_come_into_the_files(tmp_path):
    Database().write([fact("a", exception_message="password=hunter2")])
    exported(tmp_path)
    assert [row["exception_message"] for row in rows(tmp_path)] == ["password=[redacted]"]


def test_an_export_is_in_the_audit_log_without_credentials(tmp_path):
    exported(tmp_path)
    assert Operation.objects.get().details["output"] == str(tmp_path)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"queue": ["payments"]}, "--queue cannot be used with --format parquet"),
        ({"unredacted": True}, "--unredacted cannot be used with --format parquet"),
    ],
)
def test_filters_are_refused(tmp_path, options, error):
    with pytest.raises(CommandError, match=error):
        exported(tmp_path, **options)


def test_a_place_for_the_history_is_required_and_checked(tmp_path):
    with pytest.raises(CommandError, match="use --output, or set HISTORY_URL"):
        manage("export", "--format", "parquet")
    with pytest.raises(CommandError, match="A path has to be absolute"):
        manage("export", "--format", "parquet", "--output", "here")
    Database().write([fact("a")])
    with pytest.raises(CommandError, match="create it, or mount"):
        exported(tmp_path / "missing")
    with pytest.raises(CommandError, match="--since cannot be used with --format csv"):
        manage("export", "--format", "csv", "--since", "2026-01-31")


def test_memory_does_not_grow_with_the_tables(tmp_path, monkeypatch):
    monkeypatch.setattr(history_export, "_PAGE", 100)
    monkeypatch.setattr(history_export, "FILE_ROWS", 200)
    Database().write([fact(f"t{number}") for number in range(500)])
    peaks = []
    for more in (0, 2_000):
        Database().write([fact(f"more{number}") for number in range(more)])
        tracemalloc.start()
        export_days([DAY], open_files(str(tmp_path)))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert TaskRecord.objects.count() == 2_500
    assert peaks[1] < 1.5 * peaks[0]
