"""Numbers on the pages have the thousands separators of the language, wherever they stand."""

import re

import amqp
import pytest
from django.utils import timezone

from celery_rmq_delay.contrib.django.messages import stored
from celery_rmq_delay.contrib.django.models import Operation, Payload, TaskRecord, TaskState
from celery_rmq_delay.contrib.django.services.actors import Actor
from celery_rmq_delay.contrib.django.services.operations import actions
from celery_rmq_delay.contrib.django.services.operations import requests as operations
from tests.support.brokers.kinds import POSTGRES_TABLES
from tests.support.django import seed
from tests.support.django.admin_pages import BASE, ask

pytestmark = pytest.mark.usefixtures("tables", "shop")


def text_of(page):
    """Return what a page shows, without its times and its tags."""
    (content,) = re.findall(r'<div id="content-main".*(?=<footer)', page, re.DOTALL)
    return re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d|<[^>]*>", " ", content)


def ungrouped(page):
    """Return the numbers of four and more digits that a page shows without a separator."""
    return re.findall(r"\d{4,}", text_of(page))


def add(count, **more):
    """Add exhausted tasks of a few queues."""
    now = timezone.now()
    given = {"name": "charge", "state": TaskState.EXHAUSTED, "changed_at": now, "exhausted_at": now, **more}
    TaskRecord.objects.bulk_create(
        TaskRecord(**{"task_id": f"task-{more}-{number}", "queue": f"queue-{number % 12}", **given})
        for number in range(count)
    )


@POSTGRES_TABLES
def test_the_confirmation_page_groups_all_its_numbers(client, monkeypatch):
    add(1_030, call_digest="0" * 40)
    add(1_020)
    add(1_010, state=TaskState.REQUEUED)
    kept = stored(amqp.Message(seed.call(1), application_headers={"id": "task", "expires": "2026-01-31T12:00:00Z"}))
    with_message = TaskRecord.objects.exclude(call_digest="")
    Payload.objects.bulk_create(Payload(record=each, stored_at=seed.now(), **vars(kept)) for each in with_message)
    monkeypatch.setattr(actions, "CHECKED", 2_040)
    address = f"{BASE}/taskrecord/"
    page = ask(client, "requeue", select_across="1", address=address).content.decode()
    for shown in ("2,050 tasks", "1,010 other", "1,020 of these", "At least 1,0", "first 2,040"):
        assert shown in text_of(page), shown
    assert ungrouped(page) == []
    monkeypatch.setattr(actions, "CHECKED", 3_000)
    page = ask(client, "requeue", select_across="1", address=address).content.decode()
    assert "1,030 of these tasks have expired" in text_of(page)
    assert ungrouped(page) == []


@POSTGRES_TABLES
def test_operations_group_all_their_numbers(client):
    add(1_001)
    made = operations.freeze(Operation.Kind.DISCARD, TaskRecord.objects.all(), actor=Actor(None, "carol"))
    operations.run(made)
    Operation.objects.update(rate=1_200, canary=1_100)
    assert ungrouped(client.get(f"{BASE}/operation/").content.decode()) == []
    page = client.get(f"{BASE}/operation/{made.pk}/change/").content.decode()
    assert "1,001 discarded" in text_of(page)
    assert ungrouped(page) == []
