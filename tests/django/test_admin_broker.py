"""The pages on a broker that answers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import kombu
import pytest
from celery import Celery

from celery_rmq_delay.contrib.django.models import Payload, TaskRecord, TaskState
from tests.support.django import people, seed
from tests.support.django.admin_pages import EXHAUSTED, ask, confirm, messages_of
from tests.support.django.shop import make, of


@pytest.fixture
def app(sqlite: Any, rmq_vhost: str) -> Iterator[Celery]:
    """A shop whose queue exists."""
    with of(make(rmq_vhost)) as found:
        with kombu.Connection(rmq_vhost) as connection:
            found.amqp.queues["payments"].bind(connection.default_channel).declare()
        yield found


def test_a_task_is_requeued_as_it_was_and_its_page_shows_it(app: Celery, rmq_vhost: str) -> None:
    client = people.superuser()
    tasks = [seed.record(number, queue="payments", exchange="", routing_key="payments") for number in (0, 4)]
    for task in tasks:
        seed.message(task, seed.call(task.task_id))
    answer = confirm(client, ask(client, "requeue", *tasks), reason="The gateway is back")
    assert messages_of(answer) == ["2 requeued"]
    assert set(TaskRecord.objects.values_list("state", "generation")) == {(TaskState.REQUEUED, 1)}
    assert Payload.objects.count() == 2, "until events of the tasks arrive"
    with kombu.Connection(rmq_vhost) as connection:
        bodies = [connection.default_channel.basic_get("payments", no_ack=True).body for _task in tasks]
    assert sorted(bodies) == sorted(seed.call(task.task_id).decode() for task in tasks)
    page = client.get(f"{EXHAUSTED}?state=REQUEUED").content.decode()
    assert "1 x" in page
    assert "The gateway is back" in client.get(f"{EXHAUSTED}{tasks[0].pk}/change/").content.decode()


def test_the_brokers_counts_are_shown_beside_those_of_the_tables(app: Celery, rmq_vhost: str) -> None:
    seed.record(0, TaskState.PARKED)
    page = people.superuser().get(EXHAUSTED)
    live = page.context["summary"]["live"]
    assert live == [
        "Delay queues hold 0, the table holds 1.",
        "Waiting for the collector: 0 exhausted messages, 0 events.",
    ]
    assert live[0] in page.content.decode()
    assert "The broker does not answer" not in page.content.decode()


def test_a_parked_task_that_is_not_in_the_broker_is_skipped_and_reported(app: Celery) -> None:
    client = people.superuser()
    task = seed.record(0, TaskState.PARKED, queue="payments", delay_queue="")
    answer = confirm(client, ask(client, "run_now", task, address="/admin/rmq_delay/parkedtask/"))
    (message,) = messages_of(answer)
    assert message.startswith("0 sent to run now, 1 skipped (")
