"""The Celery contenders: this package, stock retry, native delayed delivery, a plain failure and a plain success."""

from __future__ import annotations

from typing import Any

from celery import Celery

import celery_rmq_delay
from benchmarks.contenders import shop
from benchmarks.contenders.pace import paced

app = Celery("benchmark", broker=shop.BROKER_URL)
app.conf.update(
    task_ignore_result=True,
    task_default_queue="work",
    task_default_queue_type=shop.QUEUE_TYPE,
    broker_connection_retry_on_startup=True,
)
if shop.MODE == "native":
    app.conf.task_default_exchange_type = "topic"
if shop.MODE == "ladder":
    app.conf.rmq_delay = {"tiers": [shop.DELAY, 7200]}
    celery_rmq_delay.install(app)

if shop.MODE == "ladder":

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


def enqueue(count: int, per_second: float | None) -> None:
    """Publish ``count`` tasks, unconfirmed: without the close at the end the last of them could be lost."""
    with app.connection_for_write() as connection:
        producer = app.amqp.Producer(connection)
        for number in paced(count, per_second):
            pay.apply_async((number, shop.ORDER), producer=producer)
