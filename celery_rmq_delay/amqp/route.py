"""Where to publish a message that is to wait."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

from .objects import Objects, Queue


@dataclass(frozen=True)
class Route:
    """Where to publish a message that is to reach its queue after ``delay_ms``.

    ``objects`` have to exist before; ``key`` stands for them, so that they are looked at once. ``leased`` are queues
    that expire: they are declared with every publish, and its confirm has to come within ``lease_ms``. ``mandatory``:
    the broker can tell at once that no queue takes the message. ``sorts``: the delay queues are quorum queues, which
    hand out messages by priority.
    """

    exchange: str
    routing_key: str
    delay_ms: int = 0
    objects: Objects = field(default_factory=Objects)
    headers: dict[str, Any] = field(default_factory=dict)
    key: Hashable = None
    leased: tuple[Queue, ...] = ()
    lease_ms: int = 0
    mandatory: bool = True
    sorts: bool = False

    @property
    def where(self) -> str:
        """What to call it in a message to people."""
        return self.exchange or self.routing_key
