"""Fixtures of the Django app's tests. Models can be imported only when the root's conftest.py has set Django up."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from django.test import Client

from tests.support.django.databases import Database
from tests.support.django.shop import make, of


@pytest.fixture
def shop() -> Iterator[Any]:
    """A project that allows edits, without a broker: actions that need one report it, all others work.

    The cached counts are cleared.
    """
    from celery_rmq_delay.contrib.django.services import counts

    counts.forget()
    with of(make("amqp://127.0.0.1:1//"), allow_edit=True, inline_limit=20, broker_timeout=0.5) as app:
        yield app
    counts.forget()


@pytest.fixture
def tables(request: pytest.FixtureRequest) -> Database:
    """Empty tables of SQLite, or where a test is marked with `POSTGRES_TABLES`, of PostgreSQL."""
    found: Database = request.getfixturevalue(getattr(request, "param", "sqlite"))
    return found


@pytest.fixture
def client(tables: Database) -> Client:
    """A test client of a user with all permissions."""
    from tests.support.django.people import superuser

    return superuser()


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Run an object store that speaks S3; yield the query of its URLs."""
    from moto.server import ThreadedMotoServer

    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    httpx.post(f"http://{host}:{port}/moto-api/reset").raise_for_status()  # servers of one process share their objects
    yield f"region=us-east-1&scheme=http&endpoint_override={host}:{port}"
    server.stop()
