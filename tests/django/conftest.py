"""Tests that need the Django app's tables: each runs on SQLite and on PostgreSQL.

Unlike pytest-django's ``db`` the tables are real to other processes and threads, and transactions commit.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command

from celery_rmq_delay.testing.postgres import PrivatePostgres, django_database

from .databases import Database, empty_tables, using
from .shop import make, of

SQLITE_OPTIONS = {
    "timeout": 20,
    "transaction_mode": "IMMEDIATE",
    "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;",
}


@pytest.fixture(scope="session")
def sqlite_tables(tmp_path_factory: pytest.TempPathFactory, django_db_blocker: Any) -> Database:
    """A SQLite file with the tables of the app."""
    path: Path = tmp_path_factory.mktemp("sqlite") / "tests.sqlite3"
    database = Database(
        settings={"ENGINE": "django.db.backends.sqlite3", "NAME": str(path), "OPTIONS": SQLITE_OPTIONS},
        environ={"SQLITE_PATH": str(path)},
    )
    return migrated(database, django_db_blocker)


@pytest.fixture(scope="session")
def postgres_tables(rmq_postgres: Any, django_db_blocker: Any) -> Iterator[Database]:
    """A PostgreSQL database with the tables of the app."""
    with postgres_database(rmq_postgres) as database:
        yield migrated(database, django_db_blocker)


@contextmanager
def postgres_database(server: Any) -> Iterator[Database]:
    """An empty database on a server; on one that was given by its URL, that URL's database."""
    if not isinstance(server, PrivatePostgres):
        yield _postgres(server.url)
        return
    name = f"test_{uuid.uuid4().hex[:12]}"
    yield _postgres(server.create_database(name))
    if server.pid is not None:
        server.drop_database(name)


def _postgres(url: str) -> Database:
    settings = django_database(url)
    names = {"HOST": "POSTGRES_HOST", "PORT": "POSTGRES_PORT", "NAME": "POSTGRES_DB"}
    names |= {"USER": "POSTGRES_USER", "PASSWORD": "POSTGRES_PASSWORD"}
    return Database(settings=settings, environ={name: str(settings[key]) for key, name in names.items()})


def migrated(database: Database, blocker: Any) -> Database:
    """Give a database its tables."""
    with blocker.unblock(), using(database):
        call_command("migrate", verbosity=0)
    return database


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest, django_db_blocker: Any) -> Iterator[Database]:
    """Empty tables, of SQLite and of PostgreSQL in turn, as Django's default database."""
    found: Database = request.getfixturevalue(f"{request.param}_tables")
    with django_db_blocker.unblock(), using(found):
        yield found
        empty_tables()


@pytest.fixture
def sqlite(sqlite_tables: Database, django_db_blocker: Any) -> Iterator[Database]:
    """Empty tables of SQLite as Django's default database."""
    with django_db_blocker.unblock(), using(sqlite_tables):
        yield sqlite_tables
        empty_tables()


@pytest.fixture
def postgres(postgres_tables: Database, django_db_blocker: Any) -> Iterator[Database]:
    """Empty tables of PostgreSQL as Django's default database."""
    with django_db_blocker.unblock(), using(postgres_tables):
        yield postgres_tables
        empty_tables()


@pytest.fixture
def shop() -> Iterator[Any]:
    """A project whose broker is not there."""
    with of(make("amqp://127.0.0.1:1//")) as app:
        yield app
