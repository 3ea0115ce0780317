"""The state of a queue that was adopted by a policy, as stored in the record in the broker."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

#: The remote-control command that notifies workers.
COMMAND = "rmq_delay_adoption"


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
