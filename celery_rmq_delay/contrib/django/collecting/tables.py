"""Runs statements with many rows on PostgreSQL and SQLite."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from datetime import timezone as tz
from typing import Any, Protocol

from django.conf import settings
from django.db.backends.base.base import BaseDatabaseWrapper
from django.utils import timezone

from ....exceptions import RmqDelayError
from .statements import Statement

Row = Mapping[str, Any]


class Tables(Protocol):
    """A database that runs statements with many rows."""

    def run(self, statement: Statement, rows: Sequence[Row]) -> list[tuple[Any, ...]]:
        """Run a statement with its rows; return the rows of its RETURNING. Raises `django.db.DatabaseError`."""


def tables_of(connection: BaseDatabaseWrapper) -> Tables:
    """Return the tables of ``connection``. Raises `RmqDelayError` for an unsupported database."""
    if connection.vendor == "postgresql":
        return PostgresTables(connection)
    if connection.vendor == "sqlite" and connection.features.can_return_columns_from_insert:
        return SQLiteTables(connection)
    raise RmqDelayError(
        f"The collector writes to PostgreSQL, or to SQLite 3.35 or newer, and found {connection.display_name}: "
        "use one of them as the project's database."
    )


class PostgresTables:
    """Runs one statement for all rows, as one array per column: several times as fast as row by row."""

    def __init__(self, connection: BaseDatabaseWrapper) -> None:
        self._connection = connection

    def run(self, statement: Statement, rows: Sequence[Row]) -> list[tuple[Any, ...]]:
        """Run a statement with its rows."""
        if not rows:
            return []
        names = ", ".join(statement.columns)
        arrays = ", ".join(f"%s::{kind}[]" for kind in statement.columns.values())
        with self._connection.cursor() as cursor:
            cursor.execute(
                statement.sql.format(source=f"unnest({arrays}) AS e({names})"),
                [_array([row[name] for row in rows], kind) for name, kind in statement.columns.items()],
            )
            return cursor.fetchall() if cursor.description else []


class SQLiteTables:
    """Runs one statement per row: SQLite has no round trips to save."""

    def __init__(self, connection: BaseDatabaseWrapper) -> None:
        self._connection = connection

    def run(self, statement: Statement, rows: Sequence[Row]) -> list[tuple[Any, ...]]:
        """Run a statement with its rows."""
        if not rows:
            return []
        values = ", ".join(f":{name} AS {name}" for name in statement.columns)
        sql = statement.sql.format(source=f"(SELECT {values}) AS e")
        found: list[tuple[Any, ...]] = []
        self._connection.ensure_connection()
        # Without Django's cursor, which would convert the placeholders in the statement for each row.
        with self._connection.wrap_database_errors:
            cursor = self._connection.connection.cursor()
            for row in rows:
                found += cursor.execute(sql, {name: _sqlite_value(row[name]) for name in statement.columns}).fetchall()
        return found


def _sqlite_value(value: object) -> object:
    """Return a value as Django stores it in SQLite."""
    if not isinstance(value, datetime):
        return value
    zone = tz.utc if settings.USE_TZ else timezone.get_default_timezone()
    return value.astimezone(zone).replace(tzinfo=None).isoformat(" ")


def _array(values: Iterable[Any], kind: str) -> str:
    """Return values as the text of a PostgreSQL array."""
    return f"{{{','.join(map(_ELEMENTS[kind], values))}}}"


def _text(value: str | None) -> str:
    return "NULL" if value is None else '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _number(value: int | None) -> str:
    return "NULL" if value is None else str(value)


def _time(value: datetime | None) -> str:
    return "NULL" if value is None else f'"{value.isoformat()}"'


def _bytes(value: bytes) -> str:
    return '"\\\\x' + value.hex() + '"'


_ELEMENTS: dict[str, Callable[[Any], str]] = {
    "text": _text,
    "jsonb": _text,
    "integer": _number,
    "bigint": _number,
    "boolean": _number,
    "timestamptz": _time,
    "bytea": _bytes,
}
