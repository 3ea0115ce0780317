"""Which deliveries were interrupted, and how many workers a message has killed. No I/O.

A dying worker returns everything it had prefetched, so a message that was delivered before is only a *quarantined
task*: it goes once to the quarantine queue, which a worker takes one by one. What comes back from there is what ran.
"""

from __future__ import annotations

from ..amqp.capabilities import Capabilities
from ..headers import CRASHES, Headers, all_rejections, whole_number


def was_interrupted(headers: Headers, *, redelivered: bool, quorum: bool, broker: Capabilities) -> bool:
    """Return whether an earlier delivery of this message to its origin queue ended without an answer.

    Classic queues, and all queues before RabbitMQ 4.0, flag just those (what 4.1 and later flag besides is never
    rejected here, see `Capabilities.flags_returned`). Quorum queues of 4.0 and later flag every message that was
    rejected before, and then a delivery count that is not the number of rejections tells the interrupted ones: on 4.0
    it starts anew with the interruption, on 4.3 it goes on. So on 4.0 the first interruption after exactly one
    rejection is not seen; the second is.
    """
    if not redelivered:
        return False
    if quorum and broker.keeps_delivery_count:
        return whole_number(headers.get("x-delivery-count")) != all_rejections(headers)
    return True


def crashes(headers: Headers) -> int:
    """Return how many workers this message is known to have killed."""
    return whole_number(headers.get(CRASHES))
