"""The tables after the collector has written events and messages."""

import random
from datetime import timedelta

import pytest
from django.db.models import Sum
from django.utils import timezone

from celery_rmq_delay.contrib.django.collecting import database
from celery_rmq_delay.contrib.django.collecting.database import Database
from celery_rmq_delay.contrib.django.collecting.facts import Fact
from celery_rmq_delay.contrib.django.models import (
    Attempt,
    CountedRollup,
    FailureGroup,
    LookupValue,
    Payload,
    Tally,
    TaskRecord,
    TaskState,
)
from celery_rmq_delay.events.schema import DISCARDED, EXHAUSTED, PARKED, RECOVERED, REQUEUED, ROLLUP, Event
from tests.support.django.reported import BEGIN, ERRORS, at, exhausted, fact, life

pytestmark = pytest.mark.usefixtures("database")

#: Columns that differ from run to run.
VARYING = {"id", "changed_at", "record_id", "failure_group_id", "stored_at"}


@pytest.fixture
def tables():
    return Database()


def row(task_id="t"):
    found = TaskRecord.objects.select_related("failure_group").get(task_id=task_id)
    values = {field.attname: getattr(found, field.attname) for field in TaskRecord._meta.concrete_fields}
    group = found.failure_group.fingerprint if found.failure_group else None
    return {**{name: value for name, value in values.items() if name not in VARYING}, "group": group}


def everything():
    """Return the contents of the tables without columns that differ from run to run."""
    payloads = [
        (each.record.task_id, each.generation, bytes(each.body), bytes(each.headers), each.properties)
        for each in Payload.objects.select_related("record")
    ]
    return {
        "tasks": {task_id: row(task_id) for task_id in TaskRecord.objects.values_list("task_id", flat=True)},
        "attempts": sorted(
            (
                {name: value for name, value in each.items() if name not in VARYING}
                for each in Attempt.objects.values(
                    "record__task_id", *[f.attname for f in Attempt._meta.concrete_fields]
                )
            ),
            key=lambda each: str(each["event_id"]),
        ),
        "payloads": sorted(payloads),
        "tallies": sorted(map(str, Tally.objects.values_list("slot", "queue", "name", "fingerprint", *COUNTERS))),
        "groups": sorted(
            map(str, FailureGroup.objects.values_list("fingerprint", "message", "first_seen", "last_seen"))
        ),
    }


COUNTERS = ("parked", "recovered", "exhausted", "succeeded")


def counted():
    return {name: found or 0 for name, found in Tally.objects.aggregate(**{n: Sum(n) for n in COUNTERS}).items()}


def empty():
    for model in (Payload, Attempt, TaskRecord, FailureGroup, Tally, CountedRollup):
        model._default_manager.all().delete()


LIVES = {
    "parked": life("t", 2, None),
    "recovered": life("t", 3, RECOVERED),
    "exhausted": life("t", 3, EXHAUSTED),
    "requeued, then recovered at once": [*life("t", 3, EXHAUSTED), *life("t", 0, RECOVERED, 1)],
    "requeued, then recovered": [*life("t", 2, EXHAUSTED), *life("t", 2, RECOVERED, 1)],
    "requeued, then exhausted again": [*life("t", 1, EXHAUSTED), *life("t", 3, EXHAUSTED, 1)],
    "exhausted by the broker": [*life("t", 2, None), exhausted("t", 1, **{"rmq-delay-exception": None})],
    "revoked": [*life("t", 2, None), fact("t", DISCARDED, 2, reason="revoked")],
}


@pytest.mark.parametrize("name", LIVES)
def test_any_order_and_repetition_of_events_gives_the_same_rows(tables, name):
    facts = LIVES[name]
    requeued = [each for each in facts if each.event.generation]
    for each in facts:
        tables.write([each])
    expected = everything()
    dice = random.Random(name)
    for _ in range(6):
        empty()
        tables.forget()
        shuffled = [each for each in facts if not each.event.generation]
        dice.shuffle(shuffled)
        # Nothing is requeued before its message was collected.
        again = [*requeued, *dice.choices(facts, k=4)]
        dice.shuffle(again)
        shuffled += again
        while shuffled:
            size = dice.randint(1, len(shuffled))
            tables.write(shuffled[:size])
            del shuffled[:size]
        assert everything() == expected


