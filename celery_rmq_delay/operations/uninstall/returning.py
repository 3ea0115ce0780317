"""Return messages to their queues as Celery publishes them, so that they need no object of this package any more."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ... import headers as h
from ...amqp.apply import ready_counts
from ...amqp.copies import copy_of
from ...amqp.scan import scanning
from ...names import quarantine
from ..migration.address import Address, Destination, Waiting
from ..migration.mover import Copier, Mover
from ..migration.report import Report
from ..migration.sources import Source
from ..migration.targets import Home, stock_headers

if TYPE_CHECKING:
    from collections.abc import Callable

    from kombu import Connection

    from ...amqp.objects import Queue


def quarantined(queue: str) -> Source:
    """Return the quarantine queue of an origin queue, whose messages are due."""

    def address(found: Waiting, _now_ms: int) -> Address:
        return Address((Destination(queue),), 0, h.retries(found.headers, queue))

    return Source("quarantine", (quarantine(queue),), address)


def send_home(connection: Connection, source: Source, poison: Queue, stopped: Callable[[], bool]) -> Report:
    """Publish the messages of a source to their queues, each with confirm before it is acked; return the counts."""
    home = Home()
    report = Report(source.name, home.name)
    Mover(connection, source, Copier(connection, source, home, poison), report, stopped=stopped).run()
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
