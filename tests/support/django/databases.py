"""Django's default database, replaced while a test runs."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from django.apps import apps
from django.core.management import call_command
from django.core.management.color import no_style
from django.db import DEFAULT_DB_ALIAS, connections
from django.db.models import AutoField

from tests.support.servers.postgres import PrivatePostgres, django_database
from tests.support.waiting import BUSY, SECONDS


@dataclass
class Database:
    """A database: its entry in DATABASES, and the environment of the example project that selects it."""

    settings: dict[str, Any]
    environ: dict[str, str]
    #: Whether its tables have to be emptied, at the end of a test or by the next one.
    is_used: bool = False

    @property
    def vendor(self) -> str:
        """``sqlite`` or ``postgresql``."""
        return "sqlite" if "sqlite3" in self.settings["ENGINE"] else "postgresql"


@contextmanager
def using(database: Database) -> Iterator[None]:
    """Make this Django's default database, in all threads that have not connected yet."""
    settings, connection = connections.settings, connections[DEFAULT_DB_ALIAS]
    connections.settings = connections.configure_settings({DEFAULT_DB_ALIAS: database.settings})
    del connections[DEFAULT_DB_ALIAS]
    try:
        yield
    finally:
        connections[DEFAULT_DB_ALIAS].close()
        connections.settings = settings
        connections[DEFAULT_DB_ALIAS] = connection


@contextmanager
def emptied(database: Database) -> Iterator[Database]:
    """Make this Django's default database, with empty tables, even if the test before could not empty them."""
    with using(database):
        if database.is_used:
            empty_tables()
        database.is_used = True
        yield database
        empty_tables()
        database.is_used = False


def empty_tables() -> None:
    """Delete all rows except those of migrations."""
    kept = {apps.get_model(model)._meta.db_table for model in ("auth.Permission", "contenttypes.ContentType")}
    models = apps.get_models(include_auto_created=True)
    tables = sorted({model._meta.db_table for model in models if model._meta.managed} - kept)
    connection = connections[DEFAULT_DB_ALIAS]
    if connection.vendor == "postgresql":
        statements = _to_empty_postgres(connection, tables)
    else:
        statements = connection.ops.sql_flush(no_style(), tables, reset_sequences=True, allow_cascade=False)
    connection.ops.execute_sql_flush(statements)


def _to_empty_postgres(connection: Any, tables: Sequence[str]) -> list[str]:
    """Return the SQL that empties used tables: truncating a table is slow, even an empty one."""
    sequences = ", ".join(f"'{table}_id_seq'" for table in tables)
    asked = [f"SELECT 'DELETE FROM {table}' WHERE EXISTS (SELECT FROM {table})" for table in tables]
    with connection.cursor() as cursor:
        cursor.execute(
            f"{' UNION ALL '.join(asked)} UNION ALL SELECT format('SELECT setval(%L, 1, false)', sequencename)"
            f" FROM pg_sequences WHERE last_value IS NOT NULL AND sequencename IN ({sequences})"
        )
        return [statement for (statement,) in cursor.fetchall()]


@contextmanager
def postgres_database(server: Any) -> Iterator[Database]:
    """An empty database on a server; on an external server, the database of its URL."""
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
    """Create the tables of a database."""
    with blocker.unblock(), using(database):
        call_command("migrate", verbosity=0)
    return database


def number_from(first: int) -> None:
    """Let the next row of each table of this app have the id ``first``; `empty_tables` resets this."""
    connection = connections[DEFAULT_DB_ALIAS]
    with connection.cursor() as cursor:
        for model in apps.get_app_config("rmq_delay").get_models():
            if model._meta.proxy or not isinstance(model._meta.pk, AutoField):
                continue
            table = model._meta.db_table
            if connection.vendor == "postgresql":
                cursor.execute(f"SELECT setval('{table}_id_seq', {first}, false)")
            else:
                cursor.execute(f"DELETE FROM sqlite_sequence WHERE name = '{table}'")
                cursor.execute(f"INSERT INTO sqlite_sequence (name, seq) VALUES ('{table}', {first - 1})")


def waiting_for_locks() -> int:
    """Return how many locks are waited for in PostgreSQL."""
    with connections[DEFAULT_DB_ALIAS].cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_locks WHERE NOT granted")
        return int(cursor.fetchone()[0])


def together(*works: Callable[[], object]) -> None:
    """Do all of these at once, each in a thread with a connection of its own; none may fail."""
    start, errors = threading.Barrier(len(works)), list[BaseException]()

    def run(work: Callable[[], object]) -> None:
        try:
            start.wait(SECONDS)
            work()
        except BaseException as error:  # noqa: BLE001 - the test's thread raises it
            errors.append(error)
        finally:
            connections.close_all()

    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(BUSY)
    assert not errors
    assert not any(thread.is_alive() for thread in threads)
