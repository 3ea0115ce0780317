"""What the record in the broker says of a queue that was adopted by a policy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

#: The name of the remote-control command that tells workers.
COMMAND = "rmq_delay_adoption"


@dataclass(frozen=True)
class Adoption:
    """A queue without our dead-letter arguments, and whether a policy stands in for them.

    ``in_force``: its messages may be rejected. ``generation`` grows with every change. ``queue_type`` and
    ``delivery_limit`` (None: the broker's default) are the queue's own, whatever the app declares. ``policy``,
    ``pattern``, ``priority`` and ``definition`` are the policy as it was written; ``base`` the name of the user policy
    that it was merged from, ``base_definition`` what that said.
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
        """Read what `to_json` wrote, also in a later version; None where it lacks what this one needs."""
        known = {each.name: data[each.name] for each in fields(cls) if each.name in data} if data else {}
        if not {"in_force", "generation", "queue_type"} <= known.keys():
            return None
        return cls(**known)
