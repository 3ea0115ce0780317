"""Exports: the contents of the tables, without secrets and without spreadsheet formulas."""

import csv
import io
import json
import re
import tracemalloc

import amqp
import pytest
from django.core.management import CommandError
from django.db import connection
from django.test.utils import CaptureQueriesContext

from celery_rmq_delay.contrib.django.messages import stored
from celery_rmq_delay.contrib.django.models import Operation, Payload, TaskRecord, TaskState
from celery_rmq_delay.contrib.django.services import export
from celery_rmq_delay.contrib.django.services.export import export_rows
from celery_rmq_delay.headers import MESSAGE
from celery_rmq_delay.redaction import REDACTED
from tests.support.django.commands import manage
from tests.support.django.records import ago, group, record
from tests.support.django.shop import make, of

pytestmark = pytest.mark.usefixtures("database")


def rows(layout, **options):
    text = b"".join(export_rows(TaskRecord.objects.all(), format=layout, **options)).decode()
    if layout == "csv":
        return list(csv.DictReader(io.StringIO(text, newline="")))
    return [json.loads(line) for line in text.split("\n") if line]


def test_both_formats_have_the_fields_of_the_record():
    failed = group()
    values = {"attempt": 3, "max_retries": 3, "delay_ms": 10_000, "exhausted_at": ago(days=1)}
    one = record(canvas_id="chord-1", args_preview="(17,)", failure_group=failed, **values)
    (plain,) = rows("jsonl")
    assert plain["task_id"] == one.task_id
    assert plain["group_id"] == "chord-1"
    assert (plain["attempt"], plain["delay_ms"]) == (3, 10_000)
    assert plain["exhausted_at"] == one.exhausted_at.isoformat()
    assert plain["failure_group"] == failed.fingerprint
    assert plain["due_at"] is None
    assert rows("csv") == [{name: "" if value is None else str(value) for name, value in plain.items()}]
    assert list(plain) == list(export.COLUMNS)


def test_an_empty_export_has_its_heading():
    assert b"".join(export_rows(TaskRecord.objects.none(), format="csv")).decode().split(",")[0] == "task_id"
    assert list(export_rows(TaskRecord.objects.none(), format="jsonl")) == []


@pytest.mark.parametrize("layout", export.FORMATS)
def test_secrets_are_redacted_unless_requested(layout):
    secret = "hunter2"
    record(exception_message=f"password={secret}", kwargs_preview=f"{{'api_key': '{secret}'}}")
    (redacted,) = rows(layout)
    assert secret not in str(redacted)
    assert REDACTED in redacted["exception_message"]
    assert REDACTED in redacted["kwargs"]
    (plain,) = rows(layout, redacted=False)
    assert plain["exception_message"] == f"password={secret}"


def keep(body, headers=None, **properties):
    """Store an exhausted task with its message."""
    message = amqp.Message(b"", application_headers={MESSAGE: "password=hunter2"})
    Payload.objects.create(
        record=record(exception_message="password=[redacted]", args_preview="(...)"),
        body=body,
        headers=stored(message).headers if headers is None else headers,
        properties={"content_type": "application/json", "content_encoding": "utf-8", **properties},
        stored_at=ago(),
    )


def test_an_unredacted_export_has_the_arguments_of_the_kept_message():
    keep(b'[[17, "4111"], {"token": "t"}, {"chain": null}]')
    (row,) = rows("jsonl", redacted=False)
    assert (json.loads(row["args"]), json.loads(row["kwargs"])) == ([17, "4111"], {"token": "t"})
    assert row["exception_message"] == "password=hunter2"
    (row,) = rows("jsonl")
    assert (row["args"], row["kwargs"]) == ("(...)", "")
    assert "hunter2" not in str(row)


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_the_preview_of_the_record_is_exported_if_the_kept_message_cannot_be_decoded():
    keep(b"\x80\x04K\x01.", content_type="application/x-python-serialize")
    keep(b"[[1], {}, {}]", headers=b"\xff\xff\xff\xff")
    keep(b"[" * 100_000)
    keep(b'["\\ud800\\u0000", {}, {}]')
    keep(b'[["\\ud800\\u0000"], {}, {}]')
    *broken, last = rows("jsonl", redacted=False)
    assert [row["args"] for row in broken] == ["(...)"] * 4
    assert json.loads(last["args"]) == ["?\0"]


