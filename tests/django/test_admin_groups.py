"""Failure groups: the order of the list, its bars, and its buttons, which act on all open tasks of one group."""

import re
from collections import Counter
from datetime import timedelta
from html import unescape

import pytest
from django.conf import settings
from django.contrib.admin.models import LogEntry
from django.db import connection
from django.test import override_settings
from django.test.utils import CaptureQueriesContext

from celery_rmq_delay.contrib.django.models import FailureGroup, Operation, Tally, TaskRecord, TaskState
from tests.support.brokers.kinds import POSTGRES_TABLES
from tests.support.django import people, seed
from tests.support.django.admin_pages import BASE, EXHAUSTED, ask, confirm, messages_of
from tests.support.django.markup import faults

pytestmark = pytest.mark.usefixtures("tables", "shop")

GROUPS = f"{BASE}/failuregroup/"
HIDDEN = re.compile(r'<input type="hidden" name="([^"]+)" value="([^"]*)">')


def buttons(text, group):
    """Return (URL, name, value) of the buttons of a group by label."""
    found = re.findall(
        r'<button[^>]* formaction="([^"]+)" name="(\w+)" value="(\w+)"(?: aria-label="[^"]*")?>([^<]+)<', text
    )
    return {
        label: (url, name, value)
        for url, name, value, label in found
        if url.endswith((f"?group={group.pk}", f"/{group.pk}/mute/"))
    }


def press(client, page, group, label):
    """Send the form that a button of a group belongs to, as a browser does."""
    text = page.content.decode()
    url, name, value = buttons(text, group)[label]
    form = re.search(r'<form id="rmq-group-acts".*?</form>', text, re.S) or re.search(
        r'<form method="post" class="rmq-acts">.*?</form>', text, re.S
    )
    assert form is not None
    hidden = {key: unescape(each) for key, each in HIDDEN.findall(form.group()) if key != "csrfmiddlewaretoken"}
    return client.post(url, {**hidden, name: value})


def group_of(kind):
    return seed.failure_group(kind, seed.now())


def many(count):
    """Create groups with one open task each."""
    for number in range(count):
        group = FailureGroup.objects.create(
            fingerprint=f"{number:064x}", exception_type=f"E{number}", first_seen=seed.now(), last_seen=seed.now()
        )
        seed.record(number, failure_group=group)


def states(group):
    return Counter(TaskRecord.objects.filter(failure_group=group).values_list("state", flat=True))


@POSTGRES_TABLES
def test_groups_are_listed_by_open_tasks_then_by_when_they_were_last_seen(client):
    for kind, count in ((0, 2), (1, 5), (2, 2), (3, 0)):
        for number in range(count):
            seed.record(4 * number + kind)
        for number in range(count, 9):
            seed.record(4 * number + kind, TaskState.RECOVERED)
    FailureGroup.objects.filter(pk=group_of(0).pk).update(last_seen=seed.now() - timedelta(days=1))
    listed = [(group.pk, group.open_tasks) for group in client.get(GROUPS).context["cl"].result_list]
    assert listed == [(group_of(1).pk, 5), (group_of(2).pk, 2), (group_of(0).pk, 2)]
    everything = client.get(f"{GROUPS}?open=any").context["cl"].result_list
    assert [group.open_tasks for group in everything] == [5, 2, 2, 0]


@POSTGRES_TABLES
@pytest.mark.parametrize(
    ("label", "kind"), [("Requeue…", "requeue"), ("Requeue gradually…", "requeue"), ("Discard…", "discard")]
)
def test_a_button_of_a_row_selects_every_open_task_of_its_group_and_no_other(client, label, kind):
    for number in range(60):
        seed.message(seed.record(4 * number), seed.call(number))
    for number in range(60, 63):
        seed.record(4 * number, TaskState.DISCARDED)
    seed.record(1)
    group = group_of(0)
    with override_settings(RMQ_DELAY={**settings.RMQ_DELAY, "COUNT_CAP": 10}):
        asked = press(client, client.get(f"{GROUPS}?muted=0"), group, label)
        assert asked.status_code == 200
        assert faults(asked.content.decode()) == []
        assert (asked.context["affected"], asked.context["others"]) == (60, 0)
        assert states(group) == {"EXHAUSTED": 60, "DISCARDED": 3}
        assert asked.context["back"] == f"{GROUPS}?muted=0"
        answer = confirm(client, asked)
    operation = Operation.objects.get()
    selected = TaskRecord.objects.filter(operation_items__operation=operation)
    assert (operation.kind, operation.requested) == (kind, 60)
    assert answer["Location"] == f"{BASE}/operation/{operation.pk}/change/"
    assert {(task.failure_group_id, task.state) for task in selected} == {(group.pk, TaskState.EXHAUSTED)}


