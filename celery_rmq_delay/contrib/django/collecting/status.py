"""What a collector shows of itself: a row for the admin, a file that it touches, and pages over HTTP."""

from __future__ import annotations

import importlib.util
import json
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from django.db import Error, connections

from ....exceptions import RmqDelayError
from ..models import CollectorStatus
from ..queries import plural
from ..services.counts import broker_counts, parked_difference
from .announcing import Observe
from .batches import Writer, Written
from .consumer import Delivery
from .database import Database

logger = logging.getLogger(__name__)

#: Time without a heartbeat after which another collector deletes the row.
STALE = timedelta(hours=1)
#: How long an unreadable message is shown as the last error.
ERROR_SHOWN = timedelta(hours=1)
#: Seconds between two summaries in the log.
REPORT_EVERY = 300.0
#: Seconds between two comparisons of delay queues and table.
COMPARE_EVERY = 60.0
#: Seconds after its last good turn for which a collector counts as healthy.
FRESH = 30.0
#: Seconds between two touches of the file.
_TOUCH = 1.0

#: The status, the content type and the body of an HTTP response.
Answer = tuple[int, str, bytes]
Page = Callable[[], Answer]

_MISSING = b'No metrics without prometheus-client: pip install "celery-rmq-delay[prometheus]".\n'


class Status:
    """The row of this collector; counted in the loop, saved in the writer's thread."""

    def __init__(self, name: str, events_queue: str, database: Database, writer: Writer) -> None:
        self._name, self._events_queue = name, events_queue
        self._database, self._writer = database, writer
        self._started_at = datetime.now(timezone.utc)
        self._events = self._exhausted = self._unreadable = self._lag_ms = 0
        self._report_at = time.monotonic() + REPORT_EVERY
        self._error, self._error_at = "", self._started_at
        self._differs_by = 0
        self._differs_since: datetime | None = None
        self._compare_at = 0.0
        #: The messages in the queues.
        self.waiting = 0

    def count(self, messages: Sequence[tuple[str, Delivery]], written: Written) -> None:
        """Count a batch that was written."""
        events = sum(queue == self._events_queue for queue, _ in messages)
        self._events += events
        self._exhausted += len(messages) - events
        self._lag_ms = written.lag_ms
        self._unreadable += written.unreadable
        if written.unreadable:
            were = plural(written.unreadable, "message of a batch was", "messages of a batch were")
            self._error = f"{written.unreadable} {were} unreadable."
            self._error_at = datetime.now(timezone.utc)

    @property
    def summary(self) -> str:
        """A text about the messages collected so far."""
        counts = f"{self._events} events and {self._exhausted} exhausted messages collected"
        return f"{counts}, {self._unreadable} of them unreadable; lag {self._lag_ms} ms, {self.waiting} waiting"

    def report(self) -> None:
        """Log the summary where that is due."""
        if time.monotonic() >= self._report_at:
            self._report_at = time.monotonic() + REPORT_EVERY
            logger.info("%s", self.summary)

    def save(self) -> None:
        """Write the row; only logs a warning where the database is down."""
        now = datetime.now(timezone.utc)
        if now - self._error_at > ERROR_SHOWN:
            self._error = ""
        values = {
            "heartbeat_at": now,
            "events": self._events,
            "exhausted": self._exhausted,
            "lag_ms": self._lag_ms,
            "waiting": self.waiting,
            "last_error": self._writer.problem or self._error,
        }
        try:
            values |= self._difference(now)
            rows = CollectorStatus.objects.using(self._database.connection.alias)
            created = {**values, "started_at": self._started_at}
            rows.update_or_create(name=self._name, defaults=values, create_defaults=created)
            rows.filter(heartbeat_at__lt=now - STALE).delete()
            self._database.tidy()
        except Error as error:
            logger.warning("The status of this collector could not be saved: %s", error)
            self._writer.disconnect()

    def _difference(self, now: datetime) -> dict[str, object]:
        """Compare delay queues and table from time to time; return the columns that have the result."""
        if time.monotonic() >= self._compare_at:
            self._compare_at = time.monotonic() + COMPARE_EVERY
            found = parked_difference(broker_counts(), now)
            if found is not None:
                self._differs_by = found
                self._differs_since = (self._differs_since or now) if found else None
        return {"differs_by": self._differs_by, "differs_since": self._differs_since}

    def remove(self) -> None:
        """Remove the row, at the end."""
        try:
            CollectorStatus.objects.using(self._database.connection.alias).filter(name=self._name).delete()
        except Error:
            self._writer.disconnect()


