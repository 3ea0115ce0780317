"""Builds a collector from the project's settings, with alerts, health pages and metrics, and runs it."""

from __future__ import annotations

import logging
import threading
from contextlib import nullcontext
from functools import partial
from pathlib import Path

from ....fence import process_name
from ..alerts.notifier import notifying
from ..broker import delay
from ..conf import conf
from .announcing import notify
from .batches import Writer
from .collector import Collector, Options
from .consumer import Consumer
from .database import Database
from .gathering import History, open_files
from .health import Health, HealthServer
from .metrics import metrics
from .reading import Reader
from .status import Status
from .tables import tables_of

logger = logging.getLogger(__name__)


def collect(options: Options, health_file: Path | None, http: str | None, stop: threading.Event) -> None:
    """Collect until ``stop`` is set, or the options end it.

    ``http`` is the address of the pages ``/healthz`` and ``/metrics``. Raises `RmqDelayError`.
    """
    app_side = delay()
    settings = app_side.settings
    events, exhausted = settings.names.events, settings.exhausted_queue
    # Where messages are not stored, exhausted ones stay in their queue.
    queues = [events] if conf().store_payload == "never" else [events, exhausted]
    history = None if (place := conf().history_url) is None else History(open_files(place))
    page, observe = metrics()
    database, health = Database(partial(notify, observe=observe if http else None)), Health(health_file)
    tables_of(database.connection)
    writer = Writer(Reader(events, settings.redaction), database, stop, history=history)
    status = Status(process_name(), events, database, writer)
    consumer = Consumer(app_side, queues, options.prefetch(gathers=writer.gathers))
    pages = {"/healthz": health.page, "/metrics": page}
    with notifying(), HealthServer(http, pages) if http else nullcontext():
        used = database.connection
        logger.info("Collecting from %s into the database %s (%s)", ", ".join(queues), used.alias, used.vendor)
        Collector(options, consumer, writer, status, health, stop).run()
    logger.info("Ended: %s", status.summary)
