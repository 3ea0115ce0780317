"""Selections, states and counts of operations, without a broker."""

from collections.abc import Callable
from contextlib import nullcontext
from datetime import timedelta

import pytest
from django.db import transaction
from django.db.models import F
from django.utils import timezone

from celery_rmq_delay.contrib.django.models import Attempt, Operation, OperationItem, TaskRecord, TaskState
from celery_rmq_delay.contrib.django.services.actors import Actor
from celery_rmq_delay.contrib.django.services.operations import lease
from celery_rmq_delay.contrib.django.services.operations.requests import cancel, confirm, freeze, is_inline, report, run
from celery_rmq_delay.contrib.django.services.operations.runner import judge
from celery_rmq_delay.exceptions import LeaseLostError, OperationBusyError, RmqDelayError
from tests.support.brokers.kinds import BOTH_DATABASES
from tests.support.django.records import record

pytestmark = [pytest.mark.usefixtures("database", "shop"), BOTH_DATABASES]

ALICE, BOB = Actor(None, "alice"), Actor(None, "bob")
Kind, State, Outcome = Operation.Kind, Operation.State, OperationItem.Outcome


def selected(*records):
    return TaskRecord.objects.filter(pk__in=[each.pk for each in records])


def states(*records):
    return [TaskRecord.objects.get(pk=each.pk).state for each in records]


def done(kind, *records, actor=ALICE):
    return run(freeze(kind, selected(*records), actor=actor, reason="a test"))


def adds_up(operation):
    counted = operation.ok + operation.skipped + operation.failed + operation.unknown + operation.remaining
    outcomes = OperationItem.objects.filter(operation=operation)
    return (
        counted == operation.requested
        and outcomes.filter(outcome=Outcome.OK).count() == operation.ok
        and outcomes.filter(outcome=Outcome.CANCELLED).count() == (operation.remaining if operation.is_over else 0)
    )


def test_a_frozen_selection_contains_no_later_tasks():
    first = record()
    operation = freeze(Kind.DISCARD, TaskRecord.objects.filter(queue="payments"), actor=ALICE, reason="old")
    late = record()
    assert operation.requested == 1
    run(operation)
    assert states(first, late) == [TaskState.DISCARDED, TaskState.EXHAUSTED]


def test_a_frozen_selection_keeps_its_order_and_its_canaries_are_first():
    records = [record(exhausted_at=timezone.now() - timedelta(minutes=number)) for number in range(5)]
    chosen = selected(*records).order_by("exhausted_at")
    items = freeze(Kind.REQUEUE, chosen, actor=ALICE, canary=2, rate=60).items.order_by("position")
    assert [item.record_id for item in items] == [each.pk for each in reversed(records)]
    assert [item.is_canary for item in items] == [True, True, False, False, False]
    first_two = freeze(Kind.DISCARD, chosen.reverse()[:2], actor=ALICE).items.order_by("position")
    assert [item.record_id for item in first_two] == [each.pk for each in records[:2]]


@pytest.mark.parametrize("order", ["exhausted_at", "-exhausted_at", F("exhausted_at").asc(nulls_last=True)])
def test_a_reversed_list_is_frozen_in_its_order(order):
    at = timezone.now()
    for number in range(6):
        record(exhausted_at=at - timedelta(minutes=number % 3))
    for rows in (TaskRecord.objects.order_by(order, "pk"), TaskRecord.objects.order_by(order, "pk").reverse()):
        items = freeze(Kind.DISCARD, rows, actor=ALICE).items.order_by("position")
        assert list(items.values_list("record", flat=True)) == list(rows.values_list("pk", flat=True))


