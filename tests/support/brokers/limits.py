"""Limits of a vhost of a private broker."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from celery_rmq_delay.testing import PrivateBroker
from celery_rmq_delay.testing.servers.broker import erlang_binary


@contextmanager
def vhost_limit(broker: PrivateBroker, vhost: str, queues: int) -> Iterator[None]:
    """Let a vhost have at most ``queues`` queues for the length of the block."""
    name, user = erlang_binary(vhost), erlang_binary("test")
    limit = f'[{{<<"max-queues">>, {queues}}}]'
    result = broker.evaluate(f"rabbit_vhost_limit:set({name}, {limit}, {user})")
    assert result == "ok", result
    try:
        yield
    finally:
        broker.evaluate(f"rabbit_vhost_limit:clear({name}, {user})")
