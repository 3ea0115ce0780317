"""What an apply would do: the difference between a plan and the broker."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..durations import format_ms
from ..ladders import Ladder
from .apply import Drift, drift, ready_counts
from .switch import Applied, planned_bindings

if TYPE_CHECKING:
    from kombu import Connection

    from ..management import Bindings
    from .ladder import LadderPlan
    from .objects import Binding


@dataclass(frozen=True)
class Pending:
    """The changes that one origin queue waits for; false when there are none.

    ``conflicts`` are objects that exist with other arguments: an apply cannot change those. ``ladder`` is (in force,
    planned) where they differ; ``tasks`` the same by task, None standing for the queue's ladder. ``routing``: the
    bindings that route by the reason of a death have to change. ``unfinished``: a change of ladders was cut off.
    ``unbound``: bindings that are missing between objects that exist; None where nobody could look.
    """

    queue: str
    create: tuple[Drift, ...] = ()
    conflicts: tuple[Drift, ...] = ()
    ladder: tuple[Ladder | None, Ladder] | None = None
    tasks: dict[str, tuple[Ladder | None, Ladder | None]] = field(default_factory=dict)
    routing: bool = False
    unfinished: bool = False
    unbound: tuple[Binding, ...] | None = None

    def __bool__(self) -> bool:
        changes = (self.create, self.conflicts, self.ladder, self.tasks, self.routing, self.unfinished, self.unbound)
        return any(changes)

    @property
    def missing(self) -> str:
        """What an apply would create, for people: how many, and some of them."""
        return f"{len(self.create)} exchanges or queues are missing: {_listed([each.name for each in self.create])}."

    @property
    def lost_bindings(self) -> str:
        """Which bindings an apply would declare again, for people: how many, and some of them."""
        texts = [each.text for each in self.unbound or ()]
        return f"{len(texts)} bindings are missing, and messages are lost or stuck for it: {_listed(texts)}."

    def to_json(self) -> dict[str, Any]:
        """Return plain data; ladders as text."""
        return {
            **vars(self),
            "create": [vars(each) for each in self.create],
            "conflicts": [vars(each) for each in self.conflicts],
            "ladder": _change(*self.ladder) if self.ladder else None,
            "tasks": {task: _change(*change) for task, change in self.tasks.items()},
            "unbound": None if self.unbound is None else [each.text for each in self.unbound],
        }


def pending(connection: Connection, plan: LadderPlan, applied: Applied, bindings: Bindings | None = None) -> Pending:
    """Return what `apply_plan` would change for ``plan`` where the record says ``applied``. Changes nothing.

    ``bindings`` are those of the vhost, from the management API: AMQP cannot list them.
    """
    names = [plan.queue, plan.exhausted]
    counts = ready_counts(connection, names)
    found = [Drift("queue", name, "missing") for name in names if counts[name] is None]
    found += drift(connection, plan.objects(applied.highest_rung))
    in_force = applied.ladders.get(applied.current or "")
    missing = {each.name for each in found if each.problem == "missing"}
    lost = None if bindings is None else bindings.missing(planned_bindings(plan, applied))
    return Pending(
        queue=plan.queue,
        create=tuple(each for each in found if each.problem == "missing"),
        conflicts=tuple(each for each in found if each.problem != "missing"),
        ladder=None if in_force == plan.ladder else (in_force, plan.ladder),
        tasks=_task_changes(plan, applied),
        routing=applied.reason_routing not in (None, plan.reason_routing),
        unfinished=applied.phase != "settled",
        unbound=None if lost is None else tuple(each for each in lost if missing.isdisjoint(each.ends)),
    )


def _task_changes(plan: LadderPlan, applied: Applied) -> dict[str, tuple[Ladder | None, Ladder | None]]:
    changes = {}
    for task, ladder in plan.tasks.items():
        known = applied.tasks.get(task, [])
        if known != ([ladder.id] if ladder else []):
            changes[task] = (applied.ladders.get(known[-1]) if known else None, ladder)
    return changes


def ladder_text(ladder: Ladder | None) -> str:
    """Return a ladder for people: its delays, and what is special about it."""
    if ladder is None:
        return "none"
    text = " ".join(map(format_ms, ladder.tiers_ms))
    if ladder.jitter:
        text += f" ±{ladder.jitter:.0%}"
    return f"{text} and again" if ladder.repeat_last else text


def _listed(texts: list[str]) -> str:
    more = len(texts) - 3
    return ", ".join(texts[:3]) + (f" and {more} more" if more > 0 else "")


def _change(before: Ladder | None, after: Ladder | None) -> dict[str, str]:
    return {"from": ladder_text(before), "to": ladder_text(after)}
