"""Django's default database, exchanged while a test runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from django.apps import apps
from django.core.management.color import no_style
from django.db import DEFAULT_DB_ALIAS, connections


@dataclass(frozen=True)
class Database:
    """A database: what DATABASES says of it, and the environment that points the example project to it."""

    settings: dict[str, Any]
    environ: dict[str, str]

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


def empty_tables() -> None:
    """Delete all rows, but those that migrations make."""
    kept = {apps.get_model(model)._meta.db_table for model in ("auth.Permission", "contenttypes.ContentType")}
    models = apps.get_models(include_auto_created=True)
    tables = sorted({model._meta.db_table for model in models if model._meta.managed} - kept)
    connection = connections[DEFAULT_DB_ALIAS]
    flush = connection.ops.sql_flush(no_style(), tables, reset_sequences=True, allow_cascade=False)
    connection.ops.execute_sql_flush(flush)
