"""The crash guard's decisions. No I/O.

A dying worker returns everything it had prefetched, so a message that was delivered before is only a *suspect*: it goes
once to the queue of suspects, which a worker takes one by one. What comes back from there is what ran.
"""

from __future__ import annotations

from enum import Enum

from .broker import Capabilities
from .headers import CRASHES, Headers, all_rejections


class Verdict(Enum):
    """What to do with a delivery."""

    RUN = "run"
    SUSPECT = "suspect"
    EXHAUST = "exhaust"


def was_interrupted(
    headers: Headers, *, redelivered: bool, rung: int, quorum: bool, broker: Capabilities
) -> bool:
    """Return whether an earlier delivery of this message to its origin queue ended without an answer."""
    if quorum and broker.keeps_delivery_count:
        return int(headers.get("x-delivery-count") or 0) > all_rejections(headers)
    if not redelivered:
        return False
    return rung == 0 or not broker.keeps_redelivered


def crashes(headers: Headers) -> int:
    """Return how many workers this message is known to have killed."""
    found = headers.get(CRASHES, 0)
    return found if isinstance(found, int) else 0


def verdict(headers: Headers, *, interrupted: bool, among_suspects: bool, max_crashes: int) -> Verdict:
    """Return whether to run a message, to make it a suspect (again), or to give it up."""
    if not interrupted:
        return Verdict.RUN
    if among_suspects and crashes(headers) + 1 > max_crashes:
        return Verdict.EXHAUST
    return Verdict.SUSPECT
