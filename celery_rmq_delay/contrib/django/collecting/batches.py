"""Writes batches into the sinks: retried while the database is down, split where it refuses a message."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING

from django.db import DatabaseError, DataError, Error, IntegrityError, reset_queries

from ....amqp.link import Backoff
from ....events.schema import ROLLUP, ROLLUP_SECONDS, Event
from ....exceptions import AbandonedError, HistoryError, RmqDelayError
from ..transactions import retried
from .database import Database
from .facts import Fact, Reader, Reading, Unreadable
from .facts import unreadable as unreadable_because
from .gathering import History

if TYPE_CHECKING:
    from .consumer import Delivery

logger = logging.getLogger(__name__)

#: Seconds between two attempts to write: the first, and the longest.
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 10.0

#: SQLSTATE classes of errors that a row causes: data, integrity, a limit of the program.
_ABOUT_DATA = ("22", "23", "54")


@dataclass(frozen=True)
class Item:
    """A message, the queue it came from, and what was read from it."""

    queue: str
    delivery: Delivery
    reading: Reading | None


@dataclass(frozen=True)
class Written:
    """What was written: how many unreadable messages, and the age of the youngest event (milliseconds)."""

    unreadable: int
    lag_ms: int


class Writer:
    """Writes batches into database and ``history``, in this order and in one thread.

    ``stop`` ends the retries while the database is down or the disk is full.
    """

    def __init__(
        self, reader: Reader, database: Database, stop: threading.Event, history: History | None = None
    ) -> None:
        self._reader, self._database, self._stop, self._history = reader, database, stop, history
        #: The present problem; None while there is none.
        self.problem: str | None = None

    @property
    def gathers(self) -> bool:
        """Whether written batches are stored only after the next `flush`."""
        return self._history is not None

    def write(self, batch: Sequence[tuple[str, Delivery]]) -> Written:
        """Write a batch, with retries; `flush` stores it if the writer `gathers`. Raises `AbandonedError` at a stop."""
        items = [Item(queue, delivery, self._reader.read(queue, delivery)) for queue, delivery in batch]
        self.held(lambda: self._write(items))
        reset_queries()  # with DEBUG Django keeps the last 9,000, and each of these has the rows of a batch
        times = [_over(each.reading.event) for each in items if isinstance(each.reading, Fact)]
        lag = (datetime.now(timezone.utc) - max(times)).total_seconds() * 1000 if times else 0
        unreadable = Counter(each.queue for each in items if _is_unreadable(each))
        for queue, count in unreadable.items():  # their errors quote their contents: no log has them
            logger.warning("Unreadable messages of %s were kept: %s. The admin shows their errors", queue, count)
        return Written(sum(unreadable.values()), max(0, round(lag)))

    def flush(self) -> None:
        """Store everything that was written so far, with retries. Raises `AbandonedError` as `write` does."""
        if self._history is not None:
            self.held(self._history.flush)

    def held(self, act: Callable[[], None]) -> None:
        """Call ``act`` until it raises no error of the database or the history files."""
        backoff = Backoff(FIRST_PAUSE, LONGEST_PAUSE)
        retried(act, (Error, HistoryError), lambda error: self._wait(error, backoff.pause()))
        self.problem = None

    def _wait(self, error: Exception, pause: float) -> None:
        if isinstance(error, Error):
            self.problem = f"The database: {type(error).__name__}: {error}".strip()
            self.disconnect()
        else:
            self.problem = str(error)
        logger.warning("A batch cannot be written: trying again in %g s. %s", pause, self.problem)
        if self._stop.wait(pause):
            raise AbandonedError(f"A batch stays in the broker: {self.problem}")

    def disconnect(self) -> None:
        """Close this thread's connection to the database; the next write opens one."""
        with suppress(Error):
            self._database.connection.close()

    def _write(self, items: Sequence[Item], *, again: bool = True) -> None:
        """Write these; where one of them is refused, the others are written all the same."""
        try:
            readings = [item.reading for item in items if item.reading is not None]
            self._database.write(readings)
            if self._history is not None:
                self._history.write(readings)
        except Exception as error:
            if not is_about_data(error):
                raise
            self._database.forget()
            if again:  # a failure group may have been deleted
                self._write(items, again=False)
            elif len(items) > 1:
                middle = len(items) // 2
                self._write(items[:middle], again=False)
                self._write(items[middle:], again=False)
            else:
                self._set_aside(items[0], error)

    def _set_aside(self, item: Item, error: Exception) -> None:
        if _is_unreadable(item):
            raise DatabaseError(f"A message of {item.queue} can be stored in no table: {error}") from error
        what = type(error).__name__  # its text may quote the row
        logger.error("A message of %s cannot be written (%s): it is kept as an unreadable message", item.queue, what)
        kept = unreadable_because(item.queue, item.delivery, error, self._reader.redaction)
        self._write([Item(item.queue, item.delivery, kept)], again=False)


def _over(event: Event) -> datetime:
    """Return when the reported period ended: a rollup is sent at the end of its `ROLLUP_SECONDS`."""
    return event.occurred_at + timedelta(seconds=ROLLUP_SECONDS if event.kind == ROLLUP else 0)


def _is_unreadable(item: Item) -> bool:
    return isinstance(item.reading, Unreadable)


def is_about_data(error: Exception) -> bool:
    """Return whether the rows caused an error, and not the database."""
    if isinstance(error, (MemoryError, RmqDelayError)):
        return False
    if isinstance(error, (DataError, IntegrityError)) or not isinstance(error, Error):
        return True
    state = getattr(error.__cause__, "sqlstate", None) or ""
    return state.startswith(_ABOUT_DATA)
