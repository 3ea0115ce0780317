"""Filters of the lists: what is refused selects nothing, and what an operation or a worker selects."""

from __future__ import annotations

import re
from html import unescape
from typing import Any

import pytest
from django.contrib import admin
from django.test import Client, override_settings
from django.urls import path

from celery_rmq_delay.contrib.django.admin import register
from celery_rmq_delay.contrib.django.admin.lists import ExhaustedTaskAdmin
from celery_rmq_delay.contrib.django.models import (
    ExhaustedTask,
    FailureGroup,
    LookupValue,
    Operation,
    OperationItem,
    TaskRecord,
    TaskState,
)
from tests.support.brokers.kinds import POSTGRES_TABLES
from tests.support.django import seed
from tests.support.django.admin_pages import BASE, EXHAUSTED, ask, confirm, messages_of
from tests.support.django.desk import states
from tests.support.django.markup import faults

pytestmark = pytest.mark.usefixtures("tables", "shop")

#: Query strings that no list can apply, and what the message quotes.
REFUSED = {
    "group=abc": "group='abc'",
    "group=": "group=''",
    "group=999999": "group='999999'",
    "state=NOPE": "state='NOPE'",
    "window=forever": "window='forever'",
    "attempts=0": "attempts='0'",
    "queue=a%00b": "queue='a\\x00b'",
    "q=a%00b": "q='a\\x00b'",
    "operation=x": "operation",
    "exception_message__icontains=x": "exception_message__icontains",
    "id__in=1,2": "id__in",
    "no_such_parameter=1": "no_such_parameter",
    "o=3": "o='3'",
}


def rows(page: Any) -> list[Any]:
    return list(page.context["cl"].result_list)


class ProjectFilter(admin.SimpleListFilter):
    """A filter of a project's own."""

    title, parameter_name = "size", "size"

    def lookups(self, request: Any, model_admin: Any) -> list[tuple[str, str]]:
        return [("odd", "odd")]

    def queryset(self, request: Any, queryset: Any) -> Any:
        return queryset.filter(attempt=1) if self.value() == "odd" else queryset


class ProjectAdmin(ExhaustedTaskAdmin):
    """A project's own page of the exhausted tasks."""

    date_hierarchy = "exhausted_at"
    list_filter = (
        *ExhaustedTaskAdmin.list_filter,
        ProjectFilter,
        "routing_key",
        ("exchange", admin.AllValuesFieldListFilter),
    )


def test_a_subclass_adds_filters_and_dates_whose_links_work(client: Client) -> None:
    seed.shop(parked=0, exhausted=4)
    site = admin.AdminSite()
    site.register(ExhaustedTask, ProjectAdmin)
    register(site)
    with override_settings(ROOT_URLCONF=(path("admin/", site.urls),)):
        own = r'href="(\?(size|routing_key|exchange|exhausted_at__day)[=&][^"]*)"'
        links = dict(re.findall(own, client.get(EXHAUSTED).content.decode()))
        assert {*links.values()} == {"size", "routing_key", "exchange", "exhausted_at__day"}
        for link in links:
            page = client.get(EXHAUSTED + unescape(link))
            assert page.status_code == 200, link
            assert faults(page.content.decode()) == [], link
        for other in ("routing_key__contains=a", "__year=2026", "__exact=a"):
            assert client.get(f"{EXHAUSTED}?{other}").status_code == 400, other


@POSTGRES_TABLES
def test_a_refused_filter_shows_no_rows_and_a_message_that_names_it(client: Client) -> None:
    seed.shop(parked=0, exhausted=8)
    for query, named in REFUSED.items():
        page = client.get(f"{EXHAUSTED}?queue=payments&{query}")
        assert (page.status_code, rows(page), page.context["cl"].result_count) == (400, [], 0), query
        *_, message = map(str, page.context["messages"])
        assert named in unescape(message), query
        assert "No rows are shown" in message
        assert faults(page.content.decode()) == [], query


