"""The base app of all Celery contenders. Separate from `shop`, which other frameworks import, too."""

from __future__ import annotations

from typing import Any

from celery import Celery

from benchmarks.contenders import shop


def celery_app(**conf: Any) -> Celery:
    """Return the base app of a Celery contender."""
    app = Celery("benchmark", broker=shop.BROKER_URL)
    app.conf.update(
        task_ignore_result=True,
        task_default_queue="work",
        task_default_queue_type=shop.QUEUE_TYPE,
        broker_connection_retry_on_startup=True,
        **conf,
    )
    return app
