"""The number of broker objects that a ladder needs, counted on its real plan."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ...amqp.objects import Objects
from ...ladders import Ladder, QueueType
from ...names import Names
from ...topology.common import safety_net
from ...topology.exact.base import Options
from ...topology.exact.levels import Levels
from ...topology.ladder import LadderPlan

#: Bindings that are moved while workers run, and so are in no plan's objects: of the dead-letter exchange, of the other
#: deaths, of the active exchange, of its standby exchange, and of the exchange that marks the ladder in force.
_MOVING = 5
#: Before RabbitMQ 3.13 three reasons of a first death are bound as well, instead of one for rejections.
_MOVING_BEFORE_REASONS = 7


@dataclass(frozen=True)
class Counts:
    """Numbers of broker objects."""

    queues: int
    exchanges: int
    bindings: int

    def __add__(self, other: Counts) -> Counts:
        return Counts(self.queues + other.queues, self.exchanges + other.exchanges, self.bindings + other.bindings)

    @classmethod
    def of(cls, objects: Objects) -> Counts:
        """Count objects by kind."""
        return cls(len(objects.queues), len(objects.exchanges), len(objects.bindings))


def ladder_counts(ladder: Ladder, queue_type: QueueType, origins: int, *, reason_routing: bool = True) -> Counts:
    """Return what ``origins`` origin queues with this ladder add to a broker; the origin queues are not counted.

    ``reason_routing``: whether the broker reports why a message died (RabbitMQ >= 3.13).
    """
    plan = LadderPlan(
        Names("rmq_delay"), "queue-1", queue_type, "rmq_delay.exhausted", ladder, reason_routing=reason_routing
    )
    one = _everything(plan)
    two = one + _everything(replace(plan, queue="queue-2"))
    shared, both = Counts.of(one), Counts.of(two)
    moving = _MOVING if reason_routing else _MOVING_BEFORE_REASONS
    more = origins - 1
    return Counts(
        shared.queues + more * (both.queues - shared.queues),
        # One more marks the ladder in force; it is in no plan, as it depends on the record.
        shared.exchanges + more * (both.exchanges - shared.exchanges) + origins,
        shared.bindings + more * (both.bindings - shared.bindings) + origins * moving,
    )


def levels_counts(levels: int, unit_ms: int, queue_type: QueueType, origins: int) -> Counts:
    """Return what ``levels`` binary levels, with the routes to ``origins`` queues, add to a broker; 0 means none.

    The ladder's objects include the exhausted queue and the routes to it from deleted queues.
    """
    if not levels:
        return Counts(0, 0, 0)
    options = Options(Names("rmq_delay"), "rmq_delay.exhausted", queue_type, unit_ms, levels)
    topology = Levels(options)
    ways = sum((topology.arrival(f"queue-{number}") for number in range(origins)), Objects())
    found = Counts.of(topology.frame() + ways)
    shared = Counts.of(safety_net(options.names, options.exhausted))
    return Counts(found.queues, found.exchanges - shared.exchanges, found.bindings - shared.bindings)


def _everything(plan: LadderPlan) -> Objects:
    return plan.objects() + Objects(queues=(plan.record_queue(), plan.exhausted_queue()))
