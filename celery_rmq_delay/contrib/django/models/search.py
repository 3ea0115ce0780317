"""The index of the texts that the search reads: a GIN index in PostgreSQL, an FTS5 table with triggers in SQLite."""

from __future__ import annotations

from typing import Any

from django.db import transaction

from .tasks import TaskRecord

#: The name of the index in PostgreSQL, and of the table in SQLite.
NAME = "rmq_delay_search"
#: The columns with texts; all of them are redacted.
COLUMNS = ("exception_message", "args_preview", "kwargs_preview")
#: The characters between words, for a bracket expression of PostgreSQL and of Python: ASCII and the usual punctuation.
SEPARATORS = r"\u0001-\u002f\u003a-\u0040\u005b-\u0060\u007b-\u00bf\u2000-\u206f\u3000-\u303f\uff00-\uff0f"
#: A letter before each word: PostgreSQL's parser takes "-4711" for a number with a sign, and "2e05e5" for two words.
MARK = "x"

_TABLE = TaskRecord._meta.db_table
_TEXT = " || ' ' || ".join(COLUMNS)
#: The words of a row in PostgreSQL. A query that uses the index has exactly this expression.
VECTOR = f"to_tsvector('simple', regexp_replace(' ' || {_TEXT}, '[{SEPARATORS}]+', ' {MARK}', 'g'))"


def _entry(row: str, command: str = "") -> str:
    """Return the SQL that adds the ``old`` or ``new`` row to the FTS5 table, or runs a command with it."""
    columns, values = ", ".join(COLUMNS), ", ".join(f"{row}.{name}" for name in COLUMNS)
    if command:
        return f"INSERT INTO {NAME} ({NAME}, rowid, {columns}) VALUES ('{command}', {row}.id, {values});"  # noqa: S608 - names of ours
    return f"INSERT INTO {NAME} (rowid, {columns}) VALUES ({row}.id, {values});"  # noqa: S608 - names of ours


_CHANGED = " OR ".join(f"old.{name} IS NOT new.{name}" for name in ("id", *COLUMNS))
#: The triggers of SQLite, by name. An update that changes no text costs nothing.
_TRIGGERS = {
    f"{NAME}_insert": f"AFTER INSERT ON {_TABLE} BEGIN {_entry('new')} END",
    f"{NAME}_delete": f"AFTER DELETE ON {_TABLE} BEGIN {_entry('old', 'delete')} END",
    f"{NAME}_update": f"AFTER UPDATE OF id, {', '.join(COLUMNS)} ON {_TABLE} WHEN {_CHANGED} "
    f"BEGIN {_entry('old', 'delete')} {_entry('new')} END",
}
_FTS5 = (
    f"CREATE VIRTUAL TABLE {NAME} USING fts5({', '.join(COLUMNS)}, content='{_TABLE}', "
    "content_rowid='id', columnsize=0, tokenize='unicode61 remove_diacritics 0')"
)


def create(connection: Any) -> None:
    """Create the index; one that exists is replaced. A SQLite without FTS5 stays without an index."""
    drop(connection)
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute(f"CREATE INDEX {NAME} ON {_TABLE} USING gin ({VECTOR})")
            cursor.execute(f"ANALYZE {_TABLE}")  # how frequent each word is
    elif connection.vendor == "sqlite":
        with transaction.atomic(connection.alias), connection.cursor() as cursor:
            if has_fts5(cursor):
                cursor.execute(_FTS5)
                for name, definition in _TRIGGERS.items():
                    cursor.execute(f"CREATE TRIGGER {name} {definition}")
                cursor.execute(f"INSERT INTO {NAME} ({NAME}) VALUES ('rebuild')")  # noqa: S608 - a name of ours


def drop(connection: Any) -> None:
    """Drop the index, if there is one."""
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute(f"DROP INDEX IF EXISTS {NAME}")
        elif connection.vendor == "sqlite":
            for name in _TRIGGERS:
                cursor.execute(f"DROP TRIGGER IF EXISTS {name}")
            cursor.execute(f"DROP TABLE IF EXISTS {NAME}")


def repair(connection: Any) -> None:
    """Create the index of SQLite where it is incomplete: a rebuilt table loses its triggers."""
    if connection.vendor == "sqlite":
        found = _in_sqlite(connection)
        if _TABLE in found and not found.issuperset([NAME, *_TRIGGERS]):
            create(connection)


def exists(connection: Any) -> bool:
    """Return whether this is SQLite with the FTS5 table."""
    return connection.vendor == "sqlite" and NAME in _in_sqlite(connection)


def _in_sqlite(connection: Any) -> set[str]:
    with connection.cursor() as cursor:
        cursor.execute("SELECT name FROM sqlite_master WHERE type IN ('table', 'trigger')")
        return {name for (name,) in cursor.fetchall()}


def has_fts5(cursor: Any) -> bool:
    """Return whether this SQLite was built with FTS5."""
    cursor.execute("SELECT 1 FROM pragma_module_list WHERE name = 'fts5'")
    return cursor.fetchone() is not None
