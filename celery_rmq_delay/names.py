"""Names of broker objects, as pure functions of prefix, origin queue and ladder."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from .durations import format_ms
from .exceptions import SettingsError

if TYPE_CHECKING:
    from .ladders import QueueType

_DERIVED = re.compile(r"\.retry\.[0-9]+\.([0-9.]+(ms|[dhms]))+(\.quorum)?(@.+)?$|\.quarantine$", re.DOTALL)

#: The prefix that needs no mention in the names of delay queues.
DEFAULT_PREFIX = "rmq_delay"

#: AMQP 0-9-1 carries names as short strings.
MAX_NAME_BYTES = 255


def check_name(name: str, setting: str) -> str:
    """Return ``name``, or raise `SettingsError` when AMQP cannot carry it."""
    size = len(name.encode())
    if size > MAX_NAME_BYTES:
        raise SettingsError(
            setting, name, f"This name has {size} bytes and AMQP allows {MAX_NAME_BYTES}: use a shorter one."
        )
    return name


def return_key(queue: str, tier_index: int) -> str:
    """Return the routing key with which a message comes back to ``queue`` from its tier."""
    return f"{queue}@{tier_index}"


def tier_of(queue: str, routing_key: str) -> int:
    """Return the tier a delivery of ``queue`` came back from; 0 when it did not come from a tier."""
    owner, at, tier_index = routing_key.rpartition("@")
    return int(tier_index) if at and owner == queue and tier_index.isdecimal() else 0


@lru_cache(maxsize=4096)
def delay_queue(
    queue: str, tier_index: int, ttl_ms: int, prefix: str = DEFAULT_PREFIX, queue_type: QueueType = "classic"
) -> str:
    """Return the name of the delay queue of a tier: all that makes it, so that it never has to be changed.

    That is owner, position, TTL and type, and the prefix of the exchange that it returns its messages by.
    """
    name = f"{queue}.retry.{tier_index}.{format_ms(ttl_ms)}{'.quorum' if queue_type == 'quorum' else ''}"
    return name if prefix == DEFAULT_PREFIX else f"{name}@{prefix}"


def quarantine(queue: str) -> str:
    """Return the queue of messages that may have killed a worker of ``queue``: one, whatever the prefix."""
    return f"{queue}.quarantine"


def moving(record: str) -> str:
    """Return the queue that keeps a copy of the record in the queue ``record`` while that gets another type."""
    return f"{record}.moving"


def is_derived(queue: str) -> bool:
    """Return whether a queue is called as `delay_queue` or `quarantine` call theirs."""
    return bool(_DERIVED.search(queue))


def origin_of(delay_queue: str) -> str | None:
    """Return the origin queue of a delay queue of a ladder; None for a queue that is called otherwise."""
    found = _DERIVED.search(delay_queue)
    return delay_queue[: found.start()] if found and found[1] else None


def digest(queue: str) -> str:
    """Return what stands for a queue's name where that is too long to be part of another one."""
    return hashlib.sha256(queue.encode()).hexdigest()


@dataclass(frozen=True)
class Names:
    """The names that carry the prefix."""

    prefix: str

    @property
    def returns(self) -> str:
        """The exchange that brings parked messages back to their origin queues."""
        return f"{self.prefix}.return"

    @property
    def events(self) -> str:
        """The queue of the workers' events."""
        return f"{self.prefix}.events"

    def dlx(self, queue: str) -> str:
        """The dead-letter exchange of an origin queue: routes by the reason of the death."""
        return f"{self.prefix}.{queue}.dlx"

    def other(self, queue: str) -> str:
        """The exchange of deaths that are no rejections."""
        return f"{self.prefix}.{queue}.other"

    def tasks(self, queue: str) -> str:
        """The exchange that routes tasks with their own tiers to their own ladder."""
        return f"{self.prefix}.{queue}.tasks"

    def active(self, queue: str) -> str:
        """The active exchange: bound to the ladder in force."""
        return f"{self.prefix}.{queue}.ladder"

    def standby(self, queue: str) -> str:
        """The alternate exchange of the active exchange, for the moment in which its binding changes."""
        return f"{self.prefix}.{queue}.standby"

    def ladder(self, queue: str, ladder_id: str) -> str:
        """The exchange of one ladder: routes by the tier in the routing key."""
        return f"{self.prefix}.{queue}.ladder.{ladder_id}"

    def first(self, queue: str, ladder_id: str) -> str:
        """The exchange of keys that a ladder does not know: the first tier."""
        return f"{self.ladder(queue, ladder_id)}.first"

    def tier(self, queue: str, ladder_id: str, tier_index: int) -> str:
        """The exchange over the lanes of a tier with jitter."""
        return f"{self.ladder(queue, ladder_id)}.{tier_index}"

    def lane0(self, queue: str, ladder_id: str, tier_index: int) -> str:
        """The exchange of messages without a lane."""
        return f"{self.tier(queue, ladder_id, tier_index)}.lane0"

    def record(self, queue: str) -> str:
        """The one-message queue that holds the applied ladder of an origin queue."""
        return f"{self.prefix}.{queue}.record"

    def marker(self, queue: str, applied: str) -> str:
        """The exchange that exists only while the ladders with the digest ``applied`` are in force."""
        return f"{self.prefix}.{queue}.applied.{applied}"

    def policy(self, queue: str) -> str:
        """The policy that adopts a queue."""
        return f"{self.prefix}.{queue}"