@POSTGRES_TABLES
def test_a_discard_from_the_list_or_the_page_of_a_group_returns_to_the_list_with_its_filters(client):
    for number in range(8):
        seed.record(number)
    group, other = group_of(3), group_of(2)
    answer = confirm(client, press(client, client.get(f"{GROUPS}?muted=0"), group, "Discard…"), reason="obsolete")
    assert (answer.status_code, answer["Location"]) == (302, f"{GROUPS}?muted=0")
    assert messages_of(answer) == ["2 discarded"]
    assert states(group) == {"DISCARDED": 2}
    assert TaskRecord.objects.filter(state=TaskState.EXHAUSTED).count() == 6
    assert group.pk not in [row.pk for row in client.get(GROUPS).context["cl"].result_list]
    page = client.get(f"{GROUPS}{other.pk}/change/")
    assert list(buttons(page.content.decode(), other)) == ["Requeue…", "Requeue gradually…", "Discard…"]
    assert confirm(client, press(client, page, other, "Discard…"))["Location"] == GROUPS
    shown = client.get(f"{GROUPS}{other.pk}/change/").content.decode()
    assert (states(other), "Open tasks: 0" in shown) == ({"DISCARDED": 2}, True)
    assert not buttons(shown, other)
    assert faults(shown) == []


def test_the_buttons_are_those_that_the_user_may_use(client):
    seed.record(1)
    group = group_of(1)
    views = ("view_failuregroup", "view_exhaustedtask")
    allowed = {
        (*views, "requeue_taskrecord"): ["Requeue…", "Requeue gradually…"],
        (*views, "discard_taskrecord"): ["Discard…"],
        (*views, "change_failuregroup"): ["Mute"],
        views: [],
        ("view_failuregroup", "requeue_taskrecord", "discard_taskrecord"): [],
    }
    for number, (permissions, labels) in enumerate(allowed.items()):
        page = people.staff(*permissions, name=f"user {number}").get(GROUPS).content.decode()
        assert list(buttons(page, group)) == labels, permissions
        assert (f"{EXHAUSTED}?group={group.pk}" in page) == ("view_exhaustedtask" in permissions)
    page = client.get(GROUPS).content.decode()
    named = [unescape(each) for each in re.findall(r'<button[^>]* formaction=[^>]* aria-label="([^"]*)"', page)]
    assert named == [f"{label}: {group}" for label in ("Requeue…", "Requeue gradually…", "Discard…", "Mute")]


@POSTGRES_TABLES
def test_the_open_tasks_of_several_ticked_groups_are_one_list(client):
    for number in range(12):
        seed.record(number)
    ticked = {"action": "show_tasks", "_selected_action": [str(group_of(kind).pk) for kind in (0, 2)]}
    url = client.post(GROUPS, ticked)["Location"]
    page = client.get(url)
    assert {task.failure_group_id for task in page.context["cl"].result_list} == {group_of(0).pk, group_of(2).pk}
    assert "<bdi>failure group: 2 groups</bdi>" in page.content.decode()
    asked = ask(client, "discard", address=url, select_across="1")
    assert asked.context["affected"] == 6
    FailureGroup.objects.filter(pk=group_of(0).pk).delete()
    assert client.get(url).status_code == 400
    assert client.post(url, {"action": "discard", "_selected_action": "0", "select_across": "1"}).status_code == 400
    assert client.get(f"{EXHAUSTED}?group={group_of(2).pk},x").status_code == 400
    assert people.staff("view_failuregroup").post(GROUPS, ticked).status_code == 403


