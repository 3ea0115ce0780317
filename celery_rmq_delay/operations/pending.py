"""Pending changes: the difference between a plan and the broker."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from kombu import Connection

from ..amqp.apply import Drift, drift, ready_counts
from ..amqp.objects import Binding
from ..app.exact import ExactDelays
from ..app.state import AppState
from ..durations import format_ms
from ..ladders import Ladder
from ..management.records import Bindings
from ..topology.applied import Applied
from ..topology.ladder import LadderPlan
from ..topology.transition import other_bindings, planned_bindings, to_replace
from .status import event_status


@dataclass(frozen=True)
class Pending:
    """The pending changes of one origin queue; false if there are none.

    ``replace`` are queues of the other type that an apply replaces: the record at once, the quarantine queue when it is
    empty and unused. ``conflicts`` are objects that exist with other arguments: an apply cannot change those.
    ``ladder`` is (in force, planned) if they differ; ``tasks`` the same by task, where None is the queue's ladder.
    ``routing``: the bindings that route by death reason have to change. ``unfinished``: a change of ladders was
    interrupted. ``lost``: the record of the ladder in force is lost, and an apply refuses.
    ``unbound``: bindings that are missing between objects that exist; None if they were not compared. ``doubled``:
    bindings to ladders that are not in force, by which retries are doubled.
    """

    queue: str
    create: tuple[Drift, ...] = ()
    replace: tuple[Drift, ...] = ()
    conflicts: tuple[Drift, ...] = ()
    ladder: tuple[Ladder | None, Ladder] | None = None
    tasks: dict[str, tuple[Ladder | None, Ladder | None]] = field(default_factory=dict)
    routing: bool = False
    unfinished: bool = False
    lost: bool = False
    unbound: tuple[Binding, ...] | None = None
    doubled: tuple[Binding, ...] | None = None

    def __bool__(self) -> bool:
        return any(value for name, value in vars(self).items() if name != "queue")

    @property
    def missing(self) -> str:
        """Text about the objects that an apply would create: their number and some names."""
        return f"{len(self.create)} exchanges or queues are missing: {listed([each.name for each in self.create])}."

    @property
    def lost_bindings(self) -> str:
        """Text about the bindings that an apply would declare again: their number and some of them."""
        texts = [each.text for each in self.unbound or ()]
        return f"{len(texts)} bindings are missing, so messages are lost or stuck: {listed(texts)}."

    @property
    def extra_bindings(self) -> str:
        """Text about the bindings that an apply would remove: their number and some of them."""
        texts = [each.text for each in self.doubled or ()]
        return f"{len(texts)} bindings lead to ladders that are not in force, so retries run twice: {listed(texts)}."

    def to_json(self) -> dict[str, Any]:
        """Return plain data; ladders as text."""
        return {
            **vars(self),
            "create": [vars(each) for each in self.create],
            "replace": [vars(each) for each in self.replace],
            "conflicts": [vars(each) for each in self.conflicts],
            "ladder": _change(*self.ladder) if self.ladder else None,
            "tasks": {task: _change(*change) for task, change in self.tasks.items()},
            "unbound": None if self.unbound is None else [each.text for each in self.unbound],
            "doubled": None if self.doubled is None else [each.text for each in self.doubled],
        }


def pending(connection: Connection, plan: LadderPlan, applied: Applied, bindings: Bindings | None = None) -> Pending:
    """Return what `apply_plan` would change for ``plan`` where the record contains ``applied``. Changes nothing.

    ``bindings`` are those of the vhost, from the management API: AMQP cannot list them.
    """
    names = [plan.queue, plan.exhausted]
    counts = ready_counts(connection, names)
    found = [Drift("queue", name, "missing") for name in names if counts[name] is None]
    found += drift(connection, plan.objects(applied.highest_tier))
    other_type = to_replace(connection, plan)
    replaced = {each.name for each in other_type}
    in_force = applied.ladders.get(applied.current or "")
    missing = {each.name for each in found if each.problem == "missing"}
    lost = None if bindings is None else bindings.missing(planned_bindings(plan, applied))
    return Pending(
        queue=plan.queue,
        create=tuple(each for each in found if each.problem == "missing"),
        replace=other_type,
        conflicts=tuple(each for each in found if each.problem != "missing" and each.name not in replaced),
        ladder=None if in_force == plan.ladder or applied.is_lost else (in_force, plan.ladder),
        tasks={} if applied.is_lost else _task_changes(plan, applied),
        routing=applied.reason_routing not in (None, plan.reason_routing),
        unfinished=applied.phase != "settled" and not applied.is_lost,
        lost=applied.is_lost,
        unbound=None if lost is None else tuple(each for each in lost if missing.isdisjoint(each.ends)),
        doubled=None if bindings is None else tuple(bindings.present(other_bindings(plan, applied))),
    )


def _task_changes(plan: LadderPlan, applied: Applied) -> dict[str, tuple[Ladder | None, Ladder | None]]:
    changes = {}
    for task, ladder in plan.tasks.items():
        known = applied.tasks.get(task, [])
        if known != ([ladder.id] if ladder else []):
            changes[task] = (applied.ladders.get(known[-1]) if known else None, ladder)
    return changes


def ladder_text(ladder: Ladder | None, none: str = "none") -> str:
    """Return a ladder as text: its delays, jitter and whether the last one repeats; ``none`` for no ladder."""
    if ladder is None:
        return none
    text = " ".join(map(format_ms, ladder.tiers_ms))
    if ladder.jitter:
        text += f" ±{ladder.jitter:.0%}"
    return f"{text} and again" if ladder.repeat_last else text


def listed(texts: list[str], most: int = 3) -> str:
    """Return the first ``most`` texts, and how many more there are."""
    more = len(texts) - most
    return ", ".join(texts[:most]) + (f" and {more} more" if more > 0 else "")


def ladder_change(before: Ladder | None, after: Ladder | None, none: str = "none") -> tuple[str, str]:
    """Return both ladders as text, with their queue types if those differ; ``none`` stands for None."""
    if before is not None and after is not None and before.queue_type != after.queue_type:
        return f"{ladder_text(before)} ({before.queue_type})", f"{ladder_text(after)} ({after.queue_type})"
    return ladder_text(before, none), ladder_text(after, none)


def _change(before: Ladder | None, after: Ladder | None) -> dict[str, str]:
    return dict(zip(("from", "to"), ladder_change(before, after), strict=True))


def event_pending(connection: Connection, delay: AppState) -> Pending:
    """Return what an apply would declare for events; a queue with other arguments is used as it is."""
    found = event_status(connection, delay)
    missing = (Drift("queue", found.queue, "missing"),) if found is not None and found.waiting is None else ()
    return Pending(queue="events", create=missing)


def exact_pending(connection: Connection, exact: ExactDelays, queues: Iterable[str] = ()) -> Pending:
    """Return what `ExactDelays.declare`, and `ExactDelays.bind` for each of ``queues``, would change.

    Nothing while no delay was used. Raises `TopologyError` if the broker supports no topology.
    """
    chosen = exact.topology(connection)
    ways = sum((chosen.arrival(queue) for queue in queues), chosen.frame())
    found = drift(connection, ways) if exact.in_use(connection, chosen) else []
    return Pending(
        queue=f"exact delays ({chosen.name})",
        create=tuple(each for each in found if each.problem == "missing"),
        conflicts=tuple(each for each in found if each.problem != "missing"),
    )
