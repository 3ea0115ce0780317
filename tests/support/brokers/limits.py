"""Limits of private brokers."""

from collections.abc import Iterator
from contextlib import contextmanager

from celery_rmq_delay.testing import PrivateBroker
from celery_rmq_delay.testing.servers.broker import erlang_binary
from celery_rmq_delay.testing.servers.installation import Installation


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


@contextmanager
def impatient_broker(installation: Installation, seconds: float) -> Iterator[PrivateBroker]:
    """Start a broker that takes deliveries back after so many seconds, for which 3.10 and 4.0 look twice a second."""
    config = f"consumer_timeout = {1000 * seconds:.0f}\n"
    with PrivateBroker(installation.server, installation.root, config=config) as broker:
        broker.evaluate("application:set_env(rabbit, channel_tick_interval, 500)")
        yield broker
