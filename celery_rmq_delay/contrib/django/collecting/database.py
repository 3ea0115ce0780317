"""Writes a batch into the tables in one transaction; writing it again after a crash changes nothing."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta, timezone

from django.db import connections, router, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from ....events import schema as events
from ....events.schema import Event
from ..models import CountedRollup, FailureGroup, TaskRecord, TaskState
from ..services.clock import utc_of
from ..signals import announce_ran_after_discard
from . import rows, statements
from .facts import Fact
from .reading import Reading, Rollup, Unreadable
from .statements import Statement
from .tables import Tables, tables_of

#: How long a rollup is remembered as counted.
REMEMBERED = timedelta(days=1)
#: The most groups and names that are cached; with more the cache starts empty again.
_MOST_KNOWN = 50_000
#: Seconds until the cache starts empty again: the retention deletes groups and names.
_KNOWN_FOR = 3_600.0


class UnkeptError(ValueError):
    """No table can take a message: the writer keeps it as an unreadable one."""


class Database:
    """Writes batches into the tables. Belongs to one thread.

    ``notify`` is called with the new events of each batch after its commit. It must not raise.
    """

    def __init__(self, notify: Callable[[Sequence[Event]], object] = lambda new: None) -> None:
        self._notify = notify
        self._groups: dict[str, int] = {}
        self._names: set[rows.Name] = set()
        self._known_since = time.monotonic()

    @property
    def connection(self) -> BaseDatabaseWrapper:
        """The connection of this thread."""
        return connections[router.db_for_write(TaskRecord)]

    def forget(self) -> None:
        """Clear the cache of groups and names: they may have been deleted."""
        self._groups.clear()
        self._names.clear()
        self._known_since = time.monotonic()

    def write(self, batch: Sequence[Reading]) -> None:
        """Write a batch; it is committed when this returns.

        Raises `django.db.Error`: then only groups and names of it are in the tables.
        """
        tables = tables_of(self.connection)
        facts = [each for each in batch if isinstance(each, Fact)]
        rollups = [each.event for each in batch if isinstance(each, Rollup)]
        # Outside of the transaction: no other collector waits for these names until it ends.
        self._know(tables, [*(fact.event for fact in facts), *rollups])
        with transaction.atomic(using=self.connection.alias):
            now = utc_of(self.connection)
            new = _not_collected(tables, facts)
            ran = tables.run(statements.RAN_AFTER_DISCARD, rows.runs(new))
            counted = self._write_facts(tables, new, now)
            counted += self._write_rollups(tables, rollups, now)
            unreadable = [each for each in batch if isinstance(each, Unreadable)]
            tables.run(statements.UNREADABLE, rows.unreadable(unreadable, now))
            tables.run(statements.GROUPS_SEEN, rows.groups(counted))
            tables.run(statements.TALLIES, rows.tallies(counted))
        self._notify(counted)
        announce_ran_after_discard([record_id for (record_id,) in ran])

    def tidy(self) -> None:
        """Delete the ids of rollups that will not be delivered again."""
        counted = CountedRollup.objects.using(self.connection.alias)
        counted.filter(counted_at__lt=datetime.now(timezone.utc) - REMEMBERED).delete()

    def _know(self, tables: Tables, named: Sequence[Event]) -> None:
        """Create the groups and lookup values that these events name."""
        is_old = time.monotonic() - self._known_since > _KNOWN_FOR
        if is_old or len(self._groups) + len(self._names) > _MOST_KNOWN:
            self.forget()
        new = {
            event.fingerprint: event for event in named if event.fingerprint and event.fingerprint not in self._groups
        }
        if new:
            tables.run(statements.GROUPS, rows.groups(new.values()))
            found = FailureGroup.objects.using(self.connection.alias).filter(fingerprint__in=list(new))
            self._groups.update(found.values_list("fingerprint", "pk"))
        names = rows.names(named) - self._names
        tables.run(statements.LOOKUPS, [{"kind": kind, "value": value} for kind, value in sorted(names)])
        self._names |= names

    def _write_facts(self, tables: Tables, facts: Sequence[Fact], now: datetime) -> list[Event]:
        """Write facts about tasks; return the events that were not in the tables before."""
        placed = [each for wave in rows.waves(facts) for each in self._write_wave(tables, wave, now)]
        facts, ids = [fact for fact, _ in placed], {fact.key: record_id for fact, record_id in placed}
        attempts = [rows.attempt(fact, record_id) for fact, record_id in placed]
        new = {event_id for (event_id,) in tables.run(statements.ATTEMPTS, rows.distinct(attempts))}
        exhausted = [fact for fact in facts if fact.event.kind == events.EXHAUSTED]
        times = Counter(fact.event.event_id for fact in exhausted)
        doubled = [fact for fact in exhausted if times[fact.event.event_id] > 1 or fact.event.event_id not in new]
        # The event and the message of one attempt come in any order: the second fills the gaps of the first.
        for of_message in (False, True):
            again = [fact for fact in doubled if (fact.message is not None) is of_message]
            filled = [rows.attempt(fact, ids[fact.key]) for fact in again]
            tables.run(statements.ATTEMPTS_AGAIN, rows.distinct(filled))
        first = {fact.event.event_id: fact.event for fact in reversed(facts)}
        return [event for event_id, event in first.items() if event_id in new]

    def _write_wave(self, tables: Tables, wave: Sequence[Fact], now: datetime) -> list[tuple[Fact, int]]:
        """Write the tasks and their messages; return the written facts with the ids of their records.

        History of a task without a record is left out. A message that fits no record gets a new one. Raises
        `UnkeptError` where it cannot: no message is left out.
        """

        def run(statement: Statement, facts: Sequence[Fact]) -> dict[tuple[str, str], int]:
            found = tables.run(statement, [rows.record(fact, self._groups, now) for fact in facts])
            return {(task_id, life): record_id for record_id, task_id, life in found}

        ids = run(statements.RECORDS, [fact for fact in wave if fact.state])
        over = [{"record_id": ids[fact.key]} for fact in wave if fact.key in ids and _is_news_of_requeue(fact)]
        tables.run(statements.PAYLOADS_OVER, over)
        ids |= run(statements.LATE, [fact for fact in wave if fact.key not in ids and fact.message is None])
        ids |= run(statements.MESSAGES, [fact for fact in wave if fact.key not in ids and fact.message is not None])
        apart = [fact.apart() for fact in wave if fact.key not in ids and fact.message is not None]
        ids |= run(statements.RECORDS, apart)
        if any(fact.key not in ids for fact in apart):
            raise UnkeptError("the record with its id and life keeps another message")
        placed = [(fact, ids[fact.key]) for fact in (*wave, *apart) if fact.key in ids]
        _keep(tables, placed, now)
        return placed

    def _write_rollups(self, tables: Tables, rollups: Sequence[Event], now: datetime) -> list[Event]:
        """Store the ids of rollups; return the new ones."""
        by_id = {event.event_id: event for event in rollups}
        new = tables.run(statements.ROLLUPS, [{"event_id": each, "counted_at": now} for each in sorted(by_id)])
        return [by_id[event_id] for (event_id,) in new]


def _not_collected(tables: Tables, facts: Sequence[Fact]) -> list[Fact]:
    """Return the facts without those of messages that this collector or another one has written before.

    Waits for other collectors that are writing one of them now.
    """
    messages = sorted({fact.digest for fact in facts if fact.message is not None})
    new = {digest for (digest,) in tables.run(statements.COLLECTED, [{"digest": digest} for digest in messages])}
    found = []
    for fact in facts:
        if fact.message is None or fact.digest in new:
            new.discard(fact.digest)
            found.append(fact)
    return found


def _is_news_of_requeue(fact: Fact) -> bool:
    """Return whether an event shows that a requeued task has reached a worker, which did not revoke it on arrival."""
    return fact.message is None and fact.event.generation > 0 and fact.state is not TaskState.DISCARDED


def _keep(tables: Tables, placed: Sequence[tuple[Fact, int]], now: datetime) -> None:
    """Store the messages of facts, and which records they went into."""
    messages = [(fact, fact.message, record_id) for fact, record_id in placed if fact.message is not None]
    kept = [rows.payload(message, fact.event.generation, record_id, now) for fact, message, record_id in messages]
    tables.run(statements.PAYLOADS, kept)
    into = [{"digest": fact.digest, "record_id": record_id} for fact, _, record_id in messages]
    tables.run(statements.COLLECTED_INTO, into)
