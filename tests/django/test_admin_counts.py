"""The pages beside a broker that answers, and beside one that accepts connections and never answers."""

import re
import socket
import threading
from contextlib import suppress
from html import unescape
from typing import Any

import kombu
import pytest
from django.db import connections

from celery_rmq_delay.contrib.django.models import Payload, TaskRecord, TaskState
from celery_rmq_delay.contrib.django.services import counts
from tests.support.django import people, seed
from tests.support.django.admin_pages import EXHAUSTED, ask, confirm, messages_of
from tests.support.django.markup import faults
from tests.support.django.shop import make, of
from tests.support.waiting import SECONDS, wait_for


class HungBroker:
    """A TCP server that takes connections and keeps them, without an answer."""

    def __init__(self):
        self._server = socket.create_server(("127.0.0.1", 0))
        self._server.setblocking(False)
        self._taken: list[socket.socket] = []
        self.url = f"amqp://127.0.0.1:{self._server.getsockname()[1]}//"

    def accepted(self):
        """Return how many connections there were."""
        with suppress(BlockingIOError):
            while True:
                self._taken.append(self._server.accept()[0])
        return len(self._taken)

    def hang_up(self):
        """Close the connections: their clients fail at once."""
        self.accepted()
        for each in self._taken:
            each.close()

    def close(self):
        self.hang_up()
        self._server.close()


@pytest.fixture
def hung(monkeypatch):
    """A broker that hangs; nothing has been counted."""
    monkeypatch.setattr(counts, "_kept", None)
    broker = HungBroker()
    yield broker
    broker.close()


def opened(client, query=""):
    """Return a list without faults."""
    page = client.get(EXHAUSTED + query, follow=True)
    assert page.status_code == 200
    assert faults(page.content.decode()) == []
    return page


def test_a_hung_broker_delays_one_page_and_a_link_tries_again(sqlite, hung):
    client = people.superuser()
    with of(make(hung.url), broker_timeout=0.3, broker_cache=0.001):
        page = opened(client)
        assert "The broker does not answer" in page.content.decode()
        assert hung.accepted() == 1
        for _ in range(3):
            page = opened(client, "?queue=payments")
        assert hung.accepted() == 1, "the failed count is cached"
        (retry,) = re.findall(r'<a href="([^"]+)">Try again</a>', page.content.decode())
        page = opened(client, unescape(retry))
        assert page.redirect_chain == [(f"{EXHAUSTED}?queue=payments", 302)]
        assert hung.accepted() == 2


def test_other_pages_do_not_wait_while_one_counts(sqlite, hung):
    client, other = people.superuser(), people.superuser("bob")
    seed.record(1)
    with of(make(hung.url), broker_timeout=SECONDS):
        found: list[Any] = []

        def count():
            found.append(opened(other))
            connections.close_all()

        thread = threading.Thread(target=count)
        thread.start()
        try:
            wait_for(lambda: hung.accepted() == 1, "a connection of the first page")
            page = opened(client)
            assert page.context["summary"]["live"][0] == "The broker's messages are being counted."
            assert found == []
        finally:
            hung.hang_up()
            thread.join(SECONDS)
        assert "The broker does not answer" in found[0].content.decode()
        assert hung.accepted() == 1


def test_the_page_states_when_the_messages_were_last_counted(sqlite, hung, rmq_vhost):
    client = people.superuser()
    with of(make(rmq_vhost)):
        assert opened(client).context["summary"]["broker_note"] == ""
    counts.forget()
    with of(make(hung.url), broker_timeout=0.3):
        page = opened(client).content.decode()
    assert f"last counted at {seed.now():%Y-%m-%d}" in page
    assert "Delay queues hold" not in page


def test_counts_from_before_an_action_are_not_shown_after_it(rmq_vhost, hung):
    with of(make(rmq_vhost)):
        first = counts.broker_counts()
        assert counts.broker_counts() is first
        counts.forget()
        assert counts.broker_counts() is not first


# -- a broker that answers ------------------------------------------------------------------------------------------


@pytest.fixture
def app(sqlite, rmq_vhost):
    """A shop whose queue exists."""
    with of(make(rmq_vhost)) as found:
        with kombu.Connection(rmq_vhost) as connection:
            found.amqp.queues["payments"].bind(connection.default_channel).declare()
        yield found


def test_a_task_is_requeued_as_it_was_and_its_page_shows_it(app, rmq_vhost):
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


def test_the_brokers_counts_are_shown_beside_those_of_the_tables(app, rmq_vhost):
    seed.record(0, TaskState.PARKED)
    page = people.superuser().get(EXHAUSTED)
    live = page.context["summary"]["live"]
    assert live == [
        "Delay queues hold 0, the table holds 1.",
        "Waiting for the collector: 0 exhausted messages, 0 events.",
    ]
    assert live[0] in page.content.decode()
    assert "The broker does not answer" not in page.content.decode()
