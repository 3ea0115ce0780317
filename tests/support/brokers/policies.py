"""Policies of a private broker, without `rabbitmqctl`, whose start may take a minute on a busy machine."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from celery_rmq_delay.testing import PrivateBroker
from celery_rmq_delay.testing.servers.broker import erlang_binary


@contextmanager
def policy(
    broker: PrivateBroker,
    name: str,
    pattern: str,
    definition: dict[str, Any],
    *,
    vhost: str = "/",
    kind: str = "queues",
    priority: int = 0,
) -> Iterator[None]:
    """Let a policy apply to a ``kind`` of objects (RabbitMQ's name) for the length of the block."""
    texts = ", ".join(erlang_binary(text) for text in (vhost, name, pattern, json.dumps(definition)))
    result = broker.evaluate(
        f'rabbit_policy:parse_set({texts}, "{priority}", {erlang_binary(kind)}, {erlang_binary("test")})'
    )
    assert result == "ok", result
    try:
        yield
    finally:
        names = ", ".join(map(erlang_binary, (vhost, name, "test")))
        broker.evaluate(f"rabbit_policy:delete({names})")