@POSTGRES_TABLES
@pytest.mark.parametrize("across", ["1", "0"])
def test_an_action_on_a_list_with_a_refused_filter_acts_on_nothing(client: Client, across: str) -> None:
    seed.shop(parked=0, exhausted=4)
    sent = {"action": "discard", "_selected_action": "1", "select_across": across, "index": "0"}
    confirmed = {**sent, "confirm": "1", "draft": "1"}
    for query in REFUSED:
        assert client.post(f"{EXHAUSTED}?{query}", sent).status_code == 400, query
        assert client.post(f"{EXHAUSTED}?{query}", confirmed).status_code == 400, query
    assert states() == {"EXHAUSTED": 4}
    assert not Operation.objects.exists()


def test_a_filter_without_choices_is_applied_all_the_same(client: Client) -> None:
    seed.record(1)
    assert rows(client.get(f"{EXHAUSTED}?queue=")) == []


def test_the_lists_of_groups_and_operations_refuse_filters_as_well(client: Client) -> None:
    seed.record(1)
    for name, query in (("failuregroup", "open=x"), ("failuregroup", "muted=2"), ("operation", "kind=x")):
        page = client.get(f"{BASE}/{name}/?{query}")
        assert (page.status_code, rows(page)) == (400, []), name
    chosen = {"action": "mute", "_selected_action": "0", "select_across": "1"}
    assert client.post(f"{BASE}/failuregroup/?muted=2", chosen).status_code == 400
    assert not FailureGroup.objects.filter(muted=True).exists()


@POSTGRES_TABLES
def test_a_page_that_the_list_no_longer_has_shows_the_first_page_of_the_same_filter(client: Client) -> None:
    seed.shop(parked=0, exhausted=120)
    for number in ("9", "0", "-1", "x"):
        page = client.get(f"{EXHAUSTED}?error=ValueError&p={number}")
        assert (page.status_code, len(rows(page)), page.context["cl"].result_count) == (200, 30, 30), number
    page = client.get(f"{EXHAUSTED}?p=9")
    assert (page.status_code, len(rows(page))) == (200, 50)
    assert faults(page.content.decode()) == []


def test_an_action_from_a_page_that_the_list_no_longer_has_is_not_lost(client: Client) -> None:
    seed.shop(parked=0, exhausted=60)
    chosen = [str(task.pk) for task in rows(client.get(f"{EXHAUSTED}?p=2"))]
    TaskRecord.objects.exclude(pk__in=chosen).update(state="DISCARDED")
    page = client.post(f"{EXHAUSTED}?p=2", {"action": "discard", "_selected_action": chosen})
    assert page.status_code == 200
    assert page.context["affected"] == 10
    assert messages_of(page) == []


# -- worker --------------------------------------------------------------------------------------------------------


@POSTGRES_TABLES
def test_tasks_are_filtered_by_the_worker_of_their_last_attempt(client: Client) -> None:
    seed.shop(parked=8, exhausted=8)
    for name, query, expected in (
        ("exhaustedtask", "?worker=shop@node1", 4),
        ("exhaustedtask", "?worker=shop@node1&queue=payments", 2),
        ("parkedtask", "?worker=shop@node0", 4),
        ("taskrecord", "?worker=shop@node0", 8),
        ("taskrecord", "?worker=unknown", 0),
    ):
        page = client.get(f"{BASE}/{name}/{query}")
        assert (page.status_code, len(rows(page))) == (200, expected), (name, query)
    assert "<bdi>shop@node1</bdi>" in client.get(EXHAUSTED).content.decode()


