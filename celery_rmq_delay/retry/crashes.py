"""Detection of interrupted deliveries, and the number of workers a message has killed. No I/O.

A lost worker's prefetched messages are all requeued, so a redelivered message is only *quarantined* at first: it goes
once to the quarantine queue, whose messages a worker runs one by one. A message redelivered there was running.
"""

from __future__ import annotations

from ..amqp.capabilities import Capabilities
from ..headers import CRASHES, Headers, all_rejections, whole_number


def was_interrupted(headers: Headers, *, redelivered: bool, quorum: bool, broker: Capabilities) -> bool:
    """Return whether an earlier delivery of this message to its origin queue ended without an answer.

    Classic queues, and all queues before RabbitMQ 4.0, flag only those (messages that 4.1 and later flag as well are
    never rejected here, see `Capabilities.flags_returned`). Quorum queues of 4.0 and later flag every message that was
    rejected before; of these, the interrupted ones have a delivery count other than the number of rejections: on 4.0
    the interruption resets the count, on 4.3 it continues. So on 4.0 the first interruption after exactly one rejection
    is not detected; the second is. See `timed_out` for those that 4.3 does not count.
    """
    if not redelivered:
        return False
    if quorum and broker.keeps_delivery_count:
        return timed_out(headers) or whole_number(headers.get("x-delivery-count")) != all_rejections(headers)
    return True


def timed_out(headers: Headers) -> bool:
    """Return whether a quorum queue of RabbitMQ 4.3 has taken a delivery back at its consumer time-out, or a ``nack``.

    It counts the return in ``x-acquired-count``, which restarts whenever the message enters the queue, and not in
    ``x-delivery-count``; after a retry both are equal. So the first time-out after exactly one rejection is not
    detected; the second is.
    """
    acquired, delivered = headers.get("x-acquired-count"), headers.get("x-delivery-count")
    return acquired is not None and whole_number(delivered) == all_rejections(headers) != whole_number(acquired)


def crashes(headers: Headers) -> int:
    """Return how many workers this message is known to have killed."""
    return whole_number(headers.get(CRASHES))
