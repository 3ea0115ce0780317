"""The lists of the admin, as a browser gets them."""

from __future__ import annotations

from datetime import timedelta
from itertools import product
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from celery_rmq_delay.contrib.django.models import (
    CollectorStatus,
    FailureGroup,
    LookupValue,
    Operation,
    OperationItem,
    TaskRecord,
    TaskState,
)
from tests.support.brokers.kinds import POSTGRES_TABLES
from tests.support.django import seed
from tests.support.django.admin_pages import BASE
from tests.support.django.markup import faults

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
    ("taskrecord", "", 20),
    ("taskrecord", "?state=PARKED", 8),
    ("taskrecord", "?q=orders.tasks.charge", 10),
]


def rows(page: Any) -> list[TaskRecord]:
    return list(page.context["cl"].result_list)


@POSTGRES_TABLES
@pytest.mark.parametrize("name", LISTS)
def test_a_list_takes_at_most_12_queries_for_any_number_of_rows(client: Client, name: str) -> None:
    seed.shop(parked=60, exhausted=60)
    client.get(f"{BASE}/{name}/")  # content types are looked up once for each process
    with CaptureQueriesContext(connection) as few:
        page = client.get(f"{BASE}/{name}/")
    assert len(rows(page)) == 50
    assert len(few) <= 12, [query["sql"][:120] for query in few]
    assert not any("DISTINCT" in query["sql"] for query in few)
    assert faults(page.content.decode()) == []


@POSTGRES_TABLES
def test_filters_and_search_keep_the_matching_rows(client: Client) -> None:
    seed.shop(parked=8, exhausted=12)
    for name, query, expected in FILTERS:
        page = client.get(f"{BASE}/{name}/{query}")
        assert (page.status_code, len(rows(page))) == (200, expected), (name, query)


def test_a_group_filters_its_tasks(client: Client) -> None:
    seed.shop(parked=0, exhausted=12)
    group = FailureGroup.objects.get(exception_type="ValueError")
    page = client.get(f"{BASE}/exhaustedtask/?group={group.pk}")
    assert {each.exception_type for each in rows(page)} == {"ValueError"}


@POSTGRES_TABLES
def test_a_filter_that_makes_no_sense_shows_nothing_instead_of_everything(client: Client) -> None:
    seed.record(1, TaskState.PARKED)
    choices = ("state=NONE", "window=forever", "overdue=2", "requeued=x")
    for query in (*choices, "state=", "attempts=0", "attempts=many", "group=x", "queue=a%00b"):
        page = client.get(f"{BASE}/parkedtask/?{query}")
        assert (page.status_code, rows(page)) == (400, []), query


@pytest.mark.parametrize("lookup", ["exception_message__icontains=x", "id__in=1,2", "kwargs_preview=x"])
def test_a_search_through_the_whole_table_is_refused(client: Client, lookup: str) -> None:
    assert client.get(f"{BASE}/exhaustedtask/?{lookup}").status_code == 400


def test_sorting_by_a_column_without_an_index_is_not_offered(client: Client) -> None:
    seed.shop(parked=3, exhausted=0)
    page = client.get(f"{BASE}/parkedtask/?o=-2.1")
    assert [each.due_at for each in rows(page)] == sorted(each.due_at for each in rows(page) if each.due_at)


@POSTGRES_TABLES
def test_no_search_term_breaks_a_list(client: Client) -> None:
    for name, term in product(LISTS, ("%F0%9F%92%A9", "'%22%3Cscript%3E", "a" * 3000, "%D8%A7")):
        page = client.get(f"{BASE}/{name}/?q={term}")
        assert page.status_code == 200, (name, term)
        assert faults(page.content.decode()) == [], (name, term)


@POSTGRES_TABLES
def test_counts_stop_at_the_cap_and_show_it(client: Client, settings: Any) -> None:
    settings.RMQ_DELAY = {"COUNT_CAP": 10}
    seed.shop(parked=0, exhausted=12)
    page = client.get(f"{BASE}/exhaustedtask/").content.decode()
    assert "more than 10 exhausted tasks" in page
    assert '<span class="rmq-value">more than 10</span></a>' in page  # the tile


@POSTGRES_TABLES
def test_sqlite_finds_a_list_below_the_cap_by_its_filters_and_not_by_its_order(client: Client, settings: Any) -> None:
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
@pytest.mark.parametrize("cap", [10, 49, 50, 51])
def test_all_rows_can_be_selected_wherever_the_cap_is(client: Client, settings: Any, cap: int) -> None:
    settings.RMQ_DELAY = {"COUNT_CAP": cap}
    seed.shop(parked=0, exhausted=60)
    assert f"Select all: more than {cap}" in client.get(f"{BASE}/exhaustedtask/").content.decode()


@POSTGRES_TABLES
def test_the_page_of_a_task_takes_the_same_queries_for_any_number_of_related_tasks(client: Client) -> None:
    needed = []
    for count in (2, 16):
        task = seed.record(100 * count, root_id="root")
        for number in range(1, count):
            seed.record(100 * count + number, root_id="root")
        client.get(f"{BASE}/exhaustedtask/{task.pk}/change/")
        with CaptureQueriesContext(connection) as queries:
            assert client.get(f"{BASE}/exhaustedtask/{task.pk}/change/").status_code == 200
        needed.append(len(queries))
    assert needed[0] == needed[1]


@POSTGRES_TABLES
def test_a_page_has_50_rows_where_the_cap_is_lower(client: Client, settings: Any) -> None:
    settings.RMQ_DELAY = {"COUNT_CAP": 10}
    seed.shop(parked=0, exhausted=60)
    assert len(rows(client.get(f"{BASE}/exhaustedtask/"))) == 50