def test_a_spreadsheet_sees_no_formula():
    formulas = [
        "=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "\n=1", "  =1", "\uff1d1", "\uff0b1", "\uff0d1", "\uff20a",
    ]  # fmt: skip
    for text in formulas:
        record(exception_message=text, name=text)
    quoted = sorted(f"'{text}" for text in formulas)
    assert sorted(row["exception_message"] for row in rows("csv")) == quoted
    assert sorted(row["task"] for row in rows("csv")) == quoted
    assert sorted(row["task"] for row in rows("jsonl")) == sorted(formulas)


def test_hostile_text_stays_in_its_cell():
    hostile = 'a"b,c\r\nd;<script>\u202e\u2028\x0b'
    record(exception_message=hostile, queue="naïve “queue”")
    for layout in export.FORMATS:
        (row,) = rows(layout)
        assert row["exception_message"] == hostile
        assert row["queue"] == "naïve “queue”"


def test_many_rows_are_read_page_by_page_and_once_each(monkeypatch):
    monkeypatch.setattr(export, "_PAGE", 3)
    ids = [record().task_id for _ in range(7)]
    record(TaskState.PARKED)
    exhausted = TaskRecord.objects.filter(state=TaskState.EXHAUSTED).order_by("-exhausted_at")
    with CaptureQueriesContext(connection) as queries:
        pieces = list(export_rows(exhausted, format="jsonl"))
    assert [len(piece.splitlines()) for piece in pieces] == [3, 3, 1]
    assert [json.loads(line)["task_id"] for piece in pieces for line in piece.splitlines()] == ids
    assert len(queries) == 4


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
@pytest.mark.parametrize("layout", export.FORMATS)
def test_memory_does_not_grow_with_the_rows(layout, monkeypatch):
    monkeypatch.setattr(export, "_PAGE", 100)

    def peak(rows):
        TaskRecord.objects.bulk_create(
            TaskRecord(task_id=f"{rows}-{n}", name="a", state="PARKED", changed_at=ago(), queue="q", args_preview=text)
            for n in range(rows)
        )
        tracemalloc.start()
        size = sum(len(piece) for piece in export_rows(TaskRecord.objects.all(), format=layout))
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert size > rows * len(text)
        return most

    text = "x" * 1_000
    assert peak(1_000) < 1.3 * peak(200)


def test_the_projects_own_redaction_is_in_force(shop):
    record(exception_message="maiden_name=Smith")
    with of(make(shop.conf.broker_url, rmq_delay={"redact": {"keys": ["maiden_name"]}})):
        (row,) = rows("jsonl")
    assert row["exception_message"] == f"maiden_name={REDACTED}"


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_the_command_exports_the_selection_and_notes_it_in_the_audit_log(tmp_path):
    for queue in ("payments", "mail"):
        for state in (TaskState.EXHAUSTED, TaskState.PARKED):
            record(state, queue=queue, exception_message="password=hunter2")
    printed = manage("export", format="csv", state=["EXHAUSTED"], queue=["mail"])
    (row,) = csv.DictReader(io.StringIO(printed, newline=""))
    assert (row["state"], row["queue"], row["exception_message"]) == ("EXHAUSTED", "mail", f"password={REDACTED}")
    path = tmp_path / "all.jsonl"
    manage("export", format="jsonl", unredacted=True, output=path)
    assert path.read_text().count("hunter2") == len(path.read_text().splitlines()) == 4
    logged = [
        (each.kind, each.ok, each.remaining, each.details["redacted"]) for each in Operation.objects.order_by("pk")
    ]
    assert logged == [("export", 1, 0, True), ("export", 4, 0, False)]


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_an_output_that_cannot_be_written_is_an_error(tmp_path):
    record()
    for path, error in (
        (str(tmp_path / "missing" / "x.csv"), "No such file or directory"),
        ("/dev/full", "No space left on device"),
    ):
        with pytest.raises(CommandError, match=f"^--output: {re.escape(path)}: {error}$"):
            manage("export", format="csv", output=path)
        assert Operation.objects.count() == (path == "/dev/full"), "the audit log has an export that has not begun"
