"""A producer that uses Celery's protocol without this package."""

import json
import uuid
from typing import Any

import amqp

from tests.support.workers.lab import Lab


def publish(lab: Lab, message: amqp.Message, exchange: str = "", routing_key: str = "shop") -> None:
    with lab.app.connection_for_write() as connection:
        channel = connection.channel()
        channel.confirm_select()
        channel.basic_publish_confirm(message, exchange=exchange, routing_key=routing_key, mandatory=True)


def task_message(name: str, args: list[Any], *, task_id: str = "", **headers: Any) -> amqp.Message:
    """Return a message of a producer that uses Celery's protocol without this package."""
    task_id = task_id or str(uuid.uuid4())
    embed = {"callbacks": None, "errbacks": None, "chain": None, "chord": None}
    return amqp.Message(
        json.dumps([args, {}, embed], indent=1),  # indented: re-encoding would not give these bytes
        content_type="application/json",
        content_encoding="utf-8",
        delivery_mode=2,
        correlation_id=task_id,
        priority=3,
        application_headers={
            "lang": "cobol",
            "task": name,
            "id": task_id,
            "root_id": task_id,
            "tenant": "north",
            **headers,
        },
    )
