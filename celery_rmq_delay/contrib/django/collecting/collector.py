"""The collector's loop: receive messages, hand batches to the writer, ack what it has written.

The writer has a thread of its own: the loop never uses the database, so heartbeats go on while a write takes long.
Batches are written one after the other, and acked in the same order.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ....amqp.link import Backoff
from ....exceptions import AbandonedError
from ....fence import process_name
from ..alerts.notifier import notifying
from ..broker import delay
from ..conf import conf
from .batches import Writer
from .consumer import CONNECTION_ERRORS, Consumer, Delivery
from .database import Database
from .facts import Reader
from .gathering import History, open_files
from .status import Health, Status, metrics, serving

logger = logging.getLogger(__name__)

#: Seconds between two attempts to connect to the broker: the first, and the longest.
FIRST_PAUSE, LONGEST_PAUSE = 0.2, 10.0
#: Seconds between two counts of the queues, which the status shows.
COUNT_EVERY = 5.0
#: Seconds that the loop waits for messages: while a batch is being written, and while it is idle.
_BUSY, _IDLE = 0.01, 0.2
#: The most bytes of a batch, and of all messages in memory.
BATCH_BYTES, MAX_BYTES = 16 * 1024 * 1024, 64 * 1024 * 1024
#: Batches under way: one that is being written, and the next one. A third fills up meanwhile.
_UNDER_WAY = 2
PREFETCH_BATCHES = _UNDER_WAY + 1
#: The most messages of a batch, and of a prefetch: AMQP's limit.
MAX_BATCH, MAX_PREFETCH = 20_000, 65_535
#: The most messages of a history file.
FILE_MESSAGES = 10_000


@dataclass(frozen=True)
class Options:
    """Options of a collector: ``batch`` messages, or those of ``age`` seconds, are written together.

    With history files, messages are gathered for ``file_age`` seconds per file, and acked after that. The
    collector ends when the queues are empty (``once``), or after ``max_seconds``.
    """

    batch: int = 1000
    age: float = 0.5
    file_age: float = 10.0
    once: bool = False
    max_seconds: float | None = None

    def prefetch(self, *, gathers: bool) -> int:
        """Return the prefetch count, with (``gathers``) and without history files."""
        # Two files: one is being written while the other fills up.
        return min(MAX_PREFETCH, PREFETCH_BATCHES * self.batch + (2 * FILE_MESSAGES if gathers else 0))


@dataclass(frozen=True)
class _Work:
    """A batch that is being written, or history files with all messages up to ``tag``."""

    future: Future[Any]
    tag: int
    messages: Sequence[tuple[str, Delivery]] = ()
    size: int = 0


@dataclass
class _Gathered:
    """Messages up to ``tag`` that are in the tables, but in no history file yet; the first was added at ``since``."""

    tag: int = 0
    count: int = 0
    size: int = 0
    since: float = 0.0

    def add(self, batch: _Work) -> None:
        self.since = self.since or time.monotonic()
        self.tag = batch.tag
        self.count += len(batch.messages)
        self.size += batch.size

    def is_due(self, age: float) -> bool:
        is_full = self.count >= FILE_MESSAGES or self.size >= BATCH_BYTES
        return is_full or (self.count > 0 and time.monotonic() - self.since >= age)


class Collector:
    """Drains the queues of ``consumer`` into ``writer`` until ``stop`` is set."""

    def __init__(
        self,
        options: Options,
        consumer: Consumer,
        writer: Writer,
        status: Status,
        health: Health,
        stop: threading.Event,
    ) -> None:
        self._options, self._consumer, self._writer = options, consumer, writer
        self._status, self._health, self._stop = status, health, stop
        self._thread = ThreadPoolExecutor(1, "rmq-delay-writer")
        self._under_way: deque[_Work] = deque()
        self._gathered = _Gathered()
        self._saving: Future[None] = Future()
        self._saving.set_result(None)
        self._first_at = 0.0
        self._next_count = 0.0
        self._empty_counts = 0
        self._is_quiet = False
        self._ends_at = None if options.max_seconds is None else time.monotonic() + options.max_seconds

    def run(self) -> None:
        """Collect until ``stop`` is set, then finish the batches under way."""
        try:
            self._run()
        finally:
            self._thread.submit(self._status.remove)
            self._thread.submit(self._writer.disconnect)
            self._thread.shutdown()

    def _run(self) -> None:
        backoff = Backoff(FIRST_PAUSE, LONGEST_PAUSE)
        while not self._must_stop():
            try:
                with self._consumer.connected():
                    backoff.reset()
                    logger.info("Connected to the broker")
                    self._serve()
                    break
            except CONNECTION_ERRORS as error:
                self._health.problem = f"The broker: {type(error).__name__}: {error}"
                pause = backoff.pause()
                logger.warning("The connection to the broker failed: trying again in %g s. %s", pause, error)
                self._leave()
                self._stop.wait(pause)
            except AbandonedError as error:
                # Later acks would include this batch (multiple=True): the broker redelivers all of it.
                logger.warning("%s", error)
                self._leave()
                break

    def _leave(self) -> None:
        """Drop the batches under way: the broker redelivers them, and writing them twice changes nothing."""
        for batch in self._under_way:
            batch.future.cancel()
        self._under_way.clear()
        self._gathered = _Gathered()

    def _must_stop(self) -> bool:
        if self._ends_at is not None and time.monotonic() >= self._ends_at:
            self._stop.set()
        return self._stop.is_set()

    def _serve(self) -> None:
        """Collect on one connection, until the collector is done."""
        self._next_count = 0.0
        while not self._must_stop():
            self._count_queues()
            self._receive()
            self._settle()
            self._cut(all_of_it=False)
            self._secure(all_of_it=self._options.once and self._is_quiet and not self._under_way)
            if self._options.once and self._empty_counts > 1:
                return
        self._finish()

    def _receive(self) -> None:
        received = self._consumer.received
        if self._consumer.size + sum(batch.size for batch in self._under_way) > MAX_BYTES:
            self._consumer.pause(_BUSY)
        else:
            had = len(received)
            is_busy = self._under_way or had or self._options.once
            self._consumer.receive(had + self._options.batch, _BUSY if is_busy else _IDLE)
            self._is_quiet = len(received) == had
            if not had and received:
                self._first_at = time.monotonic()
        if self._writer.problem is None:
            self._health.good()
        else:
            self._health.problem = self._writer.problem

    def _cut(self, *, all_of_it: bool) -> None:
        """Hand batches to the writer: full ones, and a smaller one when it is old and the writer is idle."""
        consumer, options = self._consumer, self._options
        while consumer.received and (len(self._under_way) < _UNDER_WAY or all_of_it):
            is_full = len(consumer.received) >= options.batch or consumer.size >= BATCH_BYTES
            is_old = time.monotonic() - self._first_at >= options.age or (options.once and self._is_quiet)
            if not (is_full or all_of_it or (is_old and not self._under_way)):
                return
            messages = consumer.take(options.batch, BATCH_BYTES)
            future = self._thread.submit(self._writer.write, messages)
            size = sum(delivery.size for _, delivery in messages)
            self._under_way.append(_Work(future, messages[-1][1].delivery_tag, messages, size))
            self._first_at = time.monotonic()

    def _settle(self) -> None:
        """Ack stored batches. Raises `AbandonedError`: then nothing more may be acked on this connection."""
        while self._under_way and self._under_way[0].future.done():
            work = self._under_way.popleft()
            written = work.future.result()
            if work.messages and self._writer.gathers:
                self._gathered.add(work)
            else:
                self._consumer.ack(work.tag)
            if work.messages:
                self._status.count(work.messages, written)

    def _secure(self, *, all_of_it: bool) -> None:
        """Start writing the history files of gathered messages: when they are due, or at once."""
        held = self._gathered
        if held.is_due(self._options.file_age) or (all_of_it and held.count):
            self._under_way.append(_Work(self._thread.submit(self._writer.flush), held.tag))
            self._gathered = _Gathered()

    def _count_queues(self) -> None:
        """Count the queues from time to time, or when ``once`` may be done, and save the status."""
        has_work = self._under_way or self._consumer.received or self._gathered.count
        is_idle = self._options.once and not has_work
        now = time.monotonic()
        if not is_idle and now < self._next_count:
            return
        if now >= self._next_count:
            self._next_count = now + COUNT_EVERY
        counts = self._consumer.count()
        self._empty_counts = self._empty_counts + 1 if is_idle and not any(counts.values()) else 0
        self._status.waiting = sum(counts.values())
        self._status.report()
        if self._saving.done():
            self._saving = self._thread.submit(self._status.save)

    def _finish(self) -> None:
        """Write and ack the received messages; those that the database or the disk refuses stay in the broker."""
        self._cut(all_of_it=True)
        while self._under_way or self._gathered.count:
            self._settle()
            self._secure(all_of_it=not self._under_way)
            self._consumer.pause(_BUSY)


def collect(options: Options, health_file: Path | None, http: str | None, stop: threading.Event) -> None:
    """Collect until ``stop`` or the options end it; ``http`` is the address of the pages. Raises `RmqDelayError`."""
    app_side = delay()
    settings = app_side.settings
    events, exhausted = settings.names.events, settings.exhausted_queue
    # Where messages are not stored, exhausted ones stay in their queue.
    queues = [events] if conf().store_payload == "never" else [events, exhausted]
    history = None if (place := conf().history_url) is None else History(open_files(place))
    page, observe = metrics()
    database, health = Database(observe if http else None), Health(health_file)
    database.check()
    writer = Writer(Reader(events, settings.redaction), database, stop, history=history)
    status = Status(process_name(), events, database, writer)
    consumer = Consumer(app_side, queues, options.prefetch(gathers=writer.gathers))
    pages = {"/healthz": health.page, "/metrics": page}
    with notifying(), serving(http, pages) if http else nullcontext():
        used = database.connection
        logger.info("Collecting from %s into the database %s (%s)", ", ".join(queues), used.alias, used.vendor)
        Collector(options, consumer, writer, status, health, stop).run()
    logger.info("Ended: %s", status.summary)
