"""Times for which messages are held, computed from the delay queues that they pass, without a clock."""

import re

import amqp

from celery_rmq_delay import headers as h
from celery_rmq_delay.durations import parse_ms

#: The broker's clock is in whole milliseconds.
TICK = 0.002
_DELAY_QUEUE = re.compile(
    r"\.(?:retry\.\d+|hold|loop|levels)\.((?:[\d.]+(?:ms|[dhms]))+)(?:\.(?:classic|quorum)\.(\d+))?"
)


def held(message: amqp.Message) -> float:
    """Return the seconds for which delay queues held a returned message: their TTLs are in their names."""
    return sum(
        death["count"] * ttl(death["queue"]) for death in h.deaths(message.headers) if death["reason"] == "expired"
    )


def ttl(queue: str) -> float:
    """Return the seconds for which a delay queue holds each message; 0 for another queue."""
    if ".quorum.due." in queue or not (found := _DELAY_QUEUE.search(queue)):
        return 0.0
    duration, level = found.groups()
    return parse_ms(duration, "a delay") / 1000 * 2 ** int(level or 0)


def ahead(message: amqp.Message) -> float:
    """Return the seconds for which the levels hold a message on the way in its routing key, from its level on.

    For levels of a second.
    """
    _queue, *bits = message.delivery_info["routing_key"].split(".")
    return float(sum(2**number for number, bit in enumerate(bits) if bit == "1"))


def assert_on_time(seconds: float, due: float, published: tuple[float, float], unit: float = 1.0) -> None:
    """Check that a message published between two times is held until it is due, and at most a unit longer.

    The speed of the machine does not matter.
    """
    first, last = published
    assert first + seconds <= due + unit + TICK, "late"
    assert last + seconds >= due - TICK, "early"
