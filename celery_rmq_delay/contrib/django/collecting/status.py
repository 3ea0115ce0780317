"""The status of a collector that the admin shows."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone

from django.db import Error

from ..models import CollectorStatus
from ..queries import plural
from ..services.counts import broker_counts, parked_difference
from .batches import Writer, Written
from .database import Database
from .deliveries import Delivery

logger = logging.getLogger(__name__)

#: Time without a heartbeat after which another collector deletes the row.
STALE = timedelta(hours=1)
#: How long an unreadable message is shown as the last error.
ERROR_SHOWN = timedelta(hours=1)
#: Seconds between two summaries in the log.
REPORT_EVERY = 300.0
#: Seconds between two comparisons of delay queues and table.
COMPARE_EVERY = 60.0


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
