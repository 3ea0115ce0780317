"""The app for ``celery -A chaos.worker``, with ledger lines about the main process."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

from celery import signals

from chaos.ledger import Ledger
from chaos.project import Config, make_app

config = Config.from_environ()
app = make_app(config)
ledger = Ledger(Path(config.ledger), config.name)


class Forwards(logging.Handler):
    """Records which messages are moved to the quarantine queue: copies may be duplicated by a fault."""

    def emit(self, record: logging.LogRecord) -> None:
        if (task_id := getattr(record, "task_id", None)) and "moved to the quarantine queue" in record.getMessage():
            ledger.note("quarantined", id=task_id, boss=os.getpid())


logging.getLogger("celery_rmq_delay").addHandler(Forwards(logging.WARNING))


@signals.task_received.connect
def receive(request: Any, **_: Any) -> None:
    """Record that this worker holds the message; it may run it even after it has lost the connection."""
    ledger.note("received", id=request.id, boss=os.getpid())


@signals.worker_ready.connect
def announce(sender: Any, **_: Any) -> None:
    ledger.note("ready", worker=config.name, boss=os.getpid(), version=config.version)
