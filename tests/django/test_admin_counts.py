"""The pages beside a broker that accepts connections and never answers."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connections
from django.test import Client

from celery_rmq_delay.contrib.django.services import counts
from tests.support.django import people, seed
from tests.support.django.markup import faults
from tests.support.django.shop import make, of
from tests.support.waiting import SECONDS, wait_for

LIST = "/admin/rmq_delay/exhaustedtask/"


class HungBroker:
    """A TCP server that accepts connections and keeps them, without an answer."""

    def __init__(self) -> None:
        self.accepted: list[socket.socket] = []
        self._server = socket.create_server(("127.0.0.1", 0))
        self.url = f"amqp://127.0.0.1:{self._server.getsockname()[1]}//"
        self._thread = threading.Thread(target=self._accept)
        self._thread.start()

    def _accept(self) -> None:
        while True:
            try:
                taken, _address = self._server.accept()
            except OSError:
                return
            self.accepted.append(taken)

    def hang_up(self) -> None:
        """Close the connections: their clients fail at once."""
        for each in self.accepted:
            each.close()

    def close(self) -> None:
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self._thread.join(SECONDS)
        self.hang_up()


@pytest.fixture
def hung(monkeypatch: pytest.MonkeyPatch) -> Iterator[HungBroker]:
    """A broker that hangs; nothing has been counted."""
    monkeypatch.setattr(counts, "_kept", None)
    broker = HungBroker()
    yield broker
    broker.close()


def opened(client: Client, query: str = "") -> Any:
    """Return a list without faults."""
    page = client.get(LIST + query, follow=True)
    assert page.status_code == 200
    assert faults(page.content.decode()) == []
    return page


def test_a_hung_broker_delays_one_page_and_a_link_tries_again(sqlite: Any, hung: HungBroker) -> None:
    client = people.superuser()
    with of(make(hung.url), broker_timeout=0.3, broker_cache=0.001):
        page = opened(client)
        assert "The broker does not answer" in page.content.decode()
        assert len(hung.accepted) == 1
        for _ in range(3):
            page = opened(client, "?queue=payments")
        assert len(hung.accepted) == 1, "the failed count is cached"
        retry = page.context["summary"]["recount_url"]
        assert retry in page.content.decode().replace("&amp;", "&")
        page = opened(client, retry)
        assert page.redirect_chain == [(f"{LIST}?queue=payments", 302)]
        assert len(hung.accepted) == 2


def test_other_pages_do_not_wait_while_one_counts(sqlite: Any, hung: HungBroker) -> None:
    client, other = people.superuser(), people.superuser("bob")
    seed.record(1)
    with of(make(hung.url), broker_timeout=SECONDS):
        found: list[Any] = []

        def count() -> None:
            found.append(opened(other))
            connections.close_all()

        thread = threading.Thread(target=count)
        thread.start()
        try:
            wait_for(lambda: len(hung.accepted) == 1, "a connection of the first page")
            page = opened(client)
            assert page.context["summary"]["live"][0] == "The broker's messages are being counted."
            assert found == []
        finally:
            hung.hang_up()
            thread.join(SECONDS)
        assert "The broker does not answer" in found[0].content.decode()
        assert len(hung.accepted) == 1


def test_the_page_states_when_the_messages_were_last_counted(sqlite: Any, hung: HungBroker, rmq_vhost: str) -> None:
    client = people.superuser()
    with of(make(rmq_vhost)):
        assert opened(client).context["summary"]["broker_note"] == ""
    counts.forget()
    with of(make(hung.url), broker_timeout=0.3):
        page = opened(client).content.decode()
    assert f"last counted at {seed.now():%Y-%m-%d}" in page
    assert "Delay queues hold" not in page


def test_counts_from_before_an_action_are_not_shown_after_it(rmq_vhost: str, hung: HungBroker) -> None:
    with of(make(rmq_vhost)):
        first = counts.broker_counts()
        assert counts.broker_counts() is first
        counts.forget()
        assert counts.broker_counts() is not first
