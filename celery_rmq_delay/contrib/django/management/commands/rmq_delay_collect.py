"""``manage.py rmq_delay_collect``: write events and exhausted messages from RabbitMQ into the database."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from django.core.management.base import CommandParser

from .....stopping import stop_requested
from ...collecting.collector import MAX_BATCH, Options, collect
from ..base import LongRunningCommand, seconds, whole_number


class Command(LongRunningCommand):
    """Collects until SIGTERM or SIGINT; then it finishes the messages that it has received."""

    help = "Write the workers' events and the exhausted messages into the database."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--batch", type=whole_number(1, MAX_BATCH), default=1000, help="Messages per transaction (default: 1000)."
        )
        parser.add_argument("--once", action="store_true", help="Exit when the queues are empty.")
        parser.add_argument("--max-seconds", type=seconds, help="Exit after this many seconds.")
        parser.add_argument("--health-file", type=Path, help="A file to touch while the collector is healthy.")
        parser.add_argument(
            "--file-seconds",
            type=seconds,
            default=10.0,
            help="Seconds for which events are gathered into one history file before they are acked (default: 10).",
        )
        parser.add_argument(
            "--http", metavar="HOST:PORT", help="Serve /healthz and /metrics; without a host, on 127.0.0.1 only."
        )

    def handle(self, *_: Any, **options: Any) -> None:
        work = Options(
            options["batch"], file_age=options["file_seconds"], once=options["once"], max_seconds=options["max_seconds"]
        )
        with stop_requested() as stop:
            collect(work, options["health_file"], options["http"], stop)