@POSTGRES_TABLES
@pytest.mark.parametrize("cap", [10, 10_000])
def test_a_list_with_three_filters_has_all_its_tasks_in_order_on_its_pages(
    client: Client, settings: Any, cap: int
) -> None:
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
        for gone in ("0", "-1", "9", "9" * 30):
            assert [each.pk for each in rows(client.get(f"{BASE}/{name}/?{query}&p={gone}"))] == expected[:50], gone
    assert rows(client.get(f"{BASE}/parkedtask/?{query}1")) == []
    assert client.get(f"{BASE}/parkedtask/?{query}&state=NONE").status_code == 400


@POSTGRES_TABLES
def test_a_list_with_filters_that_no_index_has_together_is_read_once(client: Client) -> None:
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
def test_the_tasks_of_an_operation_are_read_once_for_their_count_and_order(
    client: Client, settings: Any, cap: int
) -> None:
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
def test_tiles_and_chart_agree_with_the_tables(client: Client) -> None:
    seed.shop(parked=8, exhausted=12)
    page = client.get(f"{BASE}/exhaustedtask/")
    tiles = {tile.label: str(tile.value) for tile in page.context["summary"]["tiles"]}
    assert (tiles["Parked"], tiles["Overdue"], tiles["Exhausted, open"]) == ("8", "3", "12")
    chart = page.context["summary"]["chart"]
    assert chart.table.rows.count("<tr>") == 24
    parked, exhausted = (key.value for key in chart.keys)
    assert int(parked.replace(",", "")) > 0
    assert int(exhausted.replace(",", "")) > 0
    assert "<table>" in page.content.decode()


@POSTGRES_TABLES
def test_each_tile_leads_to_exactly_the_tasks_that_it_counts(client: Client) -> None:
    seed.shop(parked=8, exhausted=12)
    long_ago = seed.now() - timedelta(days=3)
    oldest = seed.record(100, exhausted_at=long_ago - timedelta(days=1))
    seed.record(101, exhausted_at=long_ago)
    seed.record(102, TaskState.UNKNOWN)
    seed.record(103, TaskState.DISCARDED)
    seed.record(104, TaskState.PARKED, due_at=seed.now() + timedelta(minutes=2))
    seed.record(105, TaskState.RUNNING, due_at=seed.now() + timedelta(minutes=2))
    tiles = {tile.label: tile for tile in client.get(f"{BASE}/taskrecord/").context["summary"]["tiles"]}
    shown = {label: str(tile.value) for label, tile in tiles.items()}
    oldest_url = tiles.pop("Oldest open").url
    assert oldest_url == f"{BASE}/exhaustedtask/{oldest.pk}/change/"
    assert client.get(oldest_url).status_code == 200
    for label, tile in tiles.items():
        assert len(rows(client.get(tile.url))) == int(shown[label]), label
    assert shown == shown | {"Parked": "9", "Due in 5 min": "1", "Overdue": "3", "Outcome unknown": "1"}
    assert shown == shown | {"Exhausted, open": "14", "Open, exhausted in 24 h": "12"}


def test_a_page_shows_when_a_task_is_purged(client: Client, settings: Any) -> None:
    seed.record(1, changed_at=seed.now() + timedelta(hours=1))  # more than 3 days are left, however slow the page
    settings.RMQ_DELAY = {"KEEP_EXHAUSTED_DAYS": 3, "KEEP_DISCARDED_DAYS": None}
    assert "in 3 days</time>" in client.get(f"{BASE}/exhaustedtask/").content.decode()
    TaskRecord.objects.update(state=TaskState.DISCARDED)
    assert "in 3 days" not in client.get(f"{BASE}/exhaustedtask/?state=DISCARDED").content.decode()


def test_a_task_of_unknown_outcome_has_a_tile(client: Client) -> None:
    seed.record(1, TaskState.UNKNOWN)
    page = client.get(f"{BASE}/exhaustedtask/")
    assert "Outcome unknown" in [tile.label for tile in page.context["summary"]["tiles"]]


def test_pages_show_that_no_collector_runs(client: Client) -> None:
    assert "No collector is running, so these pages stay" in client.get(f"{BASE}/parkedtask/").content.decode()
    seed.shop(parked=0, exhausted=0)
    assert "No collector" not in client.get(f"{BASE}/parkedtask/").content.decode()
    CollectorStatus.objects.update(heartbeat_at="2020-01-01T00:00:00Z")
    assert "No collector is running" in client.get(f"{BASE}/parkedtask/").content.decode()


def test_the_value_of_a_filter_is_offered_even_if_it_is_unknown(client: Client) -> None:
    LookupValue.objects.create(kind="queue", value="payments")
    page = client.get(f"{BASE}/parkedtask/?queue=gone").content.decode()
    assert "<bdi>gone</bdi>" in page
    assert "<bdi>payments</bdi>" in page


def test_rows_that_share_a_task_id_are_listed_both_and_linked(client: Client) -> None:
    first, second = seed.record(0), seed.record(0, life="0123abcd")
    found = rows(client.get(f"{BASE}/exhaustedtask/?q={first.task_id}"))
    assert {each.pk for each in found} == {first.pk, second.pk}
    page = client.get(f"{BASE}/exhaustedtask/{first.pk}/change/").content.decode()
    assert "Same task id" in page
    assert f"/exhaustedtask/{second.pk}/change/" in page
    assert "Same task id" not in client.get(f"{BASE}/exhaustedtask/{seed.record(1).pk}/change/").content.decode()
