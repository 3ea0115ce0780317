"""Numbers of broker objects that ladders and levels need, counted on their real plans."""

from __future__ import annotations

from dataclasses import astuple, dataclass, replace

from ..amqp.objects import Objects
from ..ladders import Ladder, QueueType
from ..names import Names
from .common import safety_net
from .exact.base import Options
from .exact.levels import Levels
from .ladder import LadderPlan

#: Bindings of an origin queue that are moved while workers run, and so are in no plan's objects: of the dead-letter
#: exchange, of the other deaths, of the active exchange, of its standby exchange, and of the exchange that marks the
#: ladder in force.
_MOVING_BINDINGS = 5
#: Before RabbitMQ 3.13 three reasons of a first death are bound as well, instead of one for rejections.
_MOVING_BINDINGS_BEFORE_REASONS = 7


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


def _for_origins(one: Objects, two: Objects, origins: int) -> Counts:
    """Return the counts for ``origins`` origin queues: each further one adds what the second one adds."""
    counts = zip(astuple(Counts.of(one)), astuple(Counts.of(two)), strict=True)
    return Counts(*(first + (origins - 1) * (both - first) for first, both in counts))


def ladder_counts(ladder: Ladder, queue_type: QueueType, origins: int, *, reason_routing: bool = True) -> Counts:
    """Return what ``origins`` origin queues with this ladder add to a broker; they are not counted themselves."""
    names = Names("rmq_delay")
    plan = LadderPlan(names, "queue-1", queue_type, "rmq_delay.exhausted", ladder, reason_routing=reason_routing)
    one, other = (
        each.objects() + Objects(queues=(each.record_queue(), each.exhausted_queue()))
        for each in (plan, replace(plan, queue="queue-2"))
    )
    moving = _MOVING_BINDINGS if reason_routing else _MOVING_BINDINGS_BEFORE_REASONS
    # One more exchange marks the ladder in force; it is in no plan, as it depends on the record.
    return _for_origins(one, one + other, origins) + Counts(0, origins, origins * moving)


def levels_counts(levels: int, unit_ms: int, queue_type: QueueType, origins: int) -> Counts:
    """Return what ``levels`` binary levels and routes to ``origins`` queues add to the objects of ladders."""
    if not levels:
        return Counts(0, 0, 0)
    options = Options(Names("rmq_delay"), "rmq_delay.exhausted", queue_type, unit_ms, levels)
    topology = Levels(options)
    one = topology.frame() + topology.arrival("queue-1")
    found = _for_origins(one, one + topology.arrival("queue-2"), origins)
    shared = Counts.of(safety_net(options.names, options.exhausted))
    return Counts(found.queues, found.exchanges - shared.exchanges, found.bindings - shared.bindings)
