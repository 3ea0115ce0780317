"""The lists of the admin and their filters: what a browser gets; what is refused selects nothing."""

import re
from datetime import timedelta
from html import unescape
from itertools import product

import pytest
from django.contrib import admin
from django.db import connection
from django.test import override_settings
from django.test.utils import CaptureQueriesContext
from django.urls import path

from celery_rmq_delay.contrib.django.admin import register
from celery_rmq_delay.contrib.django.admin.lists import ExhaustedTaskAdmin
from celery_rmq_delay.contrib.django.models import (
    CollectorStatus,
    ExhaustedTask,
    FailureGroup,
    LookupValue,
    Operation,
    OperationItem,
    TaskRecord,
    TaskState,
)
from celery_rmq_delay.contrib.django.services.actors import Actor
from celery_rmq_delay.contrib.django.services.operations.requests import freeze
from tests.support.brokers.kinds import POSTGRES_TABLES
from tests.support.django import seed
from tests.support.django.admin_pages import BASE, EXHAUSTED, ask, confirm, messages_of
from tests.support.django.desk import states
from tests.support.django.markup import faults

pytestmark = pytest.mark.usefixtures("tables", "shop")

LISTS = ("parkedtask", "exhaustedtask", "taskrecord")
#: A list, its query string, and how many of the shop's rows it shows.
FILTERS = [
    ("parkedtask", "", 8),
    ("parkedtask", "?overdue=1", 3),
    ("parkedtask", "?queue=payments", 4),
    ("parkedtask", "?task=orders.tasks.send_receipt", 2),
    ("parkedtask", "?error=ValueError&queue=default", 2),
    ("parkedtask", "?attempts=3", 4),
    ("parkedtask", "?state=RUNNING", 0),
    ("parkedtask", "?requeued=0", 8),
    ("parkedtask", "?requeued=1", 0),
    ("exhaustedtask", "", 12),
    ("exhaustedtask", "?window=1h", 12),
    ("exhaustedtask", "?window=24h&queue=mail", 3),
    ("exhaustedtask", "?state=DISCARDED", 0),
    ("exhaustedtask", "?attempts=6", 0),
    ("exhaustedtask", "?q=orders.tasks", 9),
    ("exhaustedtask", "?q=httpx", 3),
    ("exhaustedtask", "?q=00000008-0000-4000-8000-000000000008", 1),
    ("exhaustedtask", "?q=00000009-0000-4000-8000-000000000009", 3),
    ("exhaustedtask", "?q=nothing", 0),
    ("exhaustedtask", "?worker=shop@node1", 6),
    ("exhaustedtask", "?worker=shop@node1&queue=payments", 3),
    ("parkedtask", "?worker=shop@node0", 4),
    ("taskrecord", "?worker=unknown", 0),
    ("taskrecord", "", 20),
    ("taskrecord", "?state=PARKED", 8),
    ("taskrecord", "?q=orders.tasks.charge", 10),
]


def rows(page):
    return list(page.context["cl"].result_list)


@POSTGRES_TABLES
def test_a_list_takes_at_most_12_queries_for_any_number_of_rows(client):
    seed.shop(parked=60, exhausted=60)
    for name in LISTS:
        client.get(f"{BASE}/{name}/")  # content types are looked up once for each process
        with CaptureQueriesContext(connection) as few:
            page = client.get(f"{BASE}/{name}/")
        assert len(rows(page)) == 50
        assert len(few) <= 12, [query["sql"][:120] for query in few]
        assert not any("DISTINCT" in query["sql"] for query in few)
        assert faults(page.content.decode()) == []


@POSTGRES_TABLES
def test_filters_and_search_keep_the_matching_rows(client):
    seed.shop(parked=8, exhausted=12)
    for name, query, expected in FILTERS:
        page = client.get(f"{BASE}/{name}/{query}")
        assert (page.status_code, len(rows(page))) == (200, expected), (name, query)
    assert "<bdi>shop@node1</bdi>" in client.get(f"{BASE}/exhaustedtask/").content.decode()