def test_a_draft_cannot_run_until_it_is_confirmed_once():
    records = [record() for _ in range(3)]
    draft = freeze(Kind.REQUEUE, selected(*records), actor=ALICE, details={"list": "all"}, draft=True)
    with pytest.raises(OperationBusyError):
        run(draft)
    assert not Operation.objects.exists()
    late = record()
    assert confirm(draft, reason="old", canary=1, rate=9, details={"into_queue": "q"})
    assert not confirm(draft, reason="twice")
    operation = Operation.objects.get()
    assert (operation.state, operation.reason, operation.rate, operation.requested) == (State.PENDING, "old", 9, 3)
    assert operation.details == {"list": "all", "into_queue": "q"}
    assert list(operation.items.order_by("position").values_list("is_canary", flat=True)) == [True, False, False]
    assert not operation.items.filter(record=late).exists()
    with pytest.raises(RmqDelayError, match="only a requeue can"):
        confirm(freeze(Kind.DISCARD, selected(late), actor=ALICE, draft=True), rate=60)


def test_many_tasks_are_frozen_in_the_database(django_assert_max_num_queries):
    template = {"name": "t", "queue": "q", "state": TaskState.EXHAUSTED, "changed_at": timezone.now()}
    TaskRecord.objects.bulk_create([TaskRecord(task_id=f"{number}", **template) for number in range(500)])
    with django_assert_max_num_queries(7):
        operation = freeze(Kind.REQUEUE, TaskRecord.objects.all(), actor=ALICE)
    assert (operation.requested, operation.items.count(), is_inline(operation)) == (500, 500, False)


def test_a_gradual_operation_is_not_for_the_page():
    record()
    every = TaskRecord.objects.all()
    assert is_inline(freeze(Kind.REQUEUE, every, actor=ALICE))
    assert not is_inline(freeze(Kind.REQUEUE, every, actor=ALICE, rate=60))
    assert not is_inline(freeze(Kind.REQUEUE, every, actor=ALICE, canary=1))
    with pytest.raises(RmqDelayError, match="only a requeue can"):
        freeze(Kind.DISCARD, every, actor=ALICE, rate=60)
    with pytest.raises(RmqDelayError, match="1 or more per minute"):
        freeze(Kind.REQUEUE, every, actor=ALICE, rate=0)


def test_discarded_tasks_are_kept_and_can_be_restored_and_every_act_is_in_the_history_once():
    task = record(exception_type="Timeout")
    operation = done(Kind.DISCARD, task)
    assert (operation.state, operation.message) == (State.DONE, "1 discarded")
    assert states(task) == [TaskState.DISCARDED]
    assert list(Attempt.objects.values_list("kind", "worker", "reason")) == [("discarded", "alice", "discard")]
    again = done(Kind.RESTORE, task, actor=BOB)
    assert again.message == "1 restored"
    task.refresh_from_db()
    assert (task.state, task.exception_type, task.operation) == (TaskState.EXHAUSTED, "Timeout", again)
    done(Kind.DISCARD, task)
    assert Attempt.objects.filter(record=task, kind="discarded").count() == 2


def test_a_task_of_unknown_outcome_is_restored_by_a_person():
    task = record(TaskState.UNKNOWN, generation=1)
    assert done(Kind.RESTORE, task).message == "1 restored"
    assert states(task) == [TaskState.EXHAUSTED]


def test_tasks_that_another_person_handled_first_are_skipped_with_the_name():
    tasks = [record(), record(), record(TaskState.RECOVERED)]
    theirs = freeze(Kind.DISCARD, selected(*tasks), actor=BOB)
    done(Kind.DISCARD, tasks[0], actor=ALICE)
    operation = run(theirs)
    assert operation.message == "1 discarded, 2 skipped (1 already discarded by alice; 1 now recovered)"
    assert adds_up(operation)
    requeued = freeze(Kind.REQUEUE, TaskRecord.objects.none(), actor=ALICE)
    recovered = record(TaskState.RECOVERED, generation=1, operation=requeued)
    assert done(Kind.DISCARD, recovered, actor=BOB).message == "0 discarded, 1 skipped (already requeued by alice)"
    task = record()
    operation = freeze(Kind.DISCARD, selected(task), actor=ALICE)
    selected(task).update(generation=1)
    assert run(operation).message == "0 discarded, 1 skipped (already requeued)"


