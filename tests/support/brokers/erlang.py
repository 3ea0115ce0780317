"""Erlang expressions for `PrivateBroker.evaluate`."""

from __future__ import annotations

from celery_rmq_delay.testing.servers.broker import erlang_binary


def queue_resource(vhost: str, queue: str) -> str:
    """Return the expression for the name of a queue."""
    return f"rabbit_misc:r({erlang_binary(vhost)}, queue, {erlang_binary(queue)})"