@POSTGRES_TABLES
def test_no_search_term_breaks_a_list(client):
    for name, term in product(LISTS, ("%F0%9F%92%A9", "'%22%3Cscript%3E", "a" * 3000, "%D8%A7")):
        page = client.get(f"{BASE}/{name}/?q={term}")
        assert page.status_code == 200, (name, term)
        assert faults(page.content.decode()) == [], (name, term)


@POSTGRES_TABLES
def test_sqlite_finds_a_list_below_the_cap_by_its_filters_and_not_by_its_order(client, settings):
    settings.RMQ_DELAY = {"COUNT_CAP": 10}
    seed.shop(parked=0, exhausted=30)
    TaskRecord.objects.filter(pk__in=TaskRecord.objects.order_by("changed_at")[10:13]).update(queue="rare")
    with CaptureQueriesContext(connection) as queries:
        page = client.get(f"{BASE}/taskrecord/?queue=rare")
    expected = TaskRecord.objects.filter(queue="rare").order_by("-changed_at", "-id")
    assert [each.pk for each in rows(page)] == [each.pk for each in expected]
    if connection.vendor == "sqlite":
        (query,) = (each["sql"] for each in queries if "ORDER BY +" in each["sql"])
        with connection.cursor() as cursor:
            cursor.execute(f"EXPLAIN QUERY PLAN {query}".replace("%", "%%"), [])
            plan = [row[-1] for row in cursor.fetchall()]
        assert any("rmq_delay_state_queue (state=? AND queue=?)" in step for step in plan), plan
    assert len(rows(client.get(f"{BASE}/taskrecord/?queue=rare&p=2"))) == 3  # of the first page


@POSTGRES_TABLES
def test_counts_stop_at_the_cap_and_all_rows_can_be_selected_wherever_it_is(client, settings):
    seed.shop(parked=0, exhausted=60)
    for cap in (10, 49, 50, 51):
        settings.RMQ_DELAY = {"COUNT_CAP": cap}
        page = client.get(f"{BASE}/exhaustedtask/")
        assert len(rows(page)) == 50, cap
        for text in ("Select all: more than {}", "more than {} exhausted tasks", '"rmq-value">more than {}</span></a>'):
            assert text.format(cap) in page.content.decode(), cap


@POSTGRES_TABLES
def test_the_page_of_a_task_takes_the_same_queries_for_any_number_of_rows_on_it(client):
    needed = []
    for count in (2, 16):
        task = seed.record(100 * count, root_id="root")
        for number in range(1, count):
            seed.record(100 * count + number, root_id="root")
            freeze("discard", TaskRecord.objects.filter(pk=task.pk), actor=Actor(None, "carol"))
        if count > 2:
            seed.attempts(task)
        client.get(f"{BASE}/exhaustedtask/{task.pk}/change/")
        with CaptureQueriesContext(connection) as queries:
            assert client.get(f"{BASE}/exhaustedtask/{task.pk}/change/").status_code == 200
        needed.append(len(queries))
    assert needed[0] == needed[1] <= 14


