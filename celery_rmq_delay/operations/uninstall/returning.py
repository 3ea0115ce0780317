"""Return messages to their queues as Celery publishes them, so that they need no object of this package any more."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from ... import headers as h
from ...amqp.apply import ready_counts
from ...amqp.copies import copy_of
from ...amqp.route import Route
from ...amqp.scan import scanning
from ...names import quarantine
from ..migration.address import Address, Destination, Waiting
from ..migration.mover import Copy, LeftError, Mover, Plan
from ..migration.report import Report
from ..migration.sources import Queues, Source

if TYPE_CHECKING:
    from collections.abc import Callable

    from kombu import Connection

    from ...amqp.objects import Queue


class _Home(Plan):
    """Publishes each message to its queue, with its attempts as Celery's ``retries`` and its due time as ``eta``."""

    def __init__(self, connection: Connection, source: Source, poison: Queue) -> None:
        super().__init__(connection, source, None, poison)  # type: ignore[arg-type]  # only `_copy` uses the target

    def _copy(self, raw: dict[str, Any], address: Address, to: Destination, now: int) -> Copy:
        if not self._there(to.queue):
            raise LeftError(f"queue {to.queue!r} does not exist")
        headers = stock_headers(raw)
        if address.retries is not None:
            headers["retries"] = address.retries
        if address.due_ms > now:
            headers["eta"] = h.timestamp(datetime.fromtimestamp(address.due_ms / 1000, timezone.utc))
        elif "eta" in headers:
            headers["eta"] = None
        return Copy(Route("", to.queue), headers, "delivered", to.queue)


def stock_headers(raw: h.Headers) -> dict[str, Any]:
    """Return the headers of a message without those of this package, of the broker and of the delaying plugin."""
    return {name: value for name, value in h.of_task(raw).items() if name != "x-delay"}


def quarantined(queue: str) -> Source:
    """Return the quarantine queue of an origin queue, whose messages are due."""

    def address(found: Waiting, _now_ms: int) -> Address:
        return Address((Destination(queue),), 0, h.retries(found.headers, queue))

    return Queues("quarantine", (quarantine(queue),), address)


def send_home(connection: Connection, source: Source, poison: Queue, stopped: Callable[[], bool]) -> Report:
    """Publish the messages of a source to their queues, each with confirm before it is acked; return the counts."""
    report = Report(source.name, "queues")
    Mover(connection, source, _Home(connection, source, poison), report, stopped=stopped).run()
    return report


def renew(connection: Connection, queue: str) -> None:
    """Publish each message that a queue has now to that queue again, with its attempts counted.

    Stock Celery publishes a retry to the exchange from which its message came. Raises `PublishError` where a message
    stays as it is.
    """
    count = ready_counts(connection, [queue])[queue]
    if not count:
        return
    with scanning(connection, queue, count) as scan:  # by gets, which are not ahead: the copies are not among them
        for message in scan:
            headers = stock_headers(message.headers)
            if retries := h.retries(message.headers, queue):
                headers["retries"] = retries
            copy = copy_of(message, headers)
            if "expiration" in message.properties:
                copy.properties["expiration"] = message.properties["expiration"]
            scan.move(message, copy, "", queue)
        scan.synchronise()
