"""What a committed batch makes known: signals once per event, and how late retries began."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.db import DatabaseError

from celery_rmq_delay.contrib.django import signals
from celery_rmq_delay.contrib.django.collecting import announcing as telling
from celery_rmq_delay.contrib.django.collecting.announcing import tell
from celery_rmq_delay.contrib.django.collecting.database import Database as Tables
from celery_rmq_delay.contrib.django.collecting.facts import Fact
from celery_rmq_delay.contrib.django.models import TaskRecord
from celery_rmq_delay.events.schema import EXHAUSTED, PARKED, RECOVERED, Event
from tests.support.django.told import event, exhausted

pytestmark = pytest.mark.usefixtures("database")

Heard = list[tuple[str, str, str | None]]


@pytest.fixture
def heard() -> Iterator[Heard]:
    """What the signals say: their name, the task's id, the group's error."""
    found: Heard = []

    def listener(name: str) -> Any:
        def hear(record: TaskRecord, **_: Any) -> None:
            found.append((name, record.task_id, record.failure_group.exception_type if record.failure_group else None))

        return hear

    listeners = {name: listener(name) for name in ("task_parked", "task_recovered", "task_exhausted")}
    for name, hear in listeners.items():
        getattr(signals, name).connect(hear)
    yield found
    for name, hear in listeners.items():
        getattr(signals, name).disconnect(hear)


def write(*told: Event, observe: telling.Observe | None = None) -> None:
    """Write a batch as the collector does."""
    Tables(lambda new: tell(new, observe)).write([Fact(each, each.task_id or "") for each in told])


def test_each_event_is_told_once_with_its_record(heard: Heard) -> None:
    parked, exhausted = event("a"), event("b", EXHAUSTED, attempt=1)
    write(parked, exhausted)
    write(parked, exhausted, event("a", RECOVERED, attempt=1))  # delivered again, with something new
    assert heard == [
        ("task_parked", "a", parked.exception_type),
        ("task_exhausted", "b", exhausted.exception_type),
        ("task_recovered", "a", parked.exception_type),
    ]


def late(attempt: int, due: float, task_id: str = "a", **given: Any) -> Event:
    """Return the event of an attempt that started ``due`` seconds after the one before it was due."""
    before = event(task_id, attempt=attempt - 1)
    assert before.due_at is not None
    return event(task_id, PARKED, attempt=attempt, started_at=before.due_at + timedelta(seconds=due), **given)


def test_lateness_is_from_when_a_retry_was_due_until_it_started() -> None:
    found: list[tuple[str, float]] = []
    write(event("a"), observe=lambda *each: found.append(each))
    assert found == []  # the first attempt was due at no time
    write(late(1, due=2.5), late(2, due=0.25), observe=lambda *each: found.append(each))
    assert sorted(found) == [("payments", 0.25), ("payments", 2.5)]
    write(late(1, due=2.5), observe=lambda *each: found.append(each))  # delivered again
    assert len(found) == 2


@pytest.mark.parametrize(("due", "measured"), [(-0.9, [0.0]), (-1.1, []), (-3000.0, []), (3600.0, [3600.0])])
def test_less_than_nothing_is_between_two_clocks_or_was_run_by_hand(due: float, measured: list[float]) -> None:
    found: list[float] = []
    write(event("a"), late(1, due=due), observe=lambda _, seconds: found.append(seconds))
    assert found == measured


def test_of_a_large_batch_a_part_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telling, "SAMPLE", 3)
    found: list[float] = []
    write(*(event(f"t{n}") for n in range(9)))
    batch = [late(1, due=n, task_id=f"t{n}") for n in range(9)]
    write(*batch, observe=lambda _, seconds: found.append(seconds))
    assert len(found) == 3


def test_what_cannot_be_told_is_written_all_the_same(
    heard: Heard, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: Any) -> Any:
        raise DatabaseError("gone")

    monkeypatch.setattr(telling, "lateness", broken)
    write(event("a"), observe=lambda *_: None)
    assert TaskRecord.objects.count() == 1
    assert "could not be told" in caplog.text


def test_a_signal_of_a_row_of_its_own_brings_that_row(heard: Heard) -> None:
    found = list[str]()

    def hear(record: TaskRecord, **_: Any) -> None:
        found.append(record.life)

    signals.task_exhausted.connect(hear)
    try:
        Tables(tell).write([exhausted("a", body=b"[[1], {}, {}]"), exhausted("a", body=b"[[2], {}, {}]")])
    finally:
        signals.task_exhausted.disconnect(hear)
    assert sorted(found) == sorted(TaskRecord.objects.values_list("life", flat=True))
    assert [name for name, *_ in heard] == ["task_exhausted"] * 2
