"""The pages of operations: what they wait for, all their tasks, and what continues or undoes them."""

import re
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from celery_rmq_delay.contrib.django.admin import operation_pages
from celery_rmq_delay.contrib.django.models import (
    FailureGroup,
    Operation,
    OperationItem,
    OperatorStatus,
    TaskRecord,
    TaskState,
)
from celery_rmq_delay.contrib.django.services.actors import Actor, note_done
from celery_rmq_delay.contrib.django.services.operations import background
from celery_rmq_delay.contrib.django.services.operations.background import presence
from celery_rmq_delay.contrib.django.services.operations.lease import STALE_AFTER, Lease
from celery_rmq_delay.contrib.django.services.operations.requests import cancel, freeze, run
from tests.support.brokers.kinds import POSTGRES_TABLES
from tests.support.django import people, seed
from tests.support.django.admin_pages import BASE, confirm, messages_of
from tests.support.django.markup import faults
from tests.support.django.records import group, record

pytestmark = pytest.mark.usefixtures("shop")

CAROL = Actor(None, "carol")
Kind, State, Outcome = Operation.Kind, Operation.State, OperationItem.Outcome
LIST = f"{BASE}/operation/"


def of(*tasks, kind=Kind.REQUEUE, **more):
    return freeze(kind, TaskRecord.objects.filter(pk__in=[task.pk for task in tasks]), actor=CAROL, **more)


def stored(number):
    """Return an exhausted task with its message."""
    task = record()
    seed.message(task, seed.call(number))
    return task


def page_of(client, operation, query=""):
    page = client.get(f"{LIST}{operation.pk}/change/{query}").content.decode()
    assert faults(page) == []
    return page


def note(page, name="waits"):
    """Return the text of a note on the page; empty where it has none."""
    found = re.search(rf'id="rmq-{name}">([^<]*)<', page)
    return found[1] if found else ""


def press(client, page, label):
    """Submit the form with this button as a browser does; then the confirmation page, if there is one."""
    forms = re.findall(r'<form method="post" action="([^"]*)"[^>]*>(.*?)</form>', page, re.DOTALL)
    (action, form), *_others = [each for each in forms if label in each[1]]
    url = action.replace("&amp;", "&")
    answer = client.post(url, fields(form) | {"action": re.search(r'name="action" value="(\w+)"', form)[1]})  # type: ignore[index]
    return confirm(client, answer, canary="0", reason="again") if answer.status_code == 200 else answer


def fields(form):
    found: dict[str, Any] = {}
    for tag in re.findall(r'<input type="hidden"[^>]*>', form):
        name = re.search(r'name="([^"]*)"', tag)[1]  # type: ignore[index]
        found.setdefault(name, []).append((re.search(r'value="([^"]*)"', tag) or ["", ""])[1])
    return found


def ended(operation, *outcomes, state=State.DONE):
    """End an operation as a run would, with these outcomes of its tasks."""
    for item, outcome in zip(operation.items.order_by("position"), outcomes, strict=True):
        OperationItem.objects.filter(pk=item.pk).update(outcome=outcome, detail="" if outcome == "OK" else "no queue")
    counts = {"ok": outcomes.count("OK"), "failed": outcomes.count("FAILED") + outcomes.count("UNTRIED")}
    Operation.objects.filter(pk=operation.pk).update(state=state, finished_at=timezone.now(), **counts)
    operation.refresh_from_db()
    return operation


@POSTGRES_TABLES
def test_an_operation_that_waits_shows_for_what(client, monkeypatch):
    monkeypatch.setattr(background, "GRADUAL_AT_ONCE", 1)
    first, second, third = (of(record(), rate=1) for _ in range(3))
    discard = of(record(), kind=Kind.DISCARD)
    no_process = "No operator process runs: start “manage.py rmq_delay_operate”."
    assert note(page_of(client, first)) == no_process
    Lease.take(first)
    assert note(page_of(client, first)) == ""
    assert note(page_of(client, second)) == no_process, "a command may run the first one alone"
    with presence() as beat:
        beat()
        after = f"Operation {first.pk} is running now: this one begins after it."
        assert note(page_of(client, second)) == after
        assert note(page_of(client, third)) == f"{after} 1 older operation begins before it."
        assert note(page_of(client, discard)) == "The request that created it runs it."
        Operation.objects.filter(pk=discard.pk).update(created_at=timezone.now() - 2 * STALE_AFTER)
        assert note(page_of(client, discard)) == "An operator process runs, and starts it within seconds."
        OperatorStatus.objects.update(heartbeat_at=timezone.now() - 2 * STALE_AFTER)
        assert note(page_of(client, second)) == no_process
    assert not OperatorStatus.objects.exists()


