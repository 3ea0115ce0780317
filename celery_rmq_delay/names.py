"""Names of broker objects, as pure functions of prefix, origin queue and ladder."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from .durations import format_ms, parse_ms
from .exceptions import SettingsError

if TYPE_CHECKING:
    from .ladders import QueueType

_DERIVED = re.compile(
    r"\.retry\.(?P<tier_index>[0-9]+)\.(?P<delay>([0-9.]+(ms|[dhms]))+)(?P<quorum>\.quorum)?(@(?P<prefix>.+))?$|\.quarantine$",
    re.DOTALL,
)

#: The prefix that is left out of the names of delay queues.
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
    """Return the routing key with which a message returns to ``queue`` from its tier."""
    return f"{queue}@{tier_index}"


def tier_of(queue: str, routing_key: str) -> int:
    """Return the tier from which a delivery of ``queue`` returned; 0 when it came from no tier."""
    owner, at, tier_index = routing_key.rpartition("@")
    return int(tier_index) if at and owner == queue and tier_index.isdecimal() else 0


@lru_cache(maxsize=4096)
def delay_queue(
    queue: str, tier_index: int, ttl_ms: int, prefix: str = DEFAULT_PREFIX, queue_type: QueueType = "classic"
) -> str:
    """Return the name of the delay queue of a tier.

    It contains all properties of the queue, so that the queue never has to be changed: origin queue, position, TTL and
    type, and the prefix of the exchange by which its messages return.
    """
    name = f"{queue}.retry.{tier_index}.{format_ms(ttl_ms)}{'.quorum' if queue_type == 'quorum' else ''}"
    return name if prefix == DEFAULT_PREFIX else f"{name}@{prefix}"


def quarantine(queue: str) -> str:
    """Return the queue of messages that may have killed a worker of ``queue``: one queue for all prefixes."""
    return f"{queue}.quarantine"


def moving(record: str) -> str:
    """Return the queue that holds a copy of the record while the queue ``record`` gets another type."""
    return f"{record}.moving"


def is_derived(queue: str) -> bool:
    """Return whether a queue has a name such as those of `delay_queue` and `quarantine`."""
    return bool(_DERIVED.search(queue))


def origin_of(delay_queue: str) -> str | None:
    """Return the origin queue of a delay queue of a ladder; None for any other name."""
    found = _DERIVED.search(delay_queue)
    return delay_queue[: found.start()] if found and found["delay"] else None


class DelayQueueName(NamedTuple):
    """The parts of a delay queue's name, in the order of the arguments of `delay_queue`."""

    queue: str
    tier_index: int
    ttl_ms: int
    prefix: str
    queue_type: QueueType


def parse_delay_queue(name: str) -> DelayQueueName | None:
    """Return the parts of the name of a ladder's delay queue; None for any other name."""
    found = _DERIVED.search(name)
    if found is None or not found["delay"]:
        return None
    try:
        ttl_ms = parse_ms(found["delay"], name)
    except SettingsError:
        return None
    kind: QueueType = "quorum" if found["quorum"] else "classic"
    prefix = found["prefix"] or DEFAULT_PREFIX
    parts = DelayQueueName(name[: found.start()], int(found["tier_index"]), ttl_ms, prefix, kind)
    return parts if delay_queue(*parts) == name else None


def digest(queue: str) -> str:
    """Return a digest that replaces a queue's name where it is too long to be part of another name."""
    return hashlib.sha256(queue.encode()).hexdigest()


def limited(start: str, queue: str) -> str:
    """Return a name that begins with ``start`` and ends with a queue's name, or with a digest where it is too long."""
    name = f"{start}{queue}"
    return name if len(name.encode()) <= MAX_NAME_BYTES else f"{start}{digest(queue)}"


@dataclass(frozen=True)
class Names:
    """The names that begin with the prefix."""

    prefix: str

    @property
    def returns(self) -> str:
        """The exchange that returns parked messages to their origin queues."""
        return f"{self.prefix}.return"

    @property
    def events(self) -> str:
        """The queue of the workers' events."""
        return f"{self.prefix}.events"

    def dlx(self, queue: str) -> str:
        """The dead-letter exchange of an origin queue, which routes by the reason of dead-lettering."""
        return f"{self.prefix}.{queue}.dlx"

    def other(self, queue: str) -> str:
        """The exchange of messages that were dead-lettered for another reason than a rejection."""
        return f"{self.prefix}.{queue}.other"

    def tasks(self, queue: str) -> str:
        """The exchange that routes tasks with their own tiers to their own ladder."""
        return f"{self.prefix}.{queue}.tasks"

    def active(self, queue: str) -> str:
        """The active exchange, which leads to the ladder in force."""
        return f"{self.prefix}.{queue}.ladder"

    def standby(self, queue: str) -> str:
        """The standby exchange: the alternate of the active exchange, used while its binding changes."""
        return f"{self.prefix}.{queue}.standby"

    def ladder(self, queue: str, ladder_id: str) -> str:
        """The exchange of one ladder, which routes by the tier in the routing key."""
        return f"{self.prefix}.{queue}.ladder.{ladder_id}"

    def first(self, queue: str, ladder_id: str) -> str:
        """The exchange of unknown routing keys of a ladder, which leads to the first tier."""
        return f"{self.ladder(queue, ladder_id)}.first"

    def tier(self, queue: str, ladder_id: str, tier_index: int) -> str:
        """The exchange that routes to the lanes of a tier with jitter."""
        return f"{self.ladder(queue, ladder_id)}.{tier_index}"

    def lane0(self, queue: str, ladder_id: str, tier_index: int) -> str:
        """The exchange of messages without a lane, which leads to lane 0."""
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
