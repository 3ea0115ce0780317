"""The way of a message through delay queues."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

from .objects import Objects, Queue


@dataclass(frozen=True)
class Route:
    """Where to publish a message so that it reaches its queue after ``delay_ms``.

    ``objects`` have to exist before; ``key`` identifies them, so that they are declared once. ``leased`` are queues
    that expire: they are declared with every publish, and its confirm has to arrive within ``lease_ms``.
    ``mandatory``: the broker returns the message at once if no queue receives it. ``sorts``: the delay queues are
    quorum queues, which deliver by priority.
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
        """The name of the destination, for display."""
        return self.exchange or self.routing_key