def test_the_columns_of_a_parked_task_and_of_one_that_recovered_keep_its_error(tables):
    tables.write([fact("t", PARKED, 1)])
    found = row()
    assert (found["state"], found["attempt"], found["max_retries"]) == (TaskState.PARKED, 1, 3)
    assert (found["tier"], found["delay_ms"], found["delay_queue"]) == (2, 30_000, "payments.retry.2.5s")
    assert (found["parked_at"], found["due_at"]) == (at(0, 1), at(0, 1, 30))
    assert (found["first_failed_at"], found["ladder_ms"]) == (at(0, 0), [5_000, 30_000, 300_000])
    tables.write(life("t", 2, RECOVERED))
    found = row()
    assert (found["state"], found["recovered_at"], found["due_at"]) == (TaskState.RECOVERED, at(0, 2), None)
    assert (found["exception_type"], found["exception_message"]) == (ERRORS[1], "order 1")


def test_event_and_message_of_an_exhausted_task_are_one_attempt_with_the_traceback(tables):
    tables.write([fact("t", EXHAUSTED, 3)])
    tables.write([exhausted("t", 3)])
    (attempt,) = Attempt.objects.all()
    assert (attempt.runtime_ms, attempt.traceback[:9]) == (12, "Traceback")
    assert counted() == {"parked": 0, "recovered": 0, "exhausted": 1, "succeeded": 0}
    assert FailureGroup.objects.count() == 1, "the message has the same fingerprint as the event"
    assert bytes(Payload.objects.get().body) == b"[[], {}, {}]"


def test_every_event_is_counted_once(tables):
    facts = [each for number in range(20) for each in life(f"t{number}", 2, RECOVERED if number % 2 else EXHAUSTED)]
    for _ in range(3):
        tables.write(facts)
    assert counted() == {"parked": 40, "recovered": 10, "exhausted": 10, "succeeded": 0}
    assert Attempt.objects.count() == 60


def test_successes_are_counted_once_however_often_they_are_reported(tables):
    rollup = Fact(Event("r1", ROLLUP, BEGIN, "orders.tasks.charge", "payments", "celery@w", ok_count=17))
    for _ in range(2):
        tables.write([rollup, rollup])
    assert counted()["succeeded"] == 17
    CountedRollup.objects.update(counted_at=timezone.now() - timedelta(days=2))
    tables.tidy()
    assert not CountedRollup.objects.exists()


def test_counters_are_of_ten_minutes(tables):
    tables.write([fact(f"t{minute}", occurred_at=BEGIN + timedelta(minutes=minute)) for minute in (0, 9, 10, 25)])
    found = Tally.objects.order_by("slot").values_list("slot", "parked")
    assert list(found) == [(BEGIN + timedelta(minutes=minute), count) for minute, count in ((0, 2), (10, 1), (20, 1))]


def test_groups_have_the_times_of_their_first_and_last_failure(tables):
    for minute in (30, 10, 50):
        tables.write([fact(f"t{minute}", occurred_at=BEGIN + timedelta(minutes=minute))])
    group = FailureGroup.objects.get()
    assert (group.first_seen, group.last_seen) == (BEGIN + timedelta(minutes=10), BEGIN + timedelta(minutes=50))
    assert group.message == "order <n>"


def test_filters_offer_the_values_of_events(tables):
    tables.write([fact("t")])
    found = {(each.kind, each.value) for each in LookupValue.objects.all()}
    assert found == {
        ("queue", "payments"),
        ("task", "orders.tasks.charge"),
        ("error", ERRORS[0]),
        ("worker", "celery@worker-0"),
    }