def test_records_that_were_deleted_meanwhile_count_as_skipped():
    operation = freeze(Kind.DISCARD, selected(record(), record()), actor=ALICE)
    TaskRecord.objects.order_by("pk").first().delete()  # type: ignore[union-attr]
    operation = run(operation)
    assert (operation.ok, operation.skipped, operation.message) == (1, 1, "1 discarded, 1 skipped")
    assert done(Kind.DISCARD).message == "0 discarded", "of an empty selection"


def taken_over(operation):
    """Return the lease of another process: to it, the runner is dead (suspended, cut off, or the clock has jumped)."""
    Operation.objects.update(heartbeat_at=timezone.now() - 2 * lease.STALE_AFTER)
    return lease.Lease.take(Operation.objects.get(pk=operation.pk))


def test_a_running_operation_is_left_to_its_runner_until_the_runner_is_silent_and_runs_once():
    operation = freeze(Kind.DISCARD, selected(record()), actor=ALICE)
    lease.Lease.take(operation)
    with pytest.raises(lease.OperationBusyError, match="runs it"):
        run(operation)
    Operation.objects.update(heartbeat_at=timezone.now() - 2 * lease.STALE_AFTER)
    assert run(operation).ok == 1
    with pytest.raises(lease.OperationBusyError, match=r"is done\."):
        run(operation)