@POSTGRES_TABLES
def test_one_click_mutes_one_group_and_returns_to_the_list(client):
    for number in range(4):
        seed.record(number)
    group = group_of(2)
    answer = press(client, client.get(f"{GROUPS}?open=any"), group, "Mute")
    assert answer["Location"] == f"{GROUPS}?open=any"
    assert messages_of(answer) == ["1 group muted."]
    assert list(FailureGroup.objects.filter(muted=True)) == [group]
    assert Operation.objects.get().details["groups"] == [group.pk]
    messages_of(press(client, client.get(GROUPS), group, "Unmute"))
    messages_of(client.post(GROUPS, {"action": "mute", "_selected_action": str(group.pk)}))
    assert list(FailureGroup.objects.filter(muted=True)) == [group]
    messages_of(client.post(GROUPS, {"action": "unmute", "_selected_action": str(group.pk)}))
    assert not FailureGroup.objects.filter(muted=True).exists()
    url = f"{GROUPS}{group.pk}/mute/"
    assert client.post(url, {"muted": "1"})["Location"] == f"{GROUPS}{group.pk}/change/"
    assert client.post(url).status_code == 400
    assert people.staff("view_failuregroup").post(url, {"muted": "0"}).status_code == 403


@POSTGRES_TABLES
@override_settings(RMQ_DELAY={"INLINE_LIMIT": 20})
def test_all_groups_of_a_list_are_muted_at_once_and_not_shown_if_a_url_cannot_name_them(client):
    many(101)
    ticked = {"select_across": "1", "_selected_action": "0"}
    answer = client.post(GROUPS, {"action": "show_tasks", **ticked})
    assert messages_of(answer) == ["Select at most 100 groups."]
    assert answer["Location"] == GROUPS
    assert messages_of(client.post(GROUPS, {"action": "mute", **ticked}))[-1] == "101 groups muted."
    assert FailureGroup.objects.filter(muted=True).count() == 101
    assert LogEntry.objects.filter(change_message="Muted").count() == 101


@POSTGRES_TABLES
def test_the_bars_of_a_row_are_its_own_exhausted_tasks_by_hour_also_as_text(client):
    for kind in (0, 1):
        seed.record(kind)
    now = seed.now().replace(minute=30, second=0, microsecond=0)
    # Hours ago: the counts of two queues. The last one is before the week that the text sums up.
    counted = {0: (2, 3), 1: (0, 4), 23: (7, 0), 24: (50, 0), 72: (100, 1), 170: (1000, 0)}
    for hours, counts in counted.items():
        for queue, count in zip(("payments", "mail"), counts, strict=True):
            Tally.objects.create(
                slot=now - timedelta(hours=hours), queue=queue, name="t", fingerprint=group_of(0).fingerprint,
                exhausted=count, parked=9,
            )  # fmt: skip
    rows = client.get(GROUPS).context["cl"].result_list
    exhausted = {group.pk: [hour.exhausted for hour in group.figures.hours] for group in rows}
    assert exhausted[group_of(0).pk] == [7, *[0] * 21, 4, 5]
    assert exhausted[group_of(1).pk] == [0] * 24
    page = client.get(GROUPS).content.decode()
    assert f"the present hour last: 7, {'0, ' * 21}4, 5" in page
    assert "167 in 7 days" in page
    assert page.count('<rect class="rmq-bar rmq-bar-exhausted"') >= 3
    assert faults(page) == []


@POSTGRES_TABLES
def test_the_list_of_groups_takes_the_same_few_queries_for_any_number_of_groups(client):
    many(60)
    client.get(GROUPS)
    with CaptureQueriesContext(connection) as queries:
        page = client.get(GROUPS)
    assert len(page.context["cl"].result_list) == 25
    assert len(queries) <= 12, [query["sql"][:120] for query in queries]


def test_a_note_on_a_group_is_shown_and_leaves_a_trace(client):
    seed.record(1)
    group = FailureGroup.objects.get()
    client.post(f"{GROUPS}{group.pk}/note/", {"note": "Ask the bank <b>"})
    group.refresh_from_db()
    assert group.note == "Ask the bank <b>"
    assert "Ask the bank &lt;b&gt;" in client.get(GROUPS).content.decode()
    operation = Operation.objects.get()
    assert (operation.kind, operation.details["after"]) == ("mute", "Ask the bank <b>")
    messages_of(client.post(GROUPS, {"action": "mute", "_selected_action": str(group.pk)}))
    history = client.get(f"{GROUPS}{group.pk}/history/").content.decode()
    assert "Muted" in history
    assert "Note changed" in history
