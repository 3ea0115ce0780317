"""taskiq with taskiq-aio-pika's delay queue and SmartRetryMiddleware, configured as in their documentation.

Its delay: the failed message is published, confirmed, with a per-message expiration to ``taskiq.delay_queue``, which
dead-letters to the task queue. The broker holds it; a longer delay in front makes shorter ones behind it wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from taskiq import SmartRetryMiddleware
from taskiq_aio_pika import AioPikaBroker, Queue, QueueType

from benchmarks.contenders import shop

_TYPE = QueueType(shop.QUEUE_TYPE)

broker = AioPikaBroker(
    shop.BROKER_URL,
    task_queues=[Queue(name="work", type=_TYPE)],
    dead_letter_queue=Queue(name="taskiq.dead_letter", type=_TYPE),
    delay_queue=Queue(name="taskiq.delay_queue", type=_TYPE),
).with_middlewares(SmartRetryMiddleware(default_retry_count=5, default_delay=shop.DELAY, use_jitter=False))


@broker.task(retry_on_error=True)
async def pay(number: int, order: dict[str, Any]) -> None:
    shop.fail(number, order)


def enqueue(numbers: Iterable[int]) -> None:
    """Publish tasks."""
    asyncio.run(_enqueue(numbers))


async def _enqueue(numbers: Iterable[int]) -> None:
    await broker.startup()
    for number in numbers:
        await pay.kiq(number, shop.ORDER)
    await broker.shutdown()
