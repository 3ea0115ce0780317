"""Databases with the tables of the Django app, for every test that wants one.

Unlike with pytest-django's ``db``, other processes and threads see the tables, and transactions commit.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.brokers.kinds import DATABASES
from tests.support.django.databases import Database, emptied, migrated, postgres_database

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


@pytest.fixture(params=DATABASES)
def database(request: pytest.FixtureRequest, django_db_blocker: Any) -> Iterator[Database]:
    """Empty tables of PostgreSQL or of SQLite as Django's default database."""
    found: Database = request.getfixturevalue(f"{request.param}_tables")
    with django_db_blocker.unblock(), emptied(found):
        yield found


@pytest.fixture
def sqlite(sqlite_tables: Database, django_db_blocker: Any) -> Iterator[Database]:
    """Empty tables of SQLite as Django's default database."""
    with django_db_blocker.unblock(), emptied(sqlite_tables):
        yield sqlite_tables


@pytest.fixture
def postgres(postgres_tables: Database, django_db_blocker: Any) -> Iterator[Database]:
    """Empty tables of PostgreSQL as Django's default database."""
    with django_db_blocker.unblock(), emptied(postgres_tables):
        yield postgres_tables
