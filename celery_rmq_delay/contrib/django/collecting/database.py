"""Writes a batch into the tables in one transaction; writing it again after a crash changes nothing."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from typing import Any

from django.conf import settings
from django.db import connections, router, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.utils.timezone import get_default_timezone

from ....events import schema as events
from ....events.schema import Event
from ....exceptions import RmqDelayError
from ..models import CountedRollup, FailureGroup, TaskRecord, TaskState
from ..services.clock import utc_of
from ..signals import announce_ran_after_discard
from . import rows, statements
from .announcing import Observe, notify
from .facts import Fact, Reading, Unreadable
from .statements import Statement

#: How long a rollup is remembered as counted.
REMEMBERED = timedelta(days=1)
#: The most groups and names that are cached; with more the cache starts empty again.
_MOST_KNOWN = 50_000
#: Seconds until the cache starts empty again: the retention deletes groups and names.
_KNOWN_FOR = 3_600.0


class UnkeptError(ValueError):
    """No table can take a message: the writer keeps it as an unreadable one."""


class Database:
    """Writes batches into the tables, in one thread. ``observe`` gets queue and lateness (seconds) of retries."""

    def __init__(self, observe: Observe | None = None) -> None:
        self._observe = observe
        self._groups: dict[str, int] = {}
        self._names: set[rows.Name] = set()
        self._known_since = time.monotonic()

    @property
    def connection(self) -> BaseDatabaseWrapper:
        """The connection of this thread."""
        return connections[router.db_for_write(TaskRecord)]

    def check(self) -> None:
        """Raise `RmqDelayError` for an unsupported database."""
        found = self.connection
        is_sqlite = found.vendor == "sqlite" and found.features.can_return_columns_from_insert
        if found.vendor != "postgresql" and not is_sqlite:
            raise RmqDelayError(
                f"The collector writes to PostgreSQL, or to SQLite 3.35 or newer, and found {found.display_name}: "
                "use one of them as the project's database."
            )

    def forget(self) -> None:
        """Clear the cache of groups and names: they may have been deleted."""
        self._groups.clear()
        self._names.clear()
        self._known_since = time.monotonic()

    def write(self, batch: Sequence[Reading]) -> None:
        """Write and commit a batch. Raises `django.db.Error`: then only groups and names of it are in the tables."""
        facts = [each for each in batch if isinstance(each, Fact) and each.event.kind != events.ROLLUP]
        rollups = [each.event for each in batch if isinstance(each, Fact) and each.event.kind == events.ROLLUP]
        # Outside of the transaction: no other collector waits for these names until it ends.
        self._know([*(fact.event for fact in facts), *rollups])
        with transaction.atomic(using=self.connection.alias):
            now = utc_of(self.connection)
            new = self._not_collected(facts)
            ran = self._run(statements.RAN_AFTER_DISCARD, rows.runs(new))
            counted = self._write_facts(new, now)
            counted += self._write_rollups(rollups, now)
            unreadable = [each for each in batch if isinstance(each, Unreadable)]
            self._run(statements.UNREADABLE, rows.unreadable(unreadable, now))
            self._run(statements.GROUPS_SEEN, rows.groups(counted))
            self._run(statements.TALLIES, rows.tallies(counted))
        notify(counted, self._observe)
        announce_ran_after_discard([record_id for (record_id,) in ran])

    def tidy(self) -> None:
        """Delete the ids of rollups that will not be delivered again."""
        counted = CountedRollup.objects.using(self.connection.alias)
        counted.filter(counted_at__lt=datetime.now(timezone.utc) - REMEMBERED).delete()

    def _know(self, named: Sequence[Event]) -> None:
        """Create the groups and lookup values that these events name."""
        is_old = time.monotonic() - self._known_since > _KNOWN_FOR
        if is_old or len(self._groups) + len(self._names) > _MOST_KNOWN:
            self.forget()
        new = {
            event.fingerprint: event for event in named if event.fingerprint and event.fingerprint not in self._groups
        }
        if new:
            self._run(statements.GROUPS, rows.groups(new.values()))
            found = FailureGroup.objects.using(self.connection.alias).filter(fingerprint__in=list(new))
            self._groups.update(found.values_list("fingerprint", "pk"))
        names = rows.names(named) - self._names
        self._run(statements.LOOKUPS, [{"kind": kind, "value": value} for kind, value in sorted(names)])
        self._names |= names

    def _write_facts(self, facts: Sequence[Fact], now: datetime) -> list[Event]:
        """Write facts about tasks; return the events that were not in the tables before."""
        placed = [each for wave in rows.waves(facts) for each in self._write_wave(wave, now)]
        facts, ids = [fact for fact, _ in placed], {fact.key: record_id for fact, record_id in placed}
        attempts = [rows.attempt(fact, record_id) for fact, record_id in placed]
        new = {event_id for (event_id,) in self._run(statements.ATTEMPTS, rows.distinct(attempts))}
        exhausted = [fact for fact in facts if fact.event.kind == events.EXHAUSTED]
        times = Counter(fact.event.event_id for fact in exhausted)
        doubled = [fact for fact in exhausted if times[fact.event.event_id] > 1 or fact.event.event_id not in new]
        # The event and the message of one attempt come in any order: the second fills the gaps of the first.
        for of_message in (False, True):
            again = [fact for fact in doubled if (fact.message is not None) is of_message]
            filled = [rows.attempt(fact, ids[fact.key]) for fact in again]
            self._run(statements.ATTEMPTS_AGAIN, rows.distinct(filled))
        first = {fact.event.event_id: fact.event for fact in reversed(facts)}
        return [event for event_id, event in first.items() if event_id in new]

    def _write_wave(self, wave: Sequence[Fact], now: datetime) -> list[tuple[Fact, int]]:
        """Write the tasks and their messages; return the written facts with the ids of their records.

        History of a task without a record is left out. A message that fits no record gets a new one. Raises
        `UnkeptError` where it cannot: no message is left out.
        """

        def run(statement: Statement, facts: Sequence[Fact]) -> dict[tuple[str, str], int]:
            found = self._run(statement, [rows.record(fact, self._groups, now) for fact in facts])
            return {(task_id, life): record_id for record_id, task_id, life in found}

        ids = run(statements.RECORDS, [fact for fact in wave if fact.state])
        over = [{"record_id": ids[fact.key]} for fact in wave if fact.key in ids and _is_news_of_requeue(fact)]
        self._run(statements.PAYLOADS_OVER, over)
        ids |= run(statements.LATE, [fact for fact in wave if fact.key not in ids and fact.message is None])
        ids |= run(statements.MESSAGES, [fact for fact in wave if fact.key not in ids and fact.message is not None])
        apart = [fact.apart() for fact in wave if fact.key not in ids and fact.message is not None]
        ids |= run(statements.RECORDS, apart)
        if any(fact.key not in ids for fact in apart):
            raise UnkeptError("the record with its id and life keeps another message")
        placed = [(fact, ids[fact.key]) for fact in (*wave, *apart) if fact.key in ids]
        self._keep(placed, now)
        return placed

    def _write_rollups(self, rollups: Sequence[Event], now: datetime) -> list[Event]:
        """Store the ids of rollups; return the new ones."""
        by_id = {event.event_id: event for event in rollups}
        new = self._run(statements.ROLLUPS, [{"event_id": each, "counted_at": now} for each in sorted(by_id)])
        return [by_id[event_id] for (event_id,) in new]

    def _not_collected(self, facts: Sequence[Fact]) -> list[Fact]:
        """Return the facts without messages that were written before. Waits for collectors that write one now."""
        messages = sorted({fact.digest for fact in facts if fact.message is not None})
        new = {digest for (digest,) in self._run(statements.COLLECTED, [{"digest": digest} for digest in messages])}
        found = []
        for fact in facts:
            if fact.message is None or fact.digest in new:
                new.discard(fact.digest)
                found.append(fact)
        return found

    def _keep(self, placed: Sequence[tuple[Fact, int]], now: datetime) -> None:
        """Store the messages of facts, and which records they went into."""
        messages = [(fact, fact.message, record_id) for fact, record_id in placed if fact.message is not None]
        kept = [rows.payload(message, fact.event.generation, record_id, now) for fact, message, record_id in messages]
        self._run(statements.PAYLOADS, kept)
        into = [{"digest": fact.digest, "record_id": record_id} for fact, _, record_id in messages]
        self._run(statements.COLLECTED_INTO, into)

    def _run(self, statement: Statement, given: Sequence[Mapping[str, Any]]) -> list[tuple[Any, ...]]:
        """Run a statement with its rows; return the rows of its RETURNING. Raises `django.db.DatabaseError`."""
        if not given:
            return []
        run = _on_postgres if self.connection.vendor == "postgresql" else _on_sqlite
        return run(self.connection, statement, given)


def _is_news_of_requeue(fact: Fact) -> bool:
    """Return whether an event shows that a requeued task has reached a worker, which did not revoke it on arrival."""
    return fact.message is None and fact.event.generation > 0 and fact.state is not TaskState.DISCARDED


def _on_postgres(
    connection: BaseDatabaseWrapper, statement: Statement, given: Sequence[Mapping[str, Any]]
) -> list[tuple[Any, ...]]:
    """Run one statement for all rows, as one array per column: several times as fast as row by row."""
    names = ", ".join(statement.columns)
    kinds = [statements.TYPES.get(name, "text") for name in statement.columns]
    arrays = ", ".join(f"%s::{kind}[]" for kind in kinds)
    with connection.cursor() as cursor:
        cursor.execute(
            statement.sql.format(source=f"unnest({arrays}) AS e({names})"),
            [_array([row[name] for row in given], kind) for name, kind in zip(statement.columns, kinds, strict=True)],
        )
        return cursor.fetchall() if cursor.description else []


def _on_sqlite(
    connection: BaseDatabaseWrapper, statement: Statement, given: Sequence[Mapping[str, Any]]
) -> list[tuple[Any, ...]]:
    """Run one statement per row: SQLite has no round trips to save."""
    values = ", ".join(f":{name} AS {name}" for name in statement.columns)
    sql = statement.sql.format(source=f"(SELECT {values}) AS e")
    found: list[tuple[Any, ...]] = []
    connection.ensure_connection()
    # Without Django's cursor, which would convert the placeholders in the statement for each row.
    with connection.wrap_database_errors:
        cursor = connection.connection.cursor()
        for row in given:
            found += cursor.execute(sql, {name: _sqlite_value(row[name]) for name in statement.columns}).fetchall()
    return found


def _sqlite_value(value: object) -> object:
    """Return a value as Django stores it in SQLite."""
    if not isinstance(value, datetime):
        return value
    zone = timezone.utc if settings.USE_TZ else get_default_timezone()
    return value.astimezone(zone).replace(tzinfo=None).isoformat(" ")


def _array(values: Iterable[Any], kind: str) -> str:
    """Return values as the text of a PostgreSQL array."""
    element = _ELEMENTS.get(kind, str)
    return f"{{{','.join(['NULL' if value is None else element(value) for value in values])}}}"


def _text(value: str) -> str:
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


#: How an element is written, by its type; numbers and booleans as they are.
_ELEMENTS: dict[str, Callable[[Any], str]] = {
    "text": _text,
    "jsonb": _text,
    "timestamptz": lambda value: f'"{value.isoformat()}"',
    "bytea": lambda value: f'"\\\\x{value.hex()}"',
}
