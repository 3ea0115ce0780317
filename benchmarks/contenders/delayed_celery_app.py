"""The Celery contenders of `benchmarks.exact_delays`: this package's topologies, Celery's native levels, an ETA."""

from __future__ import annotations

from typing import Any

from celery import Task

import celery_rmq_delay
from benchmarks.contenders import shop
from benchmarks.contenders.celery_base import celery_app

CELERY_NATIVE = shop.MODE.startswith("native")

app = celery_app(broker_transport_options={"confirm_publish": True})
if CELERY_NATIVE:
    app.conf.task_default_exchange_type = "topic"
    app.conf.broker_native_delayed_delivery_queue_type = "classic" if shop.MODE == "native-classic" else "quorum"
elif shop.MODE != "eta":
    app.conf.rmq_delay = {"tiers": [3600], "exact_delays": shop.MODE}
    celery_rmq_delay.install(app)

_BASE: Any = Task if CELERY_NATIVE or shop.MODE == "eta" else celery_rmq_delay.RetryableTask


@app.task(base=_BASE, acks_late=True)
def arrive(number: int, order: dict[str, Any]) -> None:
    shop.succeed(number, order)
