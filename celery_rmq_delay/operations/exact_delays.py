"""The state of exact delays, what an apply would declare for them, and their findings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..amqp.apply import drift, ready_counts, unconsumed
from ..exceptions import TopologyError
from .findings import Finding, apply_fix, redeclare_fix
from .pending import Pending
from .results import Result

if TYPE_CHECKING:
    from kombu import Connection

    from ..app.exact import ExactDelays
    from ..app.state import AppState
    from ..topology.exact.base import Topology

#: Seconds for which counts do not inspect unused exact delays again: pages count every few seconds.
_UNUSED_FOR = 60.0


@dataclass(frozen=True)
class ExactStatus(Result):
    """One topology of the settings. ``waiting`` counts its messages; None if the broker does not report them."""

    topology: str
    unit_ms: int
    waiting: int | None


def exact_status(connection: Connection, exact: ExactDelays) -> list[ExactStatus]:
    """Return how many messages wait in each topology of the settings."""
    return [ExactStatus(each.name, each.unit_ms, _waiting(connection, exact, each)) for each in exact.topologies]


def _waiting(connection: Connection, exact: ExactDelays, topology: Topology) -> int | None:
    holding = topology.holding()
    if not holding:
        return None
    if not exact.in_use(connection, topology, known_for=_UNUSED_FOR):
        return 0
    return sum(count or 0 for count in ready_counts(connection, holding).values())


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


def exact_findings(connection: Connection, delay: AppState, queues: Iterable[str]) -> Iterator[Finding]:
    """Report problems of the exact delays of the settings, also of the ways to the origin ``queues``."""
    exact = delay.exact
    try:
        waiting = exact_pending(connection, exact, queues)
    except TopologyError as error:
        yield Finding("exact-topology", "error", f"{delay.setting}.exact_delays", str(error), "See the message.")
        return
    for each in waiting.conflicts:
        yield Finding("exact-conflict", "error", waiting.queue, each.difference, redeclare_fix())
    if waiting.create:
        yield Finding("exact-missing", "error", waiting.queue, waiting.missing, apply_fix())
    for topology in exact.topologies:
        yield from _unconsumed(connection, topology)


def _unconsumed(connection: Connection, topology: Topology) -> Iterator[Finding]:
    if topology.consumed is None or (count := unconsumed(connection, topology.consumed)) is None:
        return
    hint = "Start a worker of this app: each worker releases the messages that are due."
    severity: Any = "error" if count else "warning"
    yield Finding("exact-unconsumed", severity, topology.consumed, f"No worker consumes it; {count} wait there.", hint)
