"""The plan of each task of a run, by the run's seed and the task's number. Pure."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

Kind = Literal["advances", "hopeless", "changes", "waits", "called_later"]
QUEUES = ("classic", "quorum")

#: Tasks per hundred.
_SHARES: dict[Kind, int] = {"advances": 78, "hopeless": 5, "changes": 6, "waits": 6, "called_later": 5}
#: How often a task fails before it succeeds, by weight. No ladder of a run has fewer tiers than the largest of these.
_FAILS = {0: 35, 1: 35, 2: 20, 3: 10}
NEVER = 10**6


@dataclass(frozen=True)
class Plan:
    """The planned behaviour of a task; times in seconds.

    ``advances``: it raises ``fails`` times. ``hopeless``: it always raises. ``changes``: it retries with another
    argument. ``waits``: it retries after exactly ``countdown``. ``called_later``: it is called with ``countdown``, and
    then advances.
    """

    kind: Kind
    queue: str
    fails: int
    #: Duration of each execution.
    works: float
    countdown: float | None = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Plan:
        return cls(**data)


def plan_of(seed: int, number: int, unit: float) -> Plan:
    """Return the plan of a task. ``unit`` is the shortest tier in seconds: exact countdowns are a few of it."""
    dice = random.Random(f"{seed}/{number}")
    kind = dice.choices(list(_SHARES), list(_SHARES.values()))[0]
    fails = dice.choices(list(_FAILS), list(_FAILS.values()))[0]
    if kind == "hopeless":
        fails = NEVER
    elif kind in ("changes", "waits"):
        fails = max(1, fails)
    # Most are short, so that there are many; a few are long enough that a fault strikes while they run.
    works = dice.uniform(0.2, 1.0) if dice.random() < 0.02 else dice.uniform(0, 0.01)
    countdown = round(dice.uniform(0.2, 4) * unit, 3) if kind in ("waits", "called_later") else None
    return Plan(kind, dice.choice(QUEUES), fails, round(works, 4), countdown)