def test_a_worker_that_was_pruned_is_offered_again_when_the_cache_of_names_is_old(tables, monkeypatch):
    tables.write([fact("a")])
    LookupValue.objects.all().delete()
    tables.write([fact("b")])
    assert not LookupValue.objects.exists()
    monkeypatch.setattr(database, "_KNOWN_FOR", -1.0)
    tables.write([fact("c")])
    assert LookupValue.objects.filter(kind="worker", value="celery@worker-0").exists()


# -- actions of users stand ----------------------------------------------------------------------------------------


def set_state(state, **more):
    TaskRecord.objects.update(state=state, **more)


@pytest.mark.parametrize("state", [TaskState.DISCARDED, TaskState.REQUEUING, TaskState.UNKNOWN])
def test_an_action_on_an_exhausted_task_stands_until_its_next_generation(tables, state):
    tables.write(life("t", 2, EXHAUSTED))
    set_state(state)
    tables.write([*life("t", 2, EXHAUSTED), fact("t", PARKED, 3)])
    assert row()["state"] == state
    tables.write([fact("t", RECOVERED, 0, 1)])
    assert (row()["state"], row()["generation"]) == (TaskState.RECOVERED, 1)


def test_the_state_of_a_requeued_task_comes_from_its_new_generation(tables):
    tables.write(life("t", 3, EXHAUSTED))
    set_state(TaskState.REQUEUED, generation=1, attempt=0)
    tables.write(life("t", 3, EXHAUSTED))
    assert row()["state"] == TaskState.REQUEUED
    tables.write([fact("t", PARKED, 0, 1)])
    found = row()
    assert (found["state"], found["attempt"], found["exhausted_at"]) == (TaskState.PARKED, 0, None)


@pytest.mark.parametrize("state", [TaskState.DISCARDED, TaskState.RUNNING, TaskState.REQUEUING])
def test_a_parked_task_that_was_set_aside_or_released_is_parked_again_by_its_next_attempt(tables, state):
    tables.write([fact("t", PARKED, 1)])
    set_state(state)
    tables.write([fact("t", PARKED, 0), fact("t", PARKED, 1)])
    assert row()["state"] == state
    tables.write([fact("t", PARKED, 2)])
    assert row()["state"] == TaskState.PARKED


def test_a_message_is_not_kept_again_after_its_requeue(tables):
    tables.write([exhausted("t", 3)])
    set_state(TaskState.REQUEUED, generation=1, attempt=0)
    Payload.objects.all().delete()
    tables.write([exhausted("t", 3)])
    assert not Payload.objects.exists()


def test_a_task_in_the_exhausted_queue_is_not_hidden_by_a_success(tables):
    tables.write([fact("t", RECOVERED, 3), fact("t", EXHAUSTED, 3)])
    tables.write([fact("t", RECOVERED, 3)])
    assert row()["state"] == TaskState.EXHAUSTED


def test_history_of_a_missing_task_is_left_out(tables):
    tables.write([fact("gone", REQUEUED, 3), fact("t", PARKED, 0)])
    assert list(TaskRecord.objects.values_list("task_id", flat=True)) == ["t"]
    tables.write([fact("r", RECOVERED, 1)])
    assert row("r")["group"] is None, "an event without an error has none"


def test_a_message_that_is_delivered_again_after_its_task_recovered_changes_nothing(tables):
    tables.write(LIVES["requeued, then recovered"])
    tables.write([each for each in LIVES["requeued, then recovered"] if each.message])
    assert (row()["state"], Payload.objects.count()) == (TaskState.RECOVERED, 0)


def test_the_message_of_a_requeue_with_unknown_outcome_is_deleted_when_its_task_recovers(tables):
    tables.write(life("t", 1, EXHAUSTED))
    set_state(TaskState.UNKNOWN)
    Payload.objects.update(generation=1)
    tables.write([fact("t", RECOVERED, 0, 1)])
    assert (row()["state"], Payload.objects.count()) == (TaskState.RECOVERED, 0)
