"""`manage.py rmq_delay_operate`: which operations it runs, and those that are started with it."""

from datetime import datetime, timedelta
from itertools import product

import pytest
from django.core.management import CommandError
from django.utils import timezone

from celery_rmq_delay.contrib.django.models import Operation, OperatorStatus, TaskRecord, TaskState
from celery_rmq_delay.contrib.django.services.actors import Actor
from celery_rmq_delay.contrib.django.services.operations import background
from celery_rmq_delay.contrib.django.services.operations import runner as running
from celery_rmq_delay.contrib.django.services.operations.background import count_running, next_operation
from celery_rmq_delay.contrib.django.services.operations.lease import STALE_AFTER, Lease
from celery_rmq_delay.contrib.django.services.operations.requests import freeze, is_inline, run
from tests.support.django.commands import manage
from tests.support.django.records import record

pytestmark = pytest.mark.usefixtures("database", "shop")

ALICE = Actor(None, "alice")
Kind, State = Operation.Kind, Operation.State
LONG_AGO = 2 * STALE_AFTER


def waiting(count=1, **more):
    records = [record() for _ in range(count)]
    chosen = TaskRecord.objects.filter(pk__in=[each.pk for each in records])
    return freeze(more.pop("kind", Kind.DISCARD), chosen, actor=ALICE, **more)


def changed(operation, **values):
    Operation.objects.filter(pk=operation.pk).update(**values)


def test_operations_left_by_pages_are_run_oldest_first(settings, monkeypatch):
    monkeypatch.setattr(background, "OTHERS_AT_ONCE", 1)
    settings.RMQ_DELAY = {**settings.RMQ_DELAY, "INLINE_LIMIT": 2}
    operations = [waiting(3), waiting(3)]
    manage("operate", "--once")
    for operation in operations:
        operation.refresh_from_db()
        assert (operation.state, operation.message) == (State.DONE, "3 discarded")
    assert operations[0].started_at < operations[1].started_at  # type: ignore[operator]


def test_an_operation_is_next_when_handed_over_or_its_page_is_gone_or_its_runner_silent():
    operation = waiting()
    assert next_operation() is None
    changed(operation, created_at=timezone.now() - LONG_AGO)
    assert next_operation() == operation
    held = Lease.take(operation)
    assert next_operation() is None
    changed(operation, heartbeat_at=timezone.now() - LONG_AGO)
    assert next_operation() == operation
    changed(operation, created_at=timezone.now())
    held.hand_over()
    assert next_operation() == operation


def test_a_gradual_operation_is_next_at_once():
    operation = waiting(kind=Kind.REQUEUE, rate=60)
    assert next_operation() == operation


def test_a_scheduled_operation_does_not_start_before_its_time():
    start = timezone.now() + timedelta(hours=1)
    operation = waiting(not_before=start)
    assert not is_inline(operation)
    assert next_operation() is None
    manage("operate", "--once")
    with pytest.raises(CommandError, match="does not start before"):
        manage("operate", "--operation", str(operation.pk))
    changed(operation, not_before=timezone.now() - timedelta(seconds=1))
    manage("operate", "--once")
    operation.refresh_from_db()
    assert operation.message == "1 discarded"


def test_a_process_is_known_while_it_runs_and_forgotten_when_it_ends(monkeypatch):
    now = timezone.now()
    OperatorStatus.objects.create(name="killed", started_at=now, heartbeat_at=now - timedelta(days=2))
    known = list[tuple[int, int]]()

    def observed(operation, **more):
        known.append((count_running(timezone.now()), OperatorStatus.objects.count()))
        return run(operation, **more)

    monkeypatch.setattr(background, "run", observed)
    waiting(not_before=now)
    manage("operate", "--once")
    assert known == [(1, 1)]
    assert not OperatorStatus.objects.exists()


def test_one_operation_is_run_by_its_number():
    first, second = waiting(), waiting()
    assert manage("operate", "--operation", str(second.pk)) == "Done: 1 discarded.\n"
    first.refresh_from_db()
    assert first.state == State.PENDING
    with pytest.raises(CommandError, match="is done"):
        manage("operate", "--operation", str(second.pk))
    with pytest.raises(CommandError, match=r"There is no operation 99\."):
        manage("operate", "--operation", "99")


def test_an_action_is_for_the_tasks_that_all_conditions_name():
    wanted = record(queue="mails", name="mail.send", exception_type="Refused")
    others = [record(queue="mails"), record(name="mail.send"), record(TaskState.PARKED, queue="mails")]
    output = manage("operate", "discard", queue="mails", task="mail.send", error="Refused", reason="a typo")
    operation = Operation.objects.get()
    assert output == f"Operation {operation.pk}: 1 tasks.\nDone: 1 discarded.\n"
    assert (operation.reason, operation.user) == ("a typo", None)
    assert operation.actor
    assert operation.details == {"filters": {"queue": "mails", "name": "mail.send", "exception_type": "Refused"}}
    wanted.refresh_from_db()
    assert wanted.state == TaskState.DISCARDED
    assert [TaskRecord.objects.get(pk=each.pk).state for each in others] == [each.state for each in others]


