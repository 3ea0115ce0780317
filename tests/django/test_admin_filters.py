"""Filters of the lists: what is refused selects nothing, and what an operation or a worker selects."""

from __future__ import annotations

from html import unescape
from typing import Any

import pytest
from django.test import Client

from celery_rmq_delay.contrib.django.models import FailureGroup, Operation
from tests.support.django import seed
from tests.support.django.admin_pages import BASE, EXHAUSTED, messages_of
from tests.support.django.databases import ON_BOTH
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
}


def rows(page: Any) -> list[Any]:
    return list(page.context["cl"].result_list)


@ON_BOTH
def test_a_refused_filter_shows_no_rows_and_a_message_that_names_it(client: Client) -> None:
    seed.shop(parked=0, exhausted=8)
    for query, named in REFUSED.items():
        page = client.get(f"{EXHAUSTED}?queue=payments&{query}")
        assert (page.status_code, rows(page), page.context["cl"].result_count) == (400, [], 0), query
        *_, message = map(str, page.context["messages"])
        assert named in unescape(message), query
        assert "No rows are shown" in message
        assert faults(page.content.decode()) == [], query


@ON_BOTH
@pytest.mark.parametrize("across", ["1", "0"])
def test_an_action_on_a_list_with_a_refused_filter_acts_on_nothing(client: Client, across: str) -> None:
    seed.shop(parked=0, exhausted=4)
    sent = {"action": "discard", "_selected_action": "1", "select_across": across, "index": "0"}
    confirmed = {**sent, "confirm": "1", "as_of": seed.now().isoformat(), "expected": "9"}
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


@ON_BOTH
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
    seed.TaskRecord.objects.exclude(pk__in=chosen).update(state="DISCARDED")
    page = client.post(f"{EXHAUSTED}?p=2", {"action": "discard", "_selected_action": chosen})
    assert page.status_code == 200
    assert page.context["affected"] == 10
    assert messages_of(page) == []