@POSTGRES_TABLES
@pytest.mark.parametrize("cap", [10, 10_000])
def test_a_list_with_three_filters_has_all_its_tasks_in_order_on_its_pages(client, settings, cap):
    settings.RMQ_DELAY = {"COUNT_CAP": cap}
    for number in range(130):
        due_at = None if number % 7 == 0 else seed.now() + timedelta(minutes=number % 5)
        queue = "mail" if number % 13 else "other"
        seed.record(4 * number, TaskState.PARKED, due_at=due_at, queue=queue, exception_type="ValueError")
    tasks = TaskRecord.objects.filter(state=TaskState.PARKED, queue="mail")
    some = tasks[0]
    query = f"queue=mail&task={some.name}&error={some.exception_type}"
    same = tasks.filter(name=some.name, exception_type=some.exception_type)
    for name, order in (("parkedtask", ("due_at", "id")), ("taskrecord", ("-changed_at", "-id"))):
        expected = list(same.order_by(*order).values_list("pk", flat=True))
        assert len(expected) > 50
        number_of_pages = 1 if cap == 10 else -(-len(expected) // 50)
        for number in range(1, number_of_pages + 1):
            page = client.get(f"{BASE}/{name}/?{query}&p={number}")
            assert [each.pk for each in rows(page)] == expected[50 * (number - 1) :][:50], (name, number)
            assert page.context["cl"].result_count == min(cap, len(expected))
        for gone in ("0", "-1", "9", "9" * 30, "x"):
            assert [each.pk for each in rows(client.get(f"{BASE}/{name}/?{query}&p={gone}"))] == expected[:50], gone
    assert rows(client.get(f"{BASE}/parkedtask/?{query}1")) == []
    assert client.get(f"{BASE}/parkedtask/?{query}&state=NONE").status_code == 400


@POSTGRES_TABLES
def test_a_list_with_filters_that_no_index_has_together_is_read_once(client):
    seed.shop(parked=20, exhausted=0)
    some = TaskRecord.objects.all()[0]
    three = f"queue={some.queue}&task={some.name}&error={some.exception_type}"
    for query, condition in ((three, f"= '{some.exception_type}'"), ("window=24h", '"parked_at" >= ')):
        with CaptureQueriesContext(connection) as queries:
            page = client.get(f"{BASE}/parkedtask/?{query}")
        assert rows(page)
        assert len([each for each in queries if condition in each["sql"]]) == 1, query


@POSTGRES_TABLES
@pytest.mark.parametrize("cap", [10, 10_000])
def test_the_tasks_of_an_operation_are_read_once_for_their_count_and_order(client, settings, cap):
    settings.RMQ_DELAY = {"COUNT_CAP": cap}
    seed.shop(parked=0, exhausted=130)
    operation = Operation.objects.create(kind=Operation.Kind.REQUEUE, actor="bob", requested=110)
    mine = list(TaskRecord.objects.order_by("pk")[10:120])
    OperationItem.objects.bulk_create(
        OperationItem(operation=operation, record=task, position=place, outcome="OK") for place, task in enumerate(mine)
    )
    expected = [task.pk for task in sorted(mine, key=lambda task: (task.exhausted_at, task.pk), reverse=True)]
    for number in (1,) if cap == 10 else (1, 2, 3):
        with CaptureQueriesContext(connection) as queries:
            page = client.get(f"{BASE}/exhaustedtask/?operation={operation.pk}&p={number}")
        assert [each.pk for each in rows(page)] == expected[50 * (number - 1) : 50 * number]
        assert page.context["cl"].result_count == min(cap, 110)
        assert len([each for each in queries if "operationitem" in each["sql"]]) == 1
    gone = client.get(f"{BASE}/exhaustedtask/?operation={operation.pk}&p=9")
    assert [each.pk for each in rows(gone)] == expected[:50]


@POSTGRES_TABLES
def test_each_tile_leads_to_exactly_the_tasks_that_it_counts(client):
    seed.shop(parked=8, exhausted=12)
    long_ago = seed.now() - timedelta(days=3)
    oldest = seed.record(100, exhausted_at=long_ago - timedelta(days=1))
    seed.record(101, exhausted_at=long_ago)
    seed.record(102, TaskState.UNKNOWN)
    seed.record(103, TaskState.DISCARDED)
    seed.record(104, TaskState.PARKED, due_at=seed.now() + timedelta(minutes=2))
    seed.record(105, TaskState.RUNNING, due_at=seed.now() + timedelta(minutes=2))
    page = client.get(f"{BASE}/taskrecord/")
    chart = page.context["summary"]["chart"]
    assert chart.table.rows.count("<tr>") == 24
    assert all(int(key.value.replace(",", "")) > 0 for key in chart.keys)
    assert "<table>" in page.content.decode()
    tiles = {tile.label: tile for tile in page.context["summary"]["tiles"]}
    shown = {label: str(tile.value) for label, tile in tiles.items()}
    oldest_url = tiles.pop("Oldest open").url
    assert oldest_url == f"{BASE}/exhaustedtask/{oldest.pk}/change/"
    assert client.get(oldest_url).status_code == 200
    for label, tile in tiles.items():
        assert len(rows(client.get(tile.url))) == int(shown[label]), label
    assert shown == shown | {"Parked": "9", "Due in 5 min": "1", "Overdue": "3", "Outcome unknown": "1"}
    assert shown == shown | {"Exhausted, open": "14", "Open, exhausted in 24 h": "12"}


def test_a_page_shows_when_a_task_is_purged(client, settings):
    seed.record(1, changed_at=seed.now() + timedelta(hours=1))  # more than 3 days are left, however slow the page
    settings.RMQ_DELAY = {"KEEP_EXHAUSTED_DAYS": 3, "KEEP_DISCARDED_DAYS": None}
    assert "in 3 days</time>" in client.get(f"{BASE}/exhaustedtask/").content.decode()
    TaskRecord.objects.update(state=TaskState.DISCARDED)
    assert "in 3 days" not in client.get(f"{BASE}/exhaustedtask/?state=DISCARDED").content.decode()


def test_pages_show_that_no_collector_runs(client):
    assert "No collector is running, so these pages stay" in client.get(f"{BASE}/parkedtask/").content.decode()
    seed.shop(parked=0, exhausted=0)
    assert "No collector" not in client.get(f"{BASE}/parkedtask/").content.decode()
    CollectorStatus.objects.update(heartbeat_at="2020-01-01T00:00:00Z")
    assert "No collector is running" in client.get(f"{BASE}/parkedtask/").content.decode()


# -- filters -------------------------------------------------------------------------------------------------------

#: Query strings that no list can apply, and what the message quotes.
REFUSED = {
    "group=abc": "group='abc'",
    "group=": "group=''",
    "group=999999": "group='999999'",
    "state=NOPE": "state='NOPE'",
    "state=": "state=''",
    "requeued=x": "requeued='x'",
    "window=forever": "window='forever'",
    "attempts=0": "attempts='0'",
    "queue=a%00b": "queue='a\\x00b'",
    "q=a%00b": "q='a\\x00b'",
    "operation=x": "operation='x'",
    "operation=999999": "operation='999999'",
    "operation=": "operation=''",
    "outcome=OK": "outcome='OK'",
    "exception_message__icontains=x": "exception_message__icontains",
    "id__in=1,2": "id__in",
    "no_such_parameter=1": "no_such_parameter",
    "o=3": "o='3'",
}


class ProjectFilter(admin.SimpleListFilter):
    """A filter of a project's own."""

    title, parameter_name = "size", "size"

    def lookups(self, request, model_admin):
        return [("odd", "odd")]

    def queryset(self, request, queryset):
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


def test_a_subclass_adds_filters_and_dates_whose_links_work(client):
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
def test_a_refused_filter_shows_no_rows_and_a_message_that_names_it(client):
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
def test_an_action_on_a_list_with_a_refused_filter_acts_on_nothing(client, across):
    seed.shop(parked=0, exhausted=4)
    sent = {"action": "discard", "_selected_action": "1", "select_across": across, "index": "0"}
    confirmed = {**sent, "confirm": "1", "draft": "1"}
    for query in REFUSED:
        assert client.post(f"{EXHAUSTED}?{query}", sent).status_code == 400, query
        assert client.post(f"{EXHAUSTED}?{query}", confirmed).status_code == 400, query
    assert states() == {"EXHAUSTED": 4}
    assert not Operation.objects.exists()


def test_a_filter_without_choices_is_applied_all_the_same(client):
    seed.record(1)
    assert rows(client.get(f"{EXHAUSTED}?queue=")) == []


def test_the_other_lists_refuse_filters_as_well(client):
    seed.record(1)
    for name, query in (
        ("failuregroup", "open=x"), ("failuregroup", "muted=2"), ("operation", "kind=x"), ("operation", "state=x"),
        ("parkedtask", "overdue=2"), ("parkedtask", "due=x"),
    ):  # fmt: skip
        page = client.get(f"{BASE}/{name}/?{query}")
        assert (page.status_code, rows(page)) == (400, []), name
    chosen = {"action": "mute", "_selected_action": "0", "select_across": "1"}
    assert client.post(f"{BASE}/failuregroup/?muted=2", chosen).status_code == 400
    assert not FailureGroup.objects.filter(muted=True).exists()


def test_an_action_from_a_page_that_the_list_no_longer_has_is_not_lost(client):
    seed.shop(parked=0, exhausted=60)
    chosen = [str(task.pk) for task in rows(client.get(f"{EXHAUSTED}?p=2"))]
    TaskRecord.objects.exclude(pk__in=chosen).update(state="DISCARDED")
    page = client.post(f"{EXHAUSTED}?p=2", {"action": "discard", "_selected_action": chosen})
    assert page.status_code == 200
    assert page.context["affected"] == 10
    assert messages_of(page) == []


@POSTGRES_TABLES
def test_a_value_can_be_typed_where_there_are_more_values_than_choices(client):
    seed.shop(parked=0, exhausted=4)
    assert 'name="worker"' not in client.get(EXHAUSTED).content.decode()
    LookupValue.objects.bulk_create(LookupValue(kind="worker", value=f"pod-{number:03}") for number in range(300))
    page = client.get(f"{EXHAUSTED}?queue=gone&p=1").content.decode()
    assert page.count("<bdi>pod-") == 200
    assert "<bdi>gone</bdi>" in page, "the chosen value, though it is unknown"
    assert "<bdi>payments</bdi>" in page
    form = re.search(r'<form method="get" class="rmq-other-value">.*?</form>', page, re.S)
    assert form is not None
    assert re.findall(r'name="(\w+)"', form.group()) == ["worker", "queue"]
    assert faults(page) == []


# -- operation -----------------------------------------------------------------------------------------------------


def operated():
    """Return an operation that has discarded two tasks, skipped one, and failed for one; two others are in no one."""
    tasks = [seed.record(number) for number in range(6)]
    operation = Operation.objects.create(kind="discard", actor="alice", requested=4)
    for position, outcome in enumerate(("OK", "OK", "SKIPPED", "FAILED")):
        OperationItem.objects.create(operation=operation, record=tasks[position], position=position, outcome=outcome)
        if outcome == "OK":
            TaskRecord.objects.filter(pk=tasks[position].pk).update(state=TaskState.DISCARDED)
    return operation


@POSTGRES_TABLES
def test_the_tasks_of_an_operation_are_listed_in_any_state_by_outcome(client):
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


def test_an_operation_is_shown_as_a_chosen_filter_and_not_offered_as_a_choice(client):
    number = operated().pk
    page = client.get(f"{BASE}/taskrecord/?operation={number}&outcome=SKIPPED").content.decode()
    assert f"<bdi>Operation {number}: Skipped</bdi>" in page
    assert "By operation" not in page
    assert f"<bdi>Operation {number}</bdi>" in client.get(f"{BASE}/taskrecord/?operation={number}").content.decode()
    assert "Operation" not in [spec.title for spec in client.get(EXHAUSTED).context["cl"].filter_specs]


@POSTGRES_TABLES
def test_an_unknown_outcome_selects_nothing(client):
    number = operated().pk
    for outcome in ("NOPE", "a%00b", ""):
        query = f"operation={number}&outcome={outcome}"
        page = client.get(f"{EXHAUSTED}?{query}")
        assert (page.status_code, rows(page)) == (400, []), query
        assert faults(page.content.decode()) == [], query
        sent = {"action": "discard", "_selected_action": "0", "select_across": "1"}
        assert client.post(f"{EXHAUSTED}?{query}", sent).status_code == 400, query


@POSTGRES_TABLES
def test_an_action_on_the_tasks_of_an_operation_asks_for_these_only(client):
    number = operated().pk
    page = ask(client, "restore", address=f"{EXHAUSTED}?operation={number}", select_across="1")
    assert (page.context["affected"], page.context["others"]) == (2, 2)
    messages_of(confirm(client, page))
    assert states() == {"EXHAUSTED": 6}
