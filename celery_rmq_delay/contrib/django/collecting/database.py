"""One batch into the tables, in one transaction: written again after a crash it changes nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta, timezone

from django.db import connections, router, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from ....events import schema as events
from ....events.schema import Event
from ..models import CountedRollup, FailureGroup, TaskRecord, TaskState
from . import rows, statements
from .facts import Fact
from .reading import Reading, Rollup, Unreadable
from .statements import Statement
from .tables import Tables, tables_of

#: How long a rollup is remembered as counted.
REMEMBERED = timedelta(days=1)
#: How many names are known before they are all looked up again.
_MOST_KNOWN = 50_000


class UnkeptError(ValueError):
    """A message has a place in no table: the writer keeps it among the unreadable ones."""


class Database:
    """The tables as the collector writes them. Belongs to one thread.

    ``tell`` is given the events that were not in the tables before, once they are committed. It must not raise.
    """

    def __init__(self, tell: Callable[[Sequence[Event]], object] = lambda new: None) -> None:
        self._tell = tell
        self._groups: dict[str, int] = {}
        self._names: set[rows.Name] = set()

    @property
    def connection(self) -> BaseDatabaseWrapper:
        """The connection of this thread."""
        return connections[router.db_for_write(TaskRecord)]

    def forget(self) -> None:
        """Look up groups and names again: somebody may have deleted them."""
        self._groups.clear()
        self._names.clear()

    def write(self, batch: Sequence[Reading]) -> None:
        """Write a batch; it is committed when this returns.

        Raises `django.db.Error`: then nothing of it is in the tables, but for names.
        """
        tables = tables_of(self.connection)
        told = [each for each in batch if isinstance(each, Fact)]
        rollups = [each.event for each in batch if isinstance(each, Rollup)]
        # Outside of the transaction: nobody waits for a name until a batch is done.
        self._know(tables, [*(fact.event for fact in told), *rollups])
        with transaction.atomic(using=self.connection.alias):
            now = datetime.now(timezone.utc)
            counted = self._write_facts(tables, _not_collected(tables, told), now)
            counted += self._write_rollups(tables, rollups, now)
            unreadable = [each for each in batch if isinstance(each, Unreadable)]
            tables.run(statements.UNREADABLE, rows.unreadable(unreadable, now))
            tables.run(statements.GROUPS_SEEN, rows.groups(counted))
            tables.run(statements.TALLIES, rows.tallies(counted))
        self._tell(counted)

    def tidy(self) -> None:
        """Forget rollups that will not be delivered again."""
        counted = CountedRollup.objects.using(self.connection.alias)
        counted.filter(counted_at__lt=datetime.now(timezone.utc) - REMEMBERED).delete()

    def _know(self, tables: Tables, told: Sequence[Event]) -> None:
        """Make the groups and lookup values that these events need."""
        if len(self._groups) + len(self._names) > _MOST_KNOWN:
            self.forget()
        new = {
            event.fingerprint: event for event in told if event.fingerprint and event.fingerprint not in self._groups
        }
        if new:
            tables.run(statements.GROUPS, rows.groups(new.values()))
            found = FailureGroup.objects.using(self.connection.alias).filter(fingerprint__in=list(new))
            self._groups.update(found.values_list("fingerprint", "pk"))
        names = rows.names(told) - self._names
        tables.run(statements.LOOKUPS, [{"kind": kind, "value": value} for kind, value in sorted(names)])
        self._names |= names

    def _write_facts(self, tables: Tables, told: Sequence[Fact], now: datetime) -> list[Event]:
        """Write what is told of tasks; return the events that were not in the tables."""
        placed = [each for wave in rows.waves(told) for each in self._write_wave(tables, wave, now)]
        told, ids = [fact for fact, _ in placed], {fact.key: record_id for fact, record_id in placed}
        attempts = [rows.attempt(fact, record_id) for fact, record_id in placed]
        new = {event_id for (event_id,) in tables.run(statements.ATTEMPTS, rows.distinct(attempts))}
        exhausted = [fact for fact in told if fact.event.kind == events.EXHAUSTED]
        times = Counter(fact.event.event_id for fact in exhausted)
        doubled = [fact for fact in exhausted if times[fact.event.event_id] > 1 or fact.event.event_id not in new]
        # The event and the message of one attempt, in any order: each adds what the other has not said.
        for of_message in (False, True):
            again = [fact for fact in doubled if (fact.message is not None) is of_message]
            filled = [rows.attempt(fact, ids[fact.key]) for fact in again]
            tables.run(statements.ATTEMPTS_AGAIN, rows.distinct(filled))
        first = {fact.event.event_id: fact.event for fact in reversed(told)}
        return [event for event_id, event in first.items() if event_id in new]

    def _write_wave(self, tables: Tables, wave: Sequence[Fact], now: datetime) -> list[tuple[Fact, int]]:
        """Write the tasks, and keep their messages; return what was written, with the ids of the records.

        History of a task without a record is left out. A message that no record takes begins one. Raises `UnkeptError`
        where it cannot: no message is left out.
        """

        def run(statement: Statement, facts: Sequence[Fact]) -> dict[tuple[str, str], int]:
            found = tables.run(statement, [rows.record(fact, self._groups, now) for fact in facts])
            return {(task_id, life): record_id for record_id, task_id, life in found}

        ids = run(statements.RECORDS, [fact for fact in wave if fact.state])
        over = [{"record_id": ids[fact.key]} for fact in wave if fact.key in ids and _is_heard(fact)]
        tables.run(statements.PAYLOADS_OVER, over)
        ids |= run(statements.LATE, [fact for fact in wave if fact.key not in ids and fact.message is None])
        ids |= run(statements.MESSAGES, [fact for fact in wave if fact.key not in ids and fact.message is not None])
        apart = [fact.apart() for fact in wave if fact.key not in ids and fact.message is not None]
        ids |= run(statements.RECORDS, apart)
        if any(fact.key not in ids for fact in apart):
            raise UnkeptError("its task has a row for it, and that keeps another message")
        placed = [(fact, ids[fact.key]) for fact in (*wave, *apart) if fact.key in ids]
        _keep(tables, placed, now)
        return placed

    def _write_rollups(self, tables: Tables, rollups: Sequence[Event], now: datetime) -> list[Event]:
        """Remember rollups; return those that are new."""
        by_id = {event.event_id: event for event in rollups}
        new = tables.run(statements.ROLLUPS, [{"event_id": each, "counted_at": now} for each in sorted(by_id)])
        return [by_id[event_id] for (event_id,) in new]


def _not_collected(tables: Tables, told: Sequence[Fact]) -> list[Fact]:
    """Return what is told without the messages that were written before, by this collector or by another one.

    Another collector that is writing one of them now is waited for.
    """
    messages = sorted({fact.digest for fact in told if fact.message is not None})
    new = {digest for (digest,) in tables.run(statements.COLLECTED, [{"digest": digest} for digest in messages])}
    found = []
    for fact in told:
        if fact.message is None or fact.digest in new:
            new.discard(fact.digest)
            found.append(fact)
    return found


def _is_heard(fact: Fact) -> bool:
    """Return whether an event tells of a requeue that arrived: not where a worker revoked the task on arrival."""
    return fact.message is None and fact.event.generation > 0 and fact.state is not TaskState.DISCARDED


def _keep(tables: Tables, placed: Sequence[tuple[Fact, int]], now: datetime) -> None:
    """Keep the messages among the facts, and remember that they are kept."""
    messages = [(fact, fact.message, record_id) for fact, record_id in placed if fact.message is not None]
    kept = [rows.payload(message, fact.event.generation, record_id, now) for fact, message, record_id in messages]
    tables.run(statements.PAYLOADS, kept)
    into = [{"digest": fact.digest, "record_id": record_id} for fact, _, record_id in messages]
    tables.run(statements.COLLECTED_INTO, into)
