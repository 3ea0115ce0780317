"""Erlang expressions for `PrivateBroker.evaluate`."""

import re

from celery_rmq_delay.testing import PrivateBroker
from celery_rmq_delay.testing.servers.broker import erlang_binary


def queue_resource(vhost: str, queue: str) -> str:
    return f"rabbit_misc:r({erlang_binary(vhost)}, queue, {erlang_binary(queue)})"


def queue_process(vhost: str, queue: str) -> str:
    """Return the expression for the process of a classic queue, or for (name, node) of a quorum queue's leader."""
    return f"amqqueue:get_pid(element(2, rabbit_amqqueue:lookup({queue_resource(vhost, queue)})))"


def states(broker: PrivateBroker, vhost: str, queue: str) -> tuple[int, int]:
    """Return the (ready, unacknowledged) messages of a quorum queue as its leader has them now.

    RabbitMQ's own counts of unacknowledged messages are seconds old.
    """
    found = broker.evaluate(
        f"Leader = {queue_process(vhost, queue)}, "
        "[begin {ok, Found, _} = ra:consistent_query(Leader, Ask), Found end || Ask <- "
        "[fun rabbit_fifo:query_messages_ready/1, fun rabbit_fifo:query_messages_checked_out/1]]"
    )
    ready, unacknowledged = (int(number) for number in re.findall(r"\d+", found))
    return ready, unacknowledged
