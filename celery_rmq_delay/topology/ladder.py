"""The ladder of an origin queue as pure data.

    Q --reject--> dlx --rejected--> tasks --own tiers--> ladder.<id> --Q@k--> tier k+1 --TTL--> return --Q@k--> Q
                   |                  |                     |                             `--Q is gone--> exhausted
                   |                  |                     `--unknown key--> first --> tier 1 (gone: exhausted)
                   `--other deaths--> other                 `--Q@N--> exhausted
                                      `--any other task--> ladder (active exchange, then: standby) --> ladder.<id>

The routing key contains the tier, so a message advances without being published again. The names of a ladder's
exchanges and delay queues contain their properties, and they never change; only the bindings of the active exchange and
of ``tasks`` move (`celery_rmq_delay.topology.transition`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from ..amqp.objects import Binding, Exchange, Objects, Queue, arguments
from ..amqp.record import LOCKABLE
from ..amqp.route import Route
from ..headers import LANE
from ..ladders import Ladder, QueueType
from ..names import Names, delay_queue, quarantine, return_key
from .common import managed_queue_arguments, origin_arguments, safe_dead_lettering, safety_net, undeliverable


@dataclass(frozen=True)
class LadderPlan:
    """The broker objects of one origin queue, and the ladders of its tasks.

    ``tasks`` maps every retryable task of the app to its own ladder on this queue, or to None. All ladders have delay
    queues of ``queue_type``. ``reason_routing``: the broker reports why a message was dead-lettered (RabbitMQ >= 3.13).
    """

    names: Names
    queue: str
    queue_type: QueueType
    exhausted: str
    ladder: Ladder
    tasks: Mapping[str, Ladder | None] = field(default_factory=dict)
    reason_routing: bool = True

    def __post_init__(self) -> None:
        tasks = {task: ladder and replace(ladder, queue_type=self.queue_type) for task, ladder in self.tasks.items()}
        object.__setattr__(self, "ladder", replace(self.ladder, queue_type=self.queue_type))
        object.__setattr__(self, "tasks", tasks)

    @property
    def of_other_type(self) -> LadderPlan:
        """The same plan for a queue of the other type."""
        return replace(self, queue_type="classic" if self.queue_type == "quorum" else "quorum")

    @property
    def ladders(self) -> dict[str, Ladder]:
        """Every ladder in force on the queue, by its id."""
        own = (ladder for ladder in self.tasks.values() if ladder is not None)
        return {ladder.id: ladder for ladder in (self.ladder, *own)}

    def objects(self, highest_tier: int = 0) -> Objects:
        """Return all objects but the bindings that move. Messages may return from tiers up to ``highest_tier``."""
        highest = max(highest_tier, *(len(ladder) for ladder in self.ladders.values()))
        found = self._returns() + Objects(self.routing_exchanges, (self.quarantine_queue(),))
        for ladder in self.ladders.values():
            found += self.ladder_objects(ladder, highest)
        return found + Objects(bindings=tuple(self.return_binding(tier_index) for tier_index in range(1, highest + 1)))

    @property
    def routing_exchanges(self) -> tuple[Exchange, ...]:
        """The exchanges that route rejected messages to a ladder or to the exhausted queue, in order of declaration."""
        names, queue = self.names, self.queue
        return (
            Exchange(names.standby(queue), "fanout"),
            *self.active_exchange.exchanges,
            Exchange(names.tasks(queue), "headers", names.active(queue)),
            Exchange(names.other(queue), "fanout"),
            Exchange(names.dlx(queue), "headers", names.other(queue)),
        )

    @property
    def active_exchange(self) -> Objects:
        """The exchange that leads to the ladder in force; it exists once a ladder was applied."""
        return Objects((Exchange(self.names.active(self.queue), "fanout", self.names.standby(self.queue)),))

    def _returns(self) -> Objects:
        """Return the objects that return messages; those of a deleted queue go to the exhausted queue."""
        exchange = Exchange(self.names.returns, "direct", undeliverable(self.names))
        return safety_net(self.names, self.exhausted) + Objects((exchange,))

    def ladder_objects(self, ladder: Ladder, highest: int) -> Objects:
        """Return one ladder's exchanges, delay queues and bindings, which cover routing keys up to ``highest``."""
        names, queue, exchange = self.names, self.queue, self.names.ladder(self.queue, ladder.id)
        first = names.first(queue, ladder.id)
        found = Objects((Exchange(first, "fanout", undeliverable(names)), Exchange(exchange, "direct", first)))
        for tier_index in range(1, len(ladder) + 1):
            source, key = (first, "") if tier_index == 1 else (exchange, return_key(queue, tier_index - 1))
            found += self._tier(ladder, tier_index)
            found += Objects(bindings=(self._into_tier(ladder, tier_index, source, key),))
        for tier_index in range(len(ladder), max(highest, len(ladder)) + 1):
            end = Binding(exchange, self.exhausted, key=return_key(queue, tier_index))
            if ladder.repeat_last:
                end = self._into_tier(ladder, len(ladder), exchange, end.key)
            found += Objects(bindings=(end,))
        return found

    def _tier(self, ladder: Ladder, tier_index: int) -> Objects:
        ttls = ladder.lane_ttls(tier_index)
        queues = tuple(self._delay_queue(ladder, tier_index, ttl) for ttl in ttls)
        if len(ttls) == 1:
            return Objects(queues=queues)
        names, of_tier = self.names, (self.queue, ladder.id, tier_index)
        over, lane0 = names.tier(*of_tier), names.lane0(*of_tier)
        lanes = tuple(
            Binding(over, queue.name, declared=arguments({"x-match": "all", LANE: lane}))
            for lane, queue in enumerate(queues)
        )
        return Objects(
            exchanges=(Exchange(lane0, "fanout", undeliverable(names)), Exchange(over, "headers", lane0)),
            queues=queues,
            bindings=(Binding(lane0, queues[0].name), *lanes),
        )

    def _into_tier(self, ladder: Ladder, tier_index: int, source: str, key: str) -> Binding:
        ttls = ladder.lane_ttls(tier_index)
        if len(ttls) == 1:
            return Binding(source, self._delay_queue(ladder, tier_index, ttls[0]).name, key=key)
        return Binding(source, self.names.tier(self.queue, ladder.id, tier_index), to="exchange", key=key)

    def delay_queue(self, tier_index: int, ttl_ms: int) -> Queue:
        """Return the delay queue of ``tier_index`` that holds messages for ``ttl_ms``."""
        return self._delay_queue(self.ladder, tier_index, ttl_ms)

    def _delay_queue(self, ladder: Ladder, tier_index: int, ttl_ms: int) -> Queue:
        declared = {
            **dict(managed_queue_arguments(ladder.queue_type)),
            **safe_dead_lettering(ladder.queue_type),
            "x-message-ttl": ttl_ms,
            "x-dead-letter-exchange": self.names.returns,
            "x-dead-letter-routing-key": return_key(self.queue, tier_index),
        }
        name = delay_queue(self.queue, tier_index, ttl_ms, self.names.prefix, ladder.queue_type)
        return Queue(name, arguments(declared))

    def route(self, tier_index: int, ttl_ms: int) -> Route:
        """Return the route through the delay queue of a tier that holds messages for ``ttl_ms``."""
        queue = self.delay_queue(tier_index, ttl_ms)
        objects = self._returns() + Objects((), (queue,), (self.return_binding(tier_index),))
        key = ("ladder", queue.name)
        return Route("", queue.name, ttl_ms, objects=objects, key=key, sorts=self.queue_type == "quorum")

    def return_binding(self, tier_index: int) -> Binding:
        """Return the binding by which messages return from ``tier_index``."""
        return Binding(self.names.returns, self.queue, key=return_key(self.queue, tier_index))

    def from_active(self, ladder: str) -> Binding:
        """Return the binding by which the queue's rejected messages enter the ladder with this id."""
        return Binding(self.names.active(self.queue), self.names.ladder(self.queue, ladder), to="exchange")

    def from_standby(self, ladder: str) -> Binding:
        """Return the binding by which they enter it while `from_active` moves to another ladder."""
        return Binding(self.names.standby(self.queue), self.names.ladder(self.queue, ladder), to="exchange")

    def from_tasks(self, task: str, ladder: str) -> Binding:
        """Return the binding by which the messages of ``task`` enter the task's own ladder."""
        declared = arguments({"x-match": "all", "task": task})
        exchange = self.names.ladder(self.queue, ladder)
        return Binding(self.names.tasks(self.queue), exchange, to="exchange", declared=declared)

    def delay_queues(self, ladders: Iterable[Ladder]) -> list[tuple[int, int, Queue]]:
        """Return (tier, tier in ms, delay queue) of the given ladders, each delay queue once."""
        found: dict[str, tuple[int, int, Queue]] = {}
        for ladder in ladders:
            for tier_index, tier in enumerate(ladder.tiers_ms, 1):
                for ttl in ladder.lane_ttls(tier_index):
                    queue = self._delay_queue(ladder, tier_index, ttl)
                    found.setdefault(queue.name, (tier_index, tier, queue))
        return list(found.values())

    def quarantine_queue(self) -> Queue:
        """Return the quarantine queue. Workers with another prefix share it; the first one sets its arguments."""
        return Queue(quarantine(self.queue), arguments(origin_arguments(self.names, self.queue, self.queue_type)))

    def exhausted_queue(self) -> Queue:
        """Return the exhausted queue. All origin queues share it; the first one sets its type."""
        return Queue(self.exhausted, managed_queue_arguments(self.queue_type))

    def record_queue(self) -> Queue:
        """Return the queue that holds the record of the applied ladders."""
        kept = dict(managed_queue_arguments(self.queue_type))
        return Queue(self.names.record(self.queue), arguments({**kept, **LOCKABLE}))