def test_an_operation_whose_process_is_silent_shows_it(client):
    operation = of(record(), rate=1)
    Lease.take(operation)
    Operation.objects.update(heartbeat_at=timezone.now() - timedelta(minutes=5))
    text = "Its process has sent no heartbeat for 5 min."
    assert note(page_of(client, operation)).startswith(f"{text} No operator process runs")
    with presence() as beat:
        beat()
        assert note(page_of(client, operation)) == f"{text} Another process continues it."


def test_the_time_out_of_canaries_is_shown(client):
    operation = of(record(), record(), canary=1)
    assert "1; their events are waited for up to 10 min, then the others are cancelled" in page_of(client, operation)
    Lease.take(operation)
    Operation.objects.update(state=State.CANARY)
    now = timezone.now()
    OperationItem.objects.filter(is_canary=True).update(outcome=Outcome.OK, finished_at=now)
    waits = note(page_of(client, operation))
    assert waits.startswith("The other tasks are sent when all canaries have recovered.")
    assert f"{timezone.localtime(now + timedelta(minutes=10)):%H:%M:%S}" in waits


def test_the_time_left_comes_from_the_rate_or_from_what_is_done(client):
    paced, free = of(*(record() for _ in range(180)), rate=1), of(*(record() for _ in range(30)))
    assert note(page_of(client, paced), "left") == "The remaining tasks take about 3 h at this rate."
    assert note(page_of(client, free), "left") == ""
    for operation in (paced, free):
        Lease.take(operation)
    assert note(page_of(client, paced), "left").startswith("About 3 h left, until ")
    Operation.objects.filter(pk=free.pk).update(ok=10, started_at=timezone.now() - timedelta(minutes=5))
    assert note(page_of(client, free), "left").startswith("About 10 min left, until ")


@POSTGRES_TABLES
def test_all_tasks_of_an_operation_are_shown_by_outcome_in_pages(client, monkeypatch):
    monkeypatch.setattr(operation_pages, "SHOWN", 2)
    monkeypatch.setattr(operation_pages, "PER_PAGE", 3)
    operation = ended(of(*(record() for _ in range(9))), "FAILED", *["OK"] * 8)
    page = page_of(client, operation)
    assert "Show all 8" in page
    assert page.count("no queue") == 1 + page.count("(no queue)")
    seen = set[str]()
    for number in (1, 2, 3):
        page = page_of(client, operation, f"?outcome=OK&page={number}")
        seen |= set(re.findall(r"/([0-9]+)/change/\"><bdi>", page))
        assert "Failed (" not in page
    assert len(seen) == 8
    assert "?outcome=OK&amp;page=2" in page
    for strange in ("?outcome=OK&page=x", "?outcome=OK&page=99", "?outcome=%00", "?outcome=SKIPPED"):
        assert client.get(f"{LIST}{operation.pk}/change/{strange}").status_code == 200


@POSTGRES_TABLES
def test_the_rest_of_an_operation_is_requeued_by_one_that_follows(client):
    tasks = [stored(number) for number in range(5)]
    operation = ended(of(*tasks), "OK", "FAILED", "UNTRIED", "UNKNOWN", "UNTRIED", state=State.FAILED)
    answer = press(client, page_of(client, operation), "Requeue the rest (3)")
    assert messages_of(answer)[0].startswith("0 requeued, 3 not sent (broker unreachable: ")
    follower = Operation.objects.exclude(pk=operation.pk).get()
    assert (follower.follows, follower.reason) == (operation, "again")
    chosen = set(follower.items.values_list("record", flat=True))
    assert chosen == {tasks[number].pk for number in (1, 2, 4)}
    assert f"{LIST}{follower.pk}/change/" in page_of(client, operation)
    page = page_of(client, follower)
    assert f"{LIST}{operation.pk}/change/" in page
    assert "outcome: not done" in page