@POSTGRES_TABLES
def test_a_value_can_be_typed_where_there_are_more_values_than_choices(client: Client) -> None:
    seed.shop(parked=0, exhausted=4)
    assert 'name="worker"' not in client.get(EXHAUSTED).content.decode()
    LookupValue.objects.bulk_create(LookupValue(kind="worker", value=f"pod-{number:03}") for number in range(300))
    page = client.get(f"{EXHAUSTED}?queue=payments&p=1").content.decode()
    assert page.count("<bdi>pod-") == 200
    form = re.search(r'<form method="get" class="rmq-other-value">.*?</form>', page, re.S)
    assert form is not None
    assert re.findall(r'name="(\w+)"', form.group()) == ["worker", "queue"]
    assert faults(page) == []


# -- operation -----------------------------------------------------------------------------------------------------


def operated() -> Operation:
    """Return an operation that has discarded two tasks, skipped one, and failed for one; two others are in no one."""
    tasks = [seed.record(number) for number in range(6)]
    operation = Operation.objects.create(kind="discard", actor="alice", requested=4)
    for position, outcome in enumerate(("OK", "OK", "SKIPPED", "FAILED")):
        OperationItem.objects.create(operation=operation, record=tasks[position], position=position, outcome=outcome)
        if outcome == "OK":
            TaskRecord.objects.filter(pk=tasks[position].pk).update(state=TaskState.DISCARDED)
    return operation


@POSTGRES_TABLES
def test_the_tasks_of_an_operation_are_listed_in_any_state_by_outcome(client: Client) -> None:
    number = operated().pk
    for name, query, expected in (
        ("taskrecord", "", {0, 1, 2, 3}),
        ("exhaustedtask", "", {0, 1, 2, 3}),
        ("exhaustedtask", "&state=EXHAUSTED", {2, 3}),
        ("taskrecord", "&outcome=OK", {0, 1}),
        ("taskrecord", "&outcome=FAILED", {3}),
        ("taskrecord", "&outcome=UNKNOWN", set()),
        ("taskrecord", "&outcome=rest", {3}),
        ("exhaustedtask", "&outcome=OK&queue=payments&worker=shop@node1", {1}),
        ("parkedtask", "", set()),
    ):
        page = client.get(f"{BASE}/{name}/?operation={number}{query}")
        found = {int(task.task_id[:8], 16) for task in rows(page)}
        assert (page.status_code, found) == (200, expected), (name, query)
        assert faults(page.content.decode()) == []


def test_an_operation_is_shown_as_a_chosen_filter_and_not_offered_as_a_choice(client: Client) -> None:
    number = operated().pk
    page = client.get(f"{BASE}/taskrecord/?operation={number}&outcome=SKIPPED").content.decode()
    assert f"<bdi>Operation {number}: Skipped</bdi>" in page
    assert "By operation" not in page
    assert f"<bdi>Operation {number}</bdi>" in client.get(f"{BASE}/taskrecord/?operation={number}").content.decode()
    assert "Operation" not in [spec.title for spec in client.get(EXHAUSTED).context["cl"].filter_specs]


@POSTGRES_TABLES
def test_an_unknown_operation_or_outcome_selects_nothing(client: Client) -> None:
    number = operated().pk
    for query in (
        "operation=999999",
        f"operation={number}&outcome=NOPE",
        f"operation={number}&outcome=a%00b",
        f"operation={number}&outcome=",
        "outcome=OK",
        "operation=",
    ):
        page = client.get(f"{EXHAUSTED}?{query}")
        assert (page.status_code, rows(page)) == (400, []), query
        assert faults(page.content.decode()) == [], query
        sent = {"action": "discard", "_selected_action": "0", "select_across": "1"}
        assert client.post(f"{EXHAUSTED}?{query}", sent).status_code == 400, query


@POSTGRES_TABLES
def test_an_action_on_the_tasks_of_an_operation_asks_for_these_only(client: Client) -> None:
    number = operated().pk
    page = ask(client, "restore", address=f"{EXHAUSTED}?operation={number}", select_across="1")
    assert (page.context["affected"], page.context["others"]) == (2, 2)
    messages_of(confirm(client, page))
    assert states() == {"EXHAUSTED": 6}
