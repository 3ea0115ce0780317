"""The pages of a task id that has several rows."""

import pytest

from celery_rmq_delay.contrib.django.collecting.database import Database
from celery_rmq_delay.contrib.django.models import Payload, TaskRecord, TaskState
from tests.support.brokers.kinds import POSTGRES_TABLES
from tests.support.django.admin_pages import BASE, EXHAUSTED, ask, confirm, messages_of
from tests.support.django.reported import exhausted

pytestmark = pytest.mark.usefixtures("tables", "shop")

LIVES = 3


@pytest.fixture
def rows(tables):
    """Three rows of one id, and one of another."""
    calls = [exhausted("t", body=b"[[%d], {}, {}]" % number) for number in range(LIVES)]
    Database().write([*calls, exhausted("other")])
    return list(TaskRecord.objects.filter(task_id="t").order_by("pk"))


@POSTGRES_TABLES
def test_lists_search_and_counts_have_every_row_of_an_id(client, rows):
    for name in ("exhaustedtask", "taskrecord"):
        page = client.get(f"{BASE}/{name}/?q=t")
        assert {row.pk for row in page.context["cl"].result_list} == {row.pk for row in rows}
    page = client.get(f"{EXHAUSTED}?queue=payments")
    assert page.context["cl"].result_count == LIVES + 1
    tiles = {str(tile.label): str(tile.value) for tile in page.context["summary"]["tiles"]}
    assert tiles["Exhausted, open"] == str(LIVES + 1)


@POSTGRES_TABLES
def test_the_page_of_each_row_links_the_others(client, rows):
    for row in rows:
        page = client.get(f"{EXHAUSTED}{row.pk}/change/")
        (same,) = [each for each in page.context["relatives"] if each["label"] == "Same task id"]
        links = {each["url"] for each in same["tasks"]}
        assert links == {f"{EXHAUSTED}{other.pk}/change/" for other in rows if other != row}


@POSTGRES_TABLES
def test_an_action_on_one_row_leaves_the_others_as_they_were(client, rows):
    others = [row for row in TaskRecord.objects.order_by("pk").values() if row["id"] != rows[1].pk]
    assert messages_of(confirm(client, ask(client, "discard", rows[1]))) == ["1 discarded"]
    rows[1].refresh_from_db()
    assert rows[1].state == TaskState.DISCARDED
    assert [row for row in TaskRecord.objects.order_by("pk").values() if row["id"] != rows[1].pk] == others
    assert Payload.objects.count() == LIVES + 1
