"""Policies of a broker of the tests' own, without `rabbitmqctl`, which a busy machine takes a minute to start."""

from __future__ import annotations

import json
from typing import Any

from celery_rmq_delay.testing import PrivateBroker


def binary(text: str) -> str:
    """Return a text as Erlang writes a binary."""
    return f"<<{','.join(map(str, text.encode()))}>>"


def set_policy(
    broker: PrivateBroker,
    name: str,
    pattern: str,
    definition: dict[str, Any],
    *,
    vhost: str = "/",
    kind: str = "queues",
) -> None:
    """Set a policy that applies to a ``kind`` of objects, as RabbitMQ names it."""
    texts = ", ".join(binary(text) for text in (vhost, name, pattern, json.dumps(definition)))
    result = broker.evaluate(f'rabbit_policy:parse_set({texts}, "0", {binary(kind)}, {binary("test")})')
    assert result == "ok", result


def clear_policy(broker: PrivateBroker, name: str, *, vhost: str = "/") -> None:
    """Delete a policy."""
    broker.evaluate(f"rabbit_policy:delete({binary(vhost)}, {binary(name)}, {binary('test')})")