def test_the_failed_of_a_gradual_requeue_are_requeued_gradually(client):
    operation = ended(of(stored(1), stored(2), rate=60), "OK", "FAILED")
    press(client, page_of(client, operation), "Requeue the failed (1)")
    follower = Operation.objects.get(follows=operation)
    assert (follower.rate, follower.requested, follower.state) == (60, 1, State.PENDING)


@POSTGRES_TABLES
def test_a_discard_is_undone_for_the_tasks_that_it_has_discarded(client):
    tasks = [record() for _ in range(4)]
    run(of(tasks[3], kind=Kind.DISCARD))
    discard = run(of(*tasks, kind=Kind.DISCARD))
    run(of(tasks[2], kind=Kind.RESTORE))
    run(of(tasks[2], kind=Kind.DISCARD))
    assert messages_of(press(client, page_of(client, discard), "Undo this")) == ["2 restored"]
    states = [TaskRecord.objects.get(pk=task.pk).state for task in tasks]
    assert states == [TaskState.EXHAUSTED, TaskState.EXHAUSTED, TaskState.DISCARDED, TaskState.DISCARDED]
    assert "Undo this" not in page_of(client, discard)


def test_a_mute_is_undone(client):
    numbers = [group(muted=True).pk for _ in range(2)]
    mute = note_done(Kind.MUTE, CAROL, reason="Muted", requested=2, groups=numbers, muted=True)
    assert messages_of(press(client, page_of(client, mute), "Undo this")) == ["2 groups unmuted."]
    assert not FailureGroup.objects.filter(muted=True).exists()
    assert "Undo this" not in page_of(client, mute)


def test_buttons_need_the_permission_of_their_kind(client):
    requeue = ended(of(record()), "FAILED")
    discard = run(of(record(), kind=Kind.DISCARD))
    views = ("view_operation", "view_taskrecord")
    for permission, shown in (
        ("requeue_taskrecord", {"Requeue the failed (1)"}),
        ("discard_taskrecord", {"Undo this"}),
        ("view_failuregroup", set()),
    ):
        browser = people.staff(*views, permission, name=permission)
        pages = page_of(browser, requeue) + page_of(browser, discard)
        assert {label for label in ("Requeue the failed (1)", "Undo this") if label in pages} == shown
    assert "Undo this" not in page_of(client, run(of(record(), kind=Kind.RESTORE)))


@POSTGRES_TABLES
def test_unfinished_operations_come_first_and_exports_are_hidden(client):
    done = [ended(of(record()), "OK") for _ in range(2)]
    waiting = [of(record(), rate=1) for _ in range(2)]
    export = note_done(Kind.EXPORT, CAROL)

    def listed(query=""):
        page = client.get(f"{LIST}{query}").content.decode()
        return list(map(int, re.findall(r'href="[^"]*/operation/([0-9]+)/change/', page)))

    order = [waiting[0].pk, waiting[1].pk, done[1].pk, done[0].pk]
    assert listed() == order
    assert listed("?kind=export") == [export.pk]
    assert listed("?kind=all") == [*order[:2], export.pk, *order[2:]]


def test_a_scheduled_operation_shows_its_start_and_can_be_cancelled(client):
    start = timezone.now() + timedelta(hours=2)
    operation = of(record(), kind=Kind.DISCARD, not_before=start)
    begins = f"It starts at {timezone.localtime(start):%Y-%m-%d %H:%M:%S}"
    assert note(page_of(client, operation)).startswith(begins)
    assert "No operator process runs" in note(page_of(client, operation))
    assert re.search(r"starts <time[^>]*>in (119|120) min|starts <time[^>]*>in 2 h", client.get(LIST).content.decode())
    with presence() as beat:
        beat()
        assert "No operator process runs" not in note(page_of(client, operation))
    assert client.post(f"{LIST}{operation.pk}/cancel/").status_code == 302
    operation.refresh_from_db()
    assert (operation.state, operation.message) == (State.CANCELLED, "0 discarded, 1 cancelled")
    assert cancel(operation, CAROL).state == State.CANCELLED
