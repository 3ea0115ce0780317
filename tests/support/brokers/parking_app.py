"""An app whose worker only releases due messages of a loop; and a publisher that logs its calls.

``python -m tests.support.brokers.parking_app LOG FIRST`` publishes numbered tasks, from FIRST on, until it is
killed. Each number is in LOG, on disk, before the call and after its confirm.
"""

import ast
import itertools
import os
import sys
from typing import Any

from celery import Celery

import celery_rmq_delay
from celery_rmq_delay import RetryableTask


def make_app(broker: str, settings: dict[str, Any], *, queue: str = "idle", queue_type: str = "classic") -> Celery:
    app = Celery("parking", broker=broker, set_as_current=False)
    app.conf.update(
        task_default_queue=queue,
        task_default_queue_type=queue_type,
        worker_hijack_root_logger=False,
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        worker_enable_remote_control=False,
        rmq_delay=settings,
    )
    celery_rmq_delay.install(app)

    @app.task(name="numbered", base=RetryableTask, shared=False)
    def numbered(number: int) -> int:
        return number

    return app


def publish(apps: dict[str, Celery], log: int, first: int) -> None:
    """Call one task after the other, each in its turn by another app."""
    turns = itertools.cycle(apps.items())
    for number, (name, app) in zip(itertools.count(first), turns, strict=False):
        note(log, f"before {number} {name}")
        app.tasks["numbered"].apply_async((number,), task_id=str(number), countdown=1 + number % 3, ignore_result=True)
        note(log, f"after {number} {name}")


def note(log: int, line: str) -> None:
    os.write(log, f"{line}\n".encode())
    os.fsync(log)


if "PARKING_BROKER" in os.environ:
    url, settings = os.environ["PARKING_BROKER"], ast.literal_eval(os.environ["PARKING_SETTINGS"])
    if __name__ == "__main__":
        apps = {
            name: make_app(url, each, queue=name, queue_type=each.get("exact_queue_type", "classic"))
            for name, each in settings.items()
        }
        publish(apps, os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND | os.O_CREAT), int(sys.argv[2]))
    else:
        app = make_app(url, settings)
