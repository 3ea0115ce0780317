"""``manage.py rmq_delay_collect``: events and exhausted messages from RabbitMQ into the database."""

from __future__ import annotations

import logging
import threading
from argparse import ArgumentTypeError
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

from django.core.management.base import CommandError, CommandParser

from .....exceptions import RmqDelayError
from .....stopping import stop_requested
from ...alerts.notifier import notifying
from ...broker import delay
from ...collecting.announcing import tell
from ...collecting.batches import Writer
from ...collecting.collector import MAX_BATCH, Collector, Options, name
from ...collecting.consumer import Consumer
from ...collecting.database import Database
from ...collecting.gathering import History, open_files
from ...collecting.health import Health, HealthServer
from ...collecting.metrics import metrics
from ...collecting.reading import Reader
from ...collecting.status import Status
from ...collecting.tables import tables_of
from ...conf import conf
from ..long_running import LongRunningCommand

logger = logging.getLogger(__name__)


class Command(LongRunningCommand):
    """Collects until SIGTERM or SIGINT, which let it finish what it has in hand."""

    help = "Write the workers' events and the exhausted messages into the database."

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the options."""
        parser.add_argument("--batch", type=_batch, default=1000, help="Messages per transaction (default: 1000).")
        parser.add_argument("--once", action="store_true", help="End when the queues are empty.")
        parser.add_argument("--max-seconds", type=float, help="End after so many seconds.")
        parser.add_argument("--health-file", type=Path, help="A file that is touched as long as all is well.")
        parser.add_argument(
            "--file-seconds",
            type=float,
            default=10.0,
            help="For how long events are gathered for one history file, and not acked (default: 10).",
        )
        parser.add_argument(
            "--http", metavar="HOST:PORT", help="Serve /healthz and /metrics; without a host on this machine only."
        )

    def handle(self, *_: Any, **options: Any) -> None:
        """Run."""
        try:
            with stop_requested() as stop:
                self._collect(options, stop)
        except RmqDelayError as error:
            raise CommandError(str(error)) from error

    def _collect(self, options: dict[str, Any], stop: threading.Event) -> None:
        app_side = delay()
        settings = app_side.settings
        events, exhausted = settings.names.events, settings.exhausted_queue
        # Without a place to keep them exhausted messages stay where they are.
        queues = [events] if conf().store_payload == "never" else [events, exhausted]
        work = Options(
            options["batch"],
            file_age=options["file_seconds"],
            once=options["once"],
            max_seconds=options["max_seconds"],
        )
        history = None if (place := conf().history_url) is None else History(open_files(place))
        page, observe = metrics()
        database, health = (
            Database(partial(tell, observe=observe if options["http"] else None)),
            Health(options["health_file"]),
        )
        tables_of(database.connection)
        writer = Writer(Reader(events, settings.redaction), database, stop, history=history)
        status = Status(name(), events, database, writer)
        consumer = Consumer(app_side, queues, work.prefetch(gathers=writer.gathers))
        pages = {"/healthz": health.page, "/metrics": page}
        with notifying(), HealthServer(options["http"], pages) if options["http"] else nullcontext():
            self.write_line(f"Collecting from {', '.join(queues)}.")
            Collector(work, consumer, writer, status, health, stop).run()
        self.write_line(f"Collected {status.summary}.")


def _batch(text: str) -> int:
    number = int(text)
    if not 1 <= number <= MAX_BATCH:
        raise ArgumentTypeError(f"found {text}; write a whole number from 1 to {MAX_BATCH}")
    return number
