"""The state of an origin queue as stored in the record in the broker: its ladders, and its adoption by a policy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from ..ladders import Ladder

#: The remote-control commands that notify workers, and by which they return their tasks that requeue in a loop.
COMMAND, REQUEUES = "rmq_delay_adoption", "rmq_delay_requeues"

#: ``lost``: no record describes the ladders in force; never stored in a record.
Phase = Literal["settled", "current", "standby", "lost"]
#: Placeholder among the ladders that a task may be bound to: it may be bound to none of them.
UNDER_WAY = ""


@dataclass(frozen=True)
class Adoption:
    """A queue without our dead-letter arguments, and the policy that replaces them.

    ``in_force``: its messages may be rejected. ``generation`` increases with every change. ``queue_type`` and
    ``delivery_limit`` (None: the broker's default) are those of the queue, whatever the app declares. ``policy``,
    ``pattern``, ``priority`` and ``definition`` are the policy as it was written; ``base`` and ``base_definition`` are
    the name and the definition of the user policy that it was merged from.
    """

    in_force: bool
    generation: int
    queue_type: str
    delivery_limit: int | None = None
    policy: str = ""
    pattern: str = ""
    priority: int = 0
    definition: Mapping[str, Any] = field(default_factory=dict)
    base: str | None = None
    base_definition: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return plain data that `from_json` reads back."""
        return dict(vars(self))

    @classmethod
    def from_json(cls, data: Mapping[str, Any] | None) -> Adoption | None:
        """Read the output of `to_json`, also of a later version; None where required keys are missing."""
        known = {each.name: data[each.name] for each in fields(cls) if each.name in data} if data else {}
        if not {"in_force", "generation", "queue_type"} <= known.keys():
            return None
        return cls(**known)


@dataclass(frozen=True)
class Applied:
    """The ladders of one origin queue as stored in the record in the broker.

    ``ladders`` holds every ladder whose objects may exist; ``retired`` the time (seconds since the epoch) at which
    those not in force were replaced. ``tasks`` lists, by task, the ladders it may be bound to, the one in force
    last; `UNDER_WAY` is the first of them while that changes.
    """

    ladders: dict[str, Ladder] = field(default_factory=dict)
    retired: dict[str, float] = field(default_factory=dict)
    current: str | None = None
    following: str | None = None
    phase: Phase = "settled"
    tasks: dict[str, list[str]] = field(default_factory=dict)
    reason_routing: bool | None = None
    #: The digest of the last applied plan with all its bindings; None after any change, and as long as the quarantine
    #: queue has to be replaced.
    bound: str | None = None
    #: The exhausted queue in use; None where the record is older than this field.
    exhausted: str | None = None
    #: The state of a queue without our dead-letter arguments; None where it was never adopted.
    adoption: Adoption | None = None

    @property
    def is_lost(self) -> bool:
        """Whether ladders are in force that no record describes."""
        return self.phase == "lost"

    @property
    def highest_tier(self) -> int:
        """The length of the longest ladder that may still have messages."""
        return max((len(ladder) for ladder in self.ladders.values()), default=0)

    @property
    def in_force(self) -> set[str]:
        """The ids of the ladders that messages can enter."""
        return {ladder for ladder in (self.current, self.following) if ladder} | {
            ladder for ladders in self.tasks.values() for ladder in ladders if ladder != UNDER_WAY
        }

    def to_json(self) -> dict[str, Any]:
        """Return plain data that `from_json` reads back."""
        return {
            **vars(self),
            "ladders": {key: ladder.to_json() for key, ladder in self.ladders.items()},
            "adoption": self.adoption.to_json() if self.adoption else None,
        }

    @classmethod
    def from_json(cls, data: dict[str, Any] | None) -> Applied:
        """Read the output of `to_json`, also of a later version; None stands for a queue without an applied plan."""
        if data is None:
            return cls()
        known = {each.name: data[each.name] for each in fields(cls) if each.name in data}
        ladders = {key: Ladder.from_json(each) for key, each in data["ladders"].items()}
        return cls(**{**known, "ladders": ladders, "adoption": Adoption.from_json(data.get("adoption"))})
