"""The result of a migration, in numbers that have to add up."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from ..results import Result


@dataclass
class Report(Result):
    """Counts of messages.

    ``before`` and ``after``: ready in the source's queues. ``moved``: by destination queue, into the target.
    ``delivered``: by queue, directly there, as they were due. ``poisoned``: not understood, by reason. ``left``: still
    in the source, by reason. ``copies`` were confirmed by the broker; a message for several queues has several.
    ``arrived``: entered the source during the run; None if unknown.
    """

    source: str
    target: str
    dry_run: bool = False
    before: int = 0
    after: int = 0
    moved: Counter[str] = field(default_factory=Counter)
    delivered: Counter[str] = field(default_factory=Counter)
    poisoned: Counter[str] = field(default_factory=Counter)
    left: Counter[str] = field(default_factory=Counter)
    left_on_purpose: int = 0
    taken: int = 0
    copies: int = 0
    arrived: int | None = None
    interrupted: bool = False
    complete: bool = True
    removed: list[str] = field(default_factory=list)

    @property
    def difference(self) -> int:
        """The expected number of messages left in the source minus the actual one."""
        return self.before + (self.arrived or 0) - (0 if self.dry_run else self.taken) - self.after

    @property
    def came_due(self) -> int:
        """How many messages became due and left the source during the run."""
        return max(0, self.difference)

    @property
    def surplus(self) -> int:
        """How many more messages are left in the source than expected."""
        return max(0, -self.difference)

    @property
    def adds_up(self) -> bool:
        """Whether each taken message has a confirmed copy, and no unexplained messages are left."""
        if self.dry_run:
            return not self.surplus
        copied = sum((self.moved + self.delivered + self.poisoned).values())
        return copied == self.copies and self.taken <= self.copies and not self.surplus

    @property
    def needs_a_person(self) -> bool:
        """Whether an operator has to act."""
        return (
            not self.adds_up
            or self.interrupted
            or not self.complete
            or bool(self.poisoned)
            or sum(self.left.values()) > self.left_on_purpose
        )

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        more = {"came_due": self.came_due, "surplus": self.surplus, "adds_up": self.adds_up}
        return {**super().to_json(), **more}
