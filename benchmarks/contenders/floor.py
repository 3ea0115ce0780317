"""``python -m benchmarks.contenders.floor PROCESSES``: consume, do the small work of the task, reject or ack.

The ladder is the one of `celery_app`, also on py-amqp, without a task system: it searches no task, passes none to
another process, and raises no exception. Its rate is the limit for every system that rejects through this ladder.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import amqp

from benchmarks.contenders import shop
from benchmarks.contenders.celery_app import app, enqueue
from celery_rmq_delay.amqp.capabilities import capabilities
from celery_rmq_delay.app.state import state_of
from celery_rmq_delay.topology.transition import apply_plan

__all__ = ["enqueue"]

_QUEUE = "work"
_PREFETCH = 50


def _declare() -> None:
    with app.connection_for_write() as connection:
        reports = capabilities(connection).reports_death_reason
        apply_plan(connection, state_of(app).plan(_QUEUE, reason_routing=reports), quick=True)


def _consume() -> None:
    with app.connection_for_read() as connection:
        channel: Any = connection.channel()

        def take(message: amqp.Message) -> None:
            number, order = json.loads(message.body)[0]
            if shop.attempt(number, order):
                channel.basic_reject(message.delivery_tag, requeue=False)
            else:
                channel.basic_ack(message.delivery_tag)

        channel.basic_qos(0, _PREFETCH, False)
        channel.basic_consume(_QUEUE, callback=take)
        while True:
            connection.drain_events()


def main() -> None:
    _declare()
    for _ in range(int(sys.argv[1]) - 1):
        if not os.fork():
            break
    _consume()


if __name__ == "__main__":
    main()
