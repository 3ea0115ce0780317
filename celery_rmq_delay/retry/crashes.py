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
    is not detected; the second is.
    """
    if not redelivered:
        return False
    if quorum and broker.keeps_delivery_count:
        return whole_number(headers.get("x-delivery-count")) != all_rejections(headers)
    return True


def crashes(headers: Headers) -> int:
    """Return how many workers this message is known to have killed."""
    return whole_number(headers.get(CRASHES))
