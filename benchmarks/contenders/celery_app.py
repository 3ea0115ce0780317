"""The Celery contenders: this package, Celery's retry and native delayed delivery, a plain failure, a plain success."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import celery_rmq_delay
from benchmarks.contenders import shop
from benchmarks.contenders.celery_base import celery_app

#: For `benchmarks.long_haul`, by the number of the task: the soak's ladder has three tiers, so a fifth is exhausted.
RETRIES_NEEDED = {"ladder-once": lambda _number: 1, "ladder-soak": lambda number: number % 5}

app = celery_app()
if shop.MODE == "native":
    app.conf.task_default_exchange_type = "topic"
if shop.MODE.startswith("ladder"):
    # The task of a killed process counts as failed, so a task that is to fail once may need several tiers.
    tiers = [2, 5, 10] if shop.MODE == "ladder-soak" else [shop.DELAY] * 5 if shop.FAILURES else [shop.DELAY, 7200]
    app.conf.rmq_delay = {"tiers": tiers, "events": shop.MODE in ("ladder-events-on", "ladder-soak")}
    celery_rmq_delay.install(app)

    if shop.MODE in RETRIES_NEEDED:

        @app.task(base=celery_rmq_delay.RetryableTask, bind=True)
        def pay(self: Any, number: int, order: dict[str, Any]) -> None:
            enough = self.request.retries >= RETRIES_NEEDED[shop.MODE](number)
            (shop.succeed if enough else shop.fail)(number, order)

    else:

        @app.task(base=celery_rmq_delay.RetryableTask)
        def pay(number: int, order: dict[str, Any]) -> None:
            shop.fail(number, order)

elif shop.MODE in ("stock", "native"):

    @app.task(bind=True, acks_late=True, max_retries=None)
    def pay(self: Any, number: int, order: dict[str, Any]) -> None:
        try:
            shop.fail(number, order)
        except shop.GatewayError as error:
            raise self.retry(exc=error, countdown=shop.DELAY) from error

else:

    @app.task(acks_late=True)
    def pay(number: int, order: dict[str, Any]) -> None:
        (shop.succeed if shop.MODE == "success" else shop.fail)(number, order)


def enqueue(numbers: Iterable[int]) -> None:
    """Publish tasks, unconfirmed: without closing the connection the last of them could be lost."""
    with app.connection_for_write() as connection:
        producer = app.amqp.Producer(connection)
        for number in numbers:
            pay.apply_async((number, shop.ORDER), producer=producer)
