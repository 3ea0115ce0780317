"""Connections that a broker closes."""

from celery_rmq_delay.testing import PrivateBroker


def close_connections(broker: PrivateBroker) -> None:
    """Close all connections at once: `rabbitmqctl` takes longer than a task that is to be interrupted."""
    result = broker.evaluate(
        'lists:foreach(fun(Each) -> catch rabbit_networking:close_connection(Each, "test") end, '  # some may just end
        "rabbit_networking:connections())"
    )
    assert result == "ok", result
