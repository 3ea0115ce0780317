"""Ladder arithmetic: tiers, lanes of jitter, the tier of a retry. No I/O."""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, Literal

#: The types of queues that can have a ladder.
QueueType = Literal["classic", "quorum"]

#: The version of the layout of broker objects, whose arguments cannot be changed.
_OBJECTS = 2


@dataclass(frozen=True)
class Ladder:
    """The tiers of an origin queue, or of one task on it, in ms.

    ``jitter`` is the half width of the spread around each delay as a share of it (0.2 = 80 % to 120 %), imposed by
    ``lanes`` delay queues per tier. With ``repeat_last`` the last tier repeats without a limit. ``queue_type`` is the
    type of the delay queues.
    """

    tiers_ms: tuple[int, ...]
    jitter: float = 0.0
    lanes: int = 1
    repeat_last: bool = False
    queue_type: QueueType = "classic"

    def __len__(self) -> int:
        return len(self.tiers_ms)

    @property
    def retries(self) -> int | None:
        """The retry budget: one retry a tier; None when the last tier repeats."""
        return None if self.repeat_last else len(self.tiers_ms)

    @cached_property
    def id(self) -> str:
        """A short digest of all fields of this ladder, so that a changed ladder is another ladder."""
        text = json.dumps([_OBJECTS, asdict(self)], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:8]

    def tier_after(self, retries: int) -> int:
        """Return the 1-based tier in which a message is parked after ``retries`` earlier retries."""
        return min(retries + 1, len(self.tiers_ms))

    def lane_ttls(self, tier_index: int) -> tuple[int, ...]:
        """Return the TTLs in ms of a tier's lanes. Lane 0, which messages without a lane use, is the middle one."""
        delay = self.tiers_ms[tier_index - 1]
        if not self.jitter or self.lanes == 1:
            return (delay,)
        step = 2 * self.jitter / (self.lanes - 1)
        spread = [max(1, round(delay * (1 - self.jitter + step * lane))) for lane in range(self.lanes)]
        middle = self.lanes // 2
        return tuple(spread[middle:] + spread[:middle])

    def ttl(self, tier_index: int, lane: object) -> int:
        """Return the TTL in ms that a message of ``lane``, which may be any header's value, waits in ``tier_index``."""
        ttls = self.lane_ttls(tier_index)
        return ttls[lane] if type(lane) is int and 0 <= lane < len(ttls) else ttls[0]

    def to_json(self) -> dict[str, Any]:
        """Return plain data that `from_json` reads back."""
        return {**asdict(self), "tiers_ms": list(self.tiers_ms)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Ladder:
        """Read what `to_json` wrote."""
        queue_type = data.get("queue_type", "classic")
        return cls(tuple(data["tiers_ms"]), data["jitter"], data["lanes"], data["repeat_last"], queue_type)


def lane_of(task_id: str, lanes: int) -> int:
    """Return the lane of a task: the same for all its attempts, evenly distributed over all tasks."""
    return zlib.crc32(task_id.encode()) % lanes