def test_an_action_is_for_tasks_by_their_ids():
    first, _second, third = record(), record(), record()
    manage("operate", "discard", id=[first.task_id, third.task_id])
    assert manage("operate", "restore", all=True).endswith("Done: 2 restored.\n")


#: A day within the year in which an operation can be scheduled.
DAY = (datetime.now() + timedelta(days=200)).strftime("%Y-%m-%d")


@pytest.mark.parametrize("given", [("--in", "2h30m"), ("--at", f"{DAY}T03:00"), ("--at", f"{DAY}T03:00+01:00")])
def test_an_action_can_be_scheduled_for_later(given):
    record()
    output = manage("operate", "discard", "--all", *given)
    operation = Operation.objects.get()
    assert operation.not_before is not None
    assert "A running rmq_delay_operate starts it at " in output
    assert operation.state == State.PENDING
    if given[0] == "--in":
        late = timezone.now() + timedelta(hours=2, minutes=30) - operation.not_before
        assert timedelta(0) < late < timedelta(hours=1)
    else:
        assert operation.not_before.isoformat().startswith(f"{DAY}T")


@pytest.mark.parametrize(
    ("given", "error"),
    [
        (("--all", "--in", "soon"), "soon"),
        (("--all", "--at", "tomorrow"), "is not a time"),
        (("--all", "--at", "9999-12-31T23:59"), "Found 9999-12-31 23:59"),
        (("--all", "--at", "2026-01-31T03:00"), "choose a time from now on, within 366 days"),
        (("--all", "--at", "2026-02-31T03:00"), "is not a time"),
        (("--all", "--at", "2999-01-31T03:00", "--in", "2h"), "not allowed with"),
        (("--all", "--rate", "60"), "only a requeue can"),
        ((), "No tasks selected"),
        (("--all", "--queue", "payments"), "leave one out"),
    ],
)
def test_an_action_with_options_that_make_no_sense_changes_nothing(given, error):
    task = record()
    with pytest.raises(CommandError, match=error):
        manage("operate", "discard", *given)
    assert not Operation.objects.exists()
    assert TaskRecord.objects.get() == task
    assert TaskRecord.objects.get().state == TaskState.EXHAUSTED


@pytest.mark.parametrize("more", [(), ("--dry-run",), ("--in", "1h")])
@pytest.mark.parametrize(
    ("given", "error"),
    [
        (("--all",), r"No exhausted tasks were found\. Nothing was changed\."),
        (("--queue", "nope"), r"No exhausted tasks were found\. Nothing was changed\."),
        (("--id", "a", "--id", "no", "--id", "nope"), r"Not found among the exhausted tasks: no, nope\. Nothing was"),
        (("--id", "a", "--queue", "mails"), r"Not found among the exhausted tasks that meet the other conditions: a\."),
    ],
)
def test_an_action_on_tasks_that_are_not_there_ends_with_1(given, error, more):
    record(TaskState.EXHAUSTED if "a" in given else TaskState.PARKED, task_id="a", queue="payments")
    with pytest.raises(CommandError, match=error) as caught:
        manage("operate", "requeue", *given, *more)
    assert caught.value.returncode == 1
    assert not Operation.objects.exists()


def test_options_of_an_action_are_refused_without_one():
    options = [
        ("--queue", "mails"), ("--task", "mail.send"), ("--error", "Refused"), ("--id", "a"), ("--all",),
        ("--reason", ""), ("--canary", "0"), ("--rate", "0"), ("--at", f"{DAY}T03:00"), ("--in", "1h"), ("--dry-run",),
    ]  # fmt: skip
    operation = waiting(not_before=timezone.now())
    for given, runner in product(options, (("--once",), ("--operation", "1"))):
        with pytest.raises(CommandError, match=f"{given[0]} cannot be used without an action: write requeue, discard,"):
            manage("operate", *given, *runner)
        with pytest.raises(CommandError, match=f"{runner[0]} cannot be used with an action"):
            manage("operate", "requeue", *given, *runner)
    operation.refresh_from_db()
    assert operation.state == State.PENDING
    assert Operation.objects.count() == 1


def test_a_dry_run_lists_the_tasks_and_does_nothing():
    for error in ("Timeout", "Timeout", "Refused"):
        record(exception_type=error)
    lines = manage("operate", "requeue", all=True, dry_run=True).splitlines()
    assert [line.split()[0] for line in lines] == ["2", "1", "3"]
    assert lines[0].endswith("Timeout")
    assert lines[-1].endswith("3  in total. Nothing was changed.")
    assert not Operation.objects.exists()


def test_an_action_that_leaves_something_undone_ends_with_1(monkeypatch):
    monkeypatch.setattr(running, "PATIENCE", 0)
    record()
    with pytest.raises(CommandError, match="did not succeed for all tasks") as caught:
        manage("operate", "requeue", all=True)
    assert caught.value.returncode == 1
    assert Operation.objects.get().state == State.FAILED