class Health:
    """Whether the collector is connected to the broker and can write what it receives.

    ``file`` is touched after good turns, once in `_TOUCH` seconds at most. Where it cannot be, that is logged, and
    is no error. Raises `RmqDelayError` if its folder does not exist.
    """

    def __init__(self, file: Path | None = None) -> None:
        self._file = file
        self._good_at = self._touched_at = float("-inf")
        self._problem_of_file: str | None = None
        #: The last problem; None after a good turn.
        self.problem: str | None = "It has not connected to the broker yet."
        if file is not None:
            try:
                (
                    file.parent / ".."
                ).stat()  # unlike `is_dir`, also an error where this process may not enter the folder
            except OSError as error:
                raise RmqDelayError(
                    f"--health-file: found {file.parent}: {error.strerror}. "
                    "Use a folder that exists and that this process may enter."
                ) from error

    def good(self) -> None:
        """Note a good turn."""
        self.problem, self._good_at = None, time.monotonic()
        if self._file is not None and self._good_at - self._touched_at >= _TOUCH:
            self._touched_at = self._good_at
            self._touch(self._file)

    def _touch(self, file: Path) -> None:
        before, self._problem_of_file = self._problem_of_file, None
        try:
            file.touch()
        except OSError as error:
            self._problem_of_file = error.strerror
            if error.strerror != before:
                hint = "Collecting continues; create its folder, free disk space, or permit this process to write it"
                logger.warning("--health-file %s cannot be written: %s. %s", file, error.strerror, hint)
        else:
            if before is not None:
                logger.info("--health-file %s is written again", file)

    @property
    def is_well(self) -> bool:
        """Whether the last good turn is at most `FRESH` seconds ago."""
        return time.monotonic() - self._good_at < FRESH

    def page(self) -> Answer:
        """Return the response of ``/healthz``: 200, or 503 with the problem."""
        state = {"ok": self.is_well, "problem": self.problem}
        return (200 if self.is_well else 503), "application/json", json.dumps(state).encode() + b"\n"


def metrics() -> tuple[Page, Observe | None]:
    """Return the page, and the function that observes the lateness of retries; None without prometheus-client."""
    if importlib.util.find_spec("prometheus_client") is None:
        return (lambda: (501, "text/plain; charset=utf-8", _MISSING)), None
    from .. import prometheus

    registry = prometheus.registry()

    def page() -> Answer:
        try:
            text, content_type = prometheus.exposition(registry)
        finally:
            connections.close_all()  # of this thread, which ends with the request
        return 200, content_type, text

    return page, prometheus.observe_lateness


@contextmanager
def serving(address: str, pages: Mapping[str, Page]) -> Iterator[None]:
    """Serve pages on ``HOST:PORT`` or ``:PORT``, which binds to 127.0.0.1 only, in threads. Raises `RmqDelayError`."""
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65_535:
        raise RmqDelayError(f"--http: found {address!r}. Write HOST:PORT, such as 127.0.0.1:9808.")
    try:
        server = ThreadingHTTPServer((host.strip("[]") or "127.0.0.1", int(port)), _handler(pages))
    except OSError as error:
        raise RmqDelayError(f"--http {address}: found {error}. Use an address of this host and a free port.") from error
    with server:
        threading.Thread(target=server.serve_forever, name="rmq-delay-http", daemon=True).start()
        try:
            yield
        finally:
            server.shutdown()


def _handler(pages: Mapping[str, Page]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            page = pages.get(self.path.partition("?")[0])
            status, kind, body = page() if page else (404, "text/plain; charset=utf-8", b"No such page.\n")
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class calls it so
            logger.debug(format, *args)

    return Handler
