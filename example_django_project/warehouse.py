#!/usr/bin/env python
"""A producer of another team: ``python warehouse.py AMQP_URL``.

It uses neither the shop's tasks nor celery_rmq_delay: plain kombu, its own topic exchange and routing key, and a task
that no worker has. Its messages advance through the ladder like any other and end in the exhausted queue.
"""

from __future__ import annotations

import argparse
import uuid

from kombu import Connection, Exchange, Queue

TASK = "warehouse.pick"


def publish_picks(broker_url: str, count: int, queue: str = "default") -> list[str]:
    """Publish ``count`` tasks that no worker has; return their ids. ``queue`` must exist."""
    events = Exchange("warehouse", type="topic")
    with Connection(broker_url) as connection:
        channel = connection.channel()
        events(channel).declare()
        Queue(queue, events, routing_key="warehouse.#")(channel).queue_bind()
        producer = connection.Producer(channel, exchange=events)
        ids = [str(uuid.uuid4()) for _ in range(count)]
        for number, task_id in enumerate(ids):
            producer.publish(
                ([number], {}, {"callbacks": None, "errbacks": None, "chain": None, "chord": None}),
                routing_key=f"warehouse.hall{number}.pick",
                headers={"lang": "py", "task": TASK, "id": task_id, "root_id": task_id, "retries": 0},
                correlation_id=task_id,
                serializer="json",
                delivery_mode="persistent",
            )
    return ids


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("broker_url")
    parser.add_argument("--count", type=int, default=1)
    options = parser.parse_args()
    for published in publish_picks(options.broker_url, options.count):
        print(published)
