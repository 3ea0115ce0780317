"""Notifications of a committed batch: one signal per event, and the lateness of retries."""

import re
from datetime import timedelta

import pytest
from django.db import DatabaseError
from django.dispatch import Signal

from celery_rmq_delay.contrib.django import signals
from celery_rmq_delay.contrib.django.collecting import announcing
from celery_rmq_delay.contrib.django.collecting.database import Database as Tables
from celery_rmq_delay.contrib.django.collecting.facts import Fact
from celery_rmq_delay.contrib.django.models import TaskRecord
from celery_rmq_delay.events.schema import EXHAUSTED, PARKED, RECOVERED
from tests.support import ROOT
from tests.support.django.reported import event, exhausted

pytestmark = pytest.mark.usefixtures("database")

Received = list[tuple[str, str, str | None]]


@pytest.fixture
def received():
    """Received signals: their name, the task's id, the group's error."""
    found: Received = []

    def listener(name):
        def receive(record, **_):
            found.append((name, record.task_id, record.failure_group.exception_type if record.failure_group else None))

        return receive

    listeners = {name: listener(name) for name in ("task_parked", "task_recovered", "task_exhausted")}
    for name, receive in listeners.items():
        getattr(signals, name).connect(receive)
    yield found
    for name, receive in listeners.items():
        getattr(signals, name).disconnect(receive)


@pytest.mark.parametrize("page", ["reference/django.md", "operate/alerts.md"])
def test_every_signal_is_documented_and_no_other(page):
    section = re.split(r"^## Signals.*\n", (ROOT / "docs" / page).read_text(), flags=re.MULTILINE)[1].split("\n## ")[0]
    public = {name for name in signals.__all__ if isinstance(getattr(signals, name), Signal)}
    assert public == {name for name, value in vars(signals).items() if isinstance(value, Signal)}
    assert set(re.findall(r"`(task_\w+)`", section)) == public


def write(*events, observe=None):
    """Write a batch as the collector does."""
    Tables(observe).write(list(map(Fact, events)))


def test_each_event_is_signalled_once_with_its_record(received):
    parked, exhausted = event("a"), event("b", EXHAUSTED, attempt=1)
    write(parked, exhausted)
    write(parked, exhausted, event("a", RECOVERED, attempt=1))  # delivered again, with something new
    assert received == [
        ("task_parked", "a", parked.exception_type),
        ("task_exhausted", "b", exhausted.exception_type),
        ("task_recovered", "a", parked.exception_type),
    ]


def late(attempt, due, task_id="a", **given):
    """Return the event of an attempt that started ``due`` seconds after the one before it was due."""
    before = event(task_id, attempt=attempt - 1)
    assert before.due_at is not None
    return event(task_id, PARKED, attempt=attempt, started_at=before.due_at + timedelta(seconds=due), **given)


def test_lateness_is_from_when_a_retry_was_due_until_it_started():
    found: list[tuple[str, float]] = []
    write(event("a"), observe=lambda *each: found.append(each))
    assert found == []  # the first attempt has no due time
    write(late(1, due=2.5), late(2, due=0.25), observe=lambda *each: found.append(each))
    assert sorted(found) == [("payments", 0.25), ("payments", 2.5)]
    write(late(1, due=2.5), observe=lambda *each: found.append(each))  # delivered again
    assert len(found) == 2


@pytest.mark.parametrize(("due", "measured"), [(-0.9, [0.0]), (-1.1, []), (-3000.0, []), (3600.0, [3600.0])])
def test_a_negative_lateness_is_zero_or_left_out(due, measured):
    found: list[float] = []
    write(event("a"), late(1, due=due), observe=lambda _, seconds: found.append(seconds))
    assert found == measured


def test_a_sample_of_a_large_batch_is_measured(monkeypatch):
    monkeypatch.setattr(announcing, "SAMPLE", 3)
    found: list[float] = []
    write(*(event(f"t{n}") for n in range(9)))
    batch = [late(1, due=n, task_id=f"t{n}") for n in range(9)]
    write(*batch, observe=lambda _, seconds: found.append(seconds))
    assert len(found) == 3


def test_events_are_written_even_if_the_notification_fails(received, monkeypatch, caplog):
    def broken(*_):
        raise DatabaseError("gone")

    monkeypatch.setattr(announcing, "lateness", broken)
    write(event("a"), observe=lambda *_: None)
    assert TaskRecord.objects.count() == 1
    assert "of a collected batch failed" in caplog.text


def test_a_signal_of_a_row_of_its_own_brings_that_row(received):
    found = list[str]()

    def receive(record, **_):
        found.append(record.life)

    signals.task_exhausted.connect(receive)
    try:
        Tables().write([exhausted("a", body=b"[[1], {}, {}]"), exhausted("a", body=b"[[2], {}, {}]")])
    finally:
        signals.task_exhausted.disconnect(receive)
    assert sorted(found) == sorted(TaskRecord.objects.values_list("life", flat=True))
    assert [name for name, *_ in received] == ["task_exhausted"] * 2
