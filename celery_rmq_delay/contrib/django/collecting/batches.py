"""Writes batches into the sinks: retried while the database is down, split where it refuses a message."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Protocol

from django.db import DatabaseError, DataError, Error, IntegrityError, reset_queries

from ....amqp.link import Backoff
from ....events.schema import ROLLUP_SECONDS
from ....exceptions import AbandonedError, HistoryError, RmqDelayError
from ..transactions import retried
from .database import Database
from .deliveries import Delivery
from .facts import Fact
from .reading import Reader, Reading, Rollup, Unreadable, unreadable

logger = logging.getLogger(__name__)

#: Seconds between two attempts to write: the first, and the longest.
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 10.0

#: SQLSTATE classes of errors that a row causes: data, integrity, a limit of the program.
_ABOUT_DATA = ("22", "23", "54")


class Sink(Protocol):
    """A destination of batches: `Database`, `History`."""

    def write(self, batch: Sequence[Reading]) -> None:
        """Write a batch: it is stored when this returns, and writing it again changes nothing."""


class GatheringSink(Sink, Protocol):
    """A destination where batches are stored only after `flush`: `History`."""

    def flush(self) -> None:
        """Store everything that was written so far. Raises `HistoryError`: then it may be called again."""


@dataclass(frozen=True)
class Item:
    """A message, the queue it came from, and what was read from it."""

    queue: str
    delivery: Delivery
    reading: Reading | None


@dataclass(frozen=True)
class Written:
    """What was written: messages, unreadable ones among them, and the age of the youngest event (milliseconds)."""

    count: int
    unreadable: int
    lag_ms: int


class Writer:
    """Writes batches into database, ``sinks`` and ``history``, in this order and in one thread.

    ``stop`` ends the retries while the database is down or the disk is full.
    """

    def __init__(
        self,
        reader: Reader,
        database: Database,
        stop: threading.Event,
        sinks: Sequence[Sink] = (),
        history: GatheringSink | None = None,
    ) -> None:
        self._reader, self._database, self._stop = reader, database, stop
        self._history = history
        self._sinks: Sequence[Sink] = (database, *sinks) if history is None else (database, *sinks, history)
        #: The present problem; None while there is none.
        self.problem: str | None = None

    @property
    def gathers(self) -> bool:
        """Whether written batches are stored only after the next `flush`."""
        return self._history is not None

    def write(self, batch: Sequence[tuple[str, Delivery]]) -> Written:
        """Write a batch, with retries; where the writer `gathers`, it is stored only after `flush`.

        Raises `AbandonedError` when ``stop`` is set before every sink has taken it.
        """
        items = [Item(queue, delivery, self._reader.read(queue, delivery)) for queue, delivery in batch]
        self.held(lambda: self._write(items))
        reset_queries()  # with DEBUG Django keeps the last 9,000, and each of these has the rows of a batch
        times = [_over(each.reading) for each in items if isinstance(each.reading, (Fact, Rollup))]
        lag = (datetime.now(timezone.utc) - max(times)).total_seconds() * 1000 if times else 0
        _log_unreadable(items)
        return Written(len(items), sum(map(_is_unreadable, items)), max(0, round(lag)))

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
        """Write these; where a sink refuses one of them, the others are written all the same."""
        try:
            for sink in self._sinks:
                sink.write([item.reading for item in items if item.reading is not None])
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
        kept = unreadable(item.queue, item.delivery, error, self._reader.redaction)
        self._write([Item(item.queue, item.delivery, kept)], again=False)


def _over(reading: Fact | Rollup) -> datetime:
    """Return when the reported period ended: a rollup is sent at the end of its `ROLLUP_SECONDS`."""
    span = ROLLUP_SECONDS if isinstance(reading, Rollup) else 0
    return reading.event.occurred_at + timedelta(seconds=span)


def _log_unreadable(items: Sequence[Item]) -> None:
    """Log how many messages of each queue could not be read. Their errors quote their contents: no log has them."""
    for queue, count in Counter(each.queue for each in items if _is_unreadable(each)).items():
        logger.warning("Unreadable messages of %s were kept: %s. The admin shows their errors", queue, count)


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