WRITES: dict[str, Callable[[lease.Lease], object]] = {
    "beat": lambda held: held.beat(ok=7),
    "check": lambda held: held.check(),
    "settle": lambda held: held.settle([lease.Settled(OperationItem.objects.get(), Outcome.OK)]),
    "note": lambda held: held.note("lost"),
    "done": lambda held: held.finish(State.DONE, Outcome.SKIPPED),
    "cancelled": lambda held: held.finish(State.CANCELLED, Outcome.CANCELLED, note="lost"),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_a_runner_whose_operation_was_taken_over_writes_nothing(write):
    operation = freeze(Kind.DISCARD, selected(record()), actor=ALICE)
    first = lease.Lease.take(operation)
    second = taken_over(operation)
    before = [Operation.objects.values().get(), OperationItem.objects.values().get()]
    with pytest.raises(LeaseLostError), transaction.atomic() if write is WRITES["settle"] else nullcontext():
        write(first)
    assert [Operation.objects.values().get(), OperationItem.objects.values().get()] == before
    assert second.check() == State.RUNNING


@pytest.mark.parametrize(("state", "rest"), [(State.DONE, Outcome.SKIPPED), (State.CANCELLED, Outcome.CANCELLED)])
def test_a_runner_that_is_outrun_while_it_finishes_does_not_end_the_operation(state, rest, monkeypatch):
    operation = freeze(Kind.DISCARD, selected(record()), actor=ALICE)
    first = lease.Lease.take(operation)

    def outrun(detail):
        taken_over(operation)
        return detail

    monkeypatch.setattr(lease, "shortened", outrun)
    with pytest.raises(LeaseLostError):
        first.finish(state, rest)
    assert Operation.objects.get().state == State.RUNNING
    assert OperationItem.objects.get().outcome == Outcome.PENDING


def test_a_pausing_operation_renews_its_heartbeat_when_it_is_time(monkeypatch):
    operation = freeze(Kind.DISCARD, selected(record()), actor=ALICE)
    held = lease.Lease.take(operation)
    old = timezone.now() - timedelta(seconds=30)
    Operation.objects.update(heartbeat_at=old)
    assert held.check() == State.RUNNING
    assert Operation.objects.get().heartbeat_at == old
    monkeypatch.setattr(lease, "BEAT_EVERY", 0)
    assert held.check() == State.RUNNING
    assert Operation.objects.get().heartbeat_at > old
    taken_over(operation)
    for every in (0, 1_000):
        monkeypatch.setattr(lease, "BEAT_EVERY", every)
        with pytest.raises(LeaseLostError):
            held.check()


def test_an_operation_that_waits_is_cancelled_at_once():
    task = record()
    operation = cancel(freeze(Kind.DISCARD, selected(task), actor=ALICE), BOB)
    assert (operation.state, operation.message) == (State.CANCELLED, "0 discarded, 1 cancelled")
    assert operation.details["cancelled_by"] == "bob"
    assert adds_up(operation)
    assert states(task) == [TaskState.EXHAUSTED]
    assert cancel(operation, ALICE).details["cancelled_by"] == "bob"


@pytest.mark.parametrize("state", [State.PENDING, State.RUNNING])
def test_a_cancellation_keeps_what_others_wrote_since_the_page_was_read(state):
    operation = freeze(Kind.DISCARD, selected(record()), actor=ALICE)
    Operation.objects.filter(pk=operation.pk).update(state=state, details={"note": "not all results are REVOKED"})
    expected = {"note": "not all results are REVOKED", "cancelled_by": "bob"}
    assert cancel(operation, BOB).details == expected


def test_an_operation_is_handed_over_when_its_process_has_to_stop():
    operation = freeze(Kind.DISCARD, selected(record()), actor=ALICE)
    held = lease.Lease.take(operation)
    held.hand_over()
    with pytest.raises(LeaseLostError):
        held.check()
    assert run(operation, stop=lambda: True).state == State.PENDING
    assert report(operation) == "0 discarded, 1 to go"
    assert run(operation).message == "1 discarded"


def test_a_run_within_a_transaction_is_refused():
    operation = freeze(Kind.DISCARD, selected(record()), actor=ALICE)
    with transaction.atomic(), pytest.raises(RmqDelayError, match="non_atomic_requests"):
        run(operation)


def test_an_edit_whose_page_is_gone_reports_its_tasks():
    tasks = [record(), record()]
    operation = freeze(Kind.EDIT, selected(*tasks), actor=ALICE)
    lease.Lease.take(operation)
    selected(tasks[0]).update(state=TaskState.REQUEUING, operation=operation)
    Operation.objects.update(heartbeat_at=timezone.now() - 2 * lease.STALE_AFTER)
    operation = run(operation)
    assert operation.state == State.FAILED
    assert operation.message == (
        "0 edited and requeued, 1 not sent (the edited arguments were lost with their request: edit the task again), "
        "1 with unknown outcome (its runner died while it was being published)"
    )
    assert states(*tasks) == [TaskState.UNKNOWN, TaskState.EXHAUSTED]


@pytest.mark.parametrize(
    ("first", "second", "verdict"),
    [
        (TaskState.RECOVERED, TaskState.RECOVERED, ""),
        (TaskState.RECOVERED, TaskState.REQUEUED, None),
        (TaskState.PARKED, TaskState.REQUEUED, "1 of 2 canaries failed again and waits for its retry"),
        (TaskState.PARKED, TaskState.PARKED, "2 of 2 canaries failed again and wait for their retries"),
        (TaskState.EXHAUSTED, TaskState.PARKED, "1 of 2 canaries is exhausted again"),
    ],
)
def test_the_rest_follows_when_every_canary_has_recovered(first, second, verdict):
    records = [record(), record(), record()]
    operation = freeze(Kind.REQUEUE, selected(*records), actor=ALICE, canary=2, rate=60)
    sent = operation.items.filter(is_canary=True)
    sent.update(outcome=Outcome.OK, finished_at=timezone.now())
    for item, state in zip(sent.order_by("position"), (first, second), strict=True):
        TaskRecord.objects.filter(pk=item.record_id).update(state=state, generation=1)
    assert judge(operation) == (f"{verdict}: the rest was not sent" if verdict else verdict)
