"""RabbitMQ's native retry as pure data: a quorum queue delays messages that are requeued.

RabbitMQ keeps two counts of a message. Measured on 4.3.6 (`tests/integration/test_broker_facts.py`):

    what happens to a delivery          x-acquired-count  x-delivery-count  its kind
    basic.nack, requeue                 + 1               + 0               returned
    basic.reject, requeue               + 1               + 1               failed
    its worker is lost                  + 1               + 1               failed

The delay is ``min(first * max(1, x-delivery-count), last)``, with the count after the requeue. So messages with equal
tiers are requeued as *returned*: only a crash increases the delivery count. Growing tiers need *failed*, with which a
crash cannot be distinguished from a retry.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from ..amqp.capabilities import Capabilities
from ..amqp.objects import UNLIMITED_DELIVERIES
from ..headers import Headers, all_rejections, whole_number
from ..ladders import Ladder


def native_retry_tiers(tiers_ms: tuple[int, ...]) -> tuple[int, ...]:
    """Return the nearest tiers in ms that the broker supports: the first, twice the first, ... up to the last."""
    first = tiers_ms[0]
    last = max(first, tiers_ms[-1])
    return tuple(min(first * tier_index, last) for tier_index in range(1, len(tiers_ms) + 1))


def refusal(queue: str, broker: Capabilities, *, quorum: bool) -> str | None:
    """Return why a queue cannot use RabbitMQ's native retry, and what to do; None where it can."""
    if not broker.delays_retries:
        found = ".".join(map(str, broker.version))
        return (
            f'Queue {queue!r} has "retry": "native", which needs RabbitMQ 4.3.1 or newer. The broker is {found}. '
            'Upgrade it, or set "retry": "ladder".'
        )
    if not quorum:
        return (
            f'Queue {queue!r} has "retry": "native", which needs a quorum queue. It is a classic one. Declare a new '
            'queue with "queue_type": "quorum" and move to it, or set "retry": "ladder".'
        )
    return None


@dataclass(frozen=True)
class NativeRetry:
    """RabbitMQ's native retry of one origin queue. ``ladder`` has the tiers of `native_retry_tiers`."""

    ladder: Ladder

    @property
    def kind(self) -> Literal["returned", "failed"]:
        """The kind of requeue that the broker delays."""
        return "returned" if self._first == self._last else "failed"

    @property
    def _first(self) -> int:
        return self.ladder.tiers_ms[0]

    @property
    def _last(self) -> int:
        return self.ladder.tiers_ms[-1]

    def arguments(self) -> dict[str, Any]:
        """Return the additional arguments of the origin queue; delays in ms."""
        return {
            "x-delayed-retry-type": self.kind,
            "x-delayed-retry-min": self._first,
            "x-delayed-retry-max": self._last,
            "x-delivery-limit": UNLIMITED_DELIVERIES,
        }

    def delay_ms(self, headers: Headers) -> int:
        """Return how long the broker holds a delivery with these headers if it is requeued now, in ms."""
        count = whole_number(headers.get("x-delivery-count")) + (self.kind == "failed")
        return min(self._first * max(1, count), self._last)

    def requeue_count(self, headers: Headers) -> int:
        """Return how often a message was requeued since it was published; with *failed* also by lost workers."""
        failed = _failed(headers)
        if self.kind == "failed":
            return failed
        return max(0, whole_number(headers.get("x-acquired-count")) - failed)

    def was_interrupted(self, headers: Headers, most: int) -> bool:
        """Return whether a delivery has ended without an answer; with *failed* that is certain above ``most`` only."""
        return _failed(headers) > (most if self.kind == "failed" else 0)

    def takes(self, headers: Headers, delay_ms: int, most: int) -> bool:
        """Return whether the broker can hold a retry for ``delay_ms``; with *failed* ``most`` of them in a row."""
        return self.delay_ms(headers) == delay_ms and (self.kind == "returned" or self.requeue_count(headers) < most)


def _failed(headers: Headers) -> int:
    # The delivery count is kept by dead-lettering, and includes those rejections.
    return max(0, whole_number(headers.get("x-delivery-count")) - all_rejections(headers))
