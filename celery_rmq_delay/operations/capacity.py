"""Capacity planning: how many messages a load parks, and what RabbitMQ needs for them. Pure functions, no I/O.

`estimate` takes a `Workload` and returns an `Estimate`. Names end with their unit (bytes, ms, per second); a name
without one is a count or a share. Waiting messages follow from Little's law, and bytes from `CONSTANTS`, each of which
has its source.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import inf

from ..durations import format_ms
from ..exceptions import SettingsError
from ..ladders import Ladder, QueueType
from ..topology.counts import Counts, ladder_counts, levels_counts
from ..topology.exact.base import units

#: The versions of RabbitMQ that were measured, the newest last.
VERSIONS = ("3.10", "4.0", "4.3")
#: The command that prints the measured constants.
MEASURED_BY = "python -m benchmarks broker_memory --rabbitmq VERSION"

_MIB = 1024**2
_DAY_S = 86_400
# Where the constants are from, if they were not printed by `MEASURED_BY`.
_WATERMARK = "RabbitMQ docs, Memory Threshold and Limit; read from the nodes"
_FOOTPRINT = "RabbitMQ docs, Classic Queues, Memory Footprint: up to 1 MB of the per-queue store"
_EMBEDDING = "RabbitMQ docs, Classic Queues, Persistence: the embedding threshold"
_RESOURCE_USE = "measured; RabbitMQ docs, Quorum Queues, Resource Use: at least 32"
_NOT_QUORUM = "RabbitMQ docs, Quorum Queues, When Not to Use Quorum Queues"
_LOG = "RabbitMQ docs, Quorum Queues, How Memory, WAL and Segments Files Interact"
_DECLARATION = "measured: python -m benchmarks apply_topology, 8 to 14 ms a queue"


@dataclass(frozen=True)
class Constant:
    """A number, or one per RabbitMQ version in the order of `VERSIONS`."""

    name: str
    what: str
    unit: str
    values: float | tuple[float, float, float]
    source: str = "measured"

    def of(self, version: str) -> float:
        """Return the value for a version."""
        return self.values[VERSIONS.index(version)] if isinstance(self.values, tuple) else self.values


#: Every constant, in the order in which they are printed. The measured ones are what `MEASURED_BY` prints, on the
#: machine of docs/contributing/performance.md: bytes for one of 100,000 messages, 1,000 queues, 10,000 bindings, 1,000
#: exchanges.
CONSTANTS = (
    Constant("node", "resident memory of an idle node", "B", (147e6, 109e6, 150e6)),
    Constant("high_watermark", "share of its RAM at which a node stops publishers", "", (0.4, 0.6, 0.6), _WATERMARK),
    Constant("classic_buffer", "memory for buffers of a classic queue, at most", "B", _MIB, _FOOTPRINT),
    Constant("classic_kept", "memory of a kept message, over its size; 0: none is kept", "B", (935, 0, 0)),
    Constant("classic_embedded", "larger messages are in the shared message store", "B", 4096, _EMBEDDING),
    Constant("classic_stored", "memory of a message in the shared store; 0: it is kept", "B", (0, 310, 314)),
    Constant("classic_disk", "disk of a classic message, over its size", "B", (243, 227, 227)),
    Constant("classic_queue", "memory of an empty classic queue", "B", (23_213, 11_403, 28_295)),
    Constant("classic_queue_disk", "disk of an empty classic queue", "B", (496, 9_507, 9_097)),
    Constant("quorum_message", "memory of a quorum message, in each replica", "B", (66, 70, 78), _RESOURCE_USE),
    Constant("quorum_disk", "disk of a quorum message, over its size", "B", (340, 317, 276)),
    Constant("quorum_queue", "memory of an empty quorum queue", "B", (62_393, 69_571, 130_384)),
    Constant("quorum_queue_disk", "disk of an empty quorum queue", "B", (21_598, 28_140, 30_040)),
    Constant("quorum_backlog", "messages in one quorum queue that are too many", "", 5e6, _NOT_QUORUM),
    Constant("wal", "write-ahead log of a node, before it is flushed", "B", 512 * _MIB, _LOG),
    Constant("wal_message", "memory of a message in the log, over its size", "B", (747, 447, 795)),
    Constant("wal_node_factor", "a node's RAM is at least so many write-ahead logs", "", 3, _LOG),
    Constant("binding", "memory of a binding, on every node", "B", (2_507, 2_692, 3_220)),
    Constant("binding_disk", "disk of a binding, on every node", "B", (266, 147, 5_792)),
    Constant("exchange", "memory of an exchange, on every node", "B", (852, 1_101, 687)),
    Constant("death", "headers that the first retry adds to a message", "B", (371, 498, 498)),
    Constant("death_more", "headers that every further retry adds", "B", 151),
    Constant("many_queues", "queues that take minutes to declare", "", 10_000, _DECLARATION),
)


@dataclass(frozen=True)
class Workload:
    """A load and where its messages wait.

    ``rate_per_s``: first attempts, over all ``queues`` origin queues. ``failures``: the share of attempts that fail,
    see `flow`. ``size_bytes``: a message with its properties and headers. ``countdown_rate_per_s`` of the tasks are
    published with an exact delay of ``countdown_ms``; ``levels`` (0: none) of ``unit_ms`` hold them. ``replicas``: of
    quorum queues. ``nodes`` of the cluster share queues and messages evenly. ``version`` of RabbitMQ: one of
    `VERSIONS`. ``node_memory_bytes``: RAM of a node, for a warning if it is too little.
    """

    rate_per_s: float
    failures: tuple[float, ...]
    size_bytes: int
    ladder: Ladder
    queue_type: QueueType = "classic"
    replicas: int = 3
    nodes: int | None = None
    queues: int = 1
    outage_ms: int = 0
    countdown_rate_per_s: float = 0.0
    countdown_ms: int = 0
    levels: int = 28
    unit_ms: int = 1000
    version: str = VERSIONS[-1]
    node_memory_bytes: int | None = None

    @property
    def quorum(self) -> bool:
        """Whether the queues are quorum queues."""
        return self.queue_type == "quorum"

    @property
    def copies(self) -> int:
        """Copies of each message in the cluster."""
        return self.replicas if self.quorum else 1

    @property
    def cluster(self) -> int:
        """Number of nodes; by default as many as copies."""
        return self.copies if self.nodes is None else self.nodes

    @property
    def share(self) -> float:
        """The share of the cluster's messages and queues on one node."""
        return self.copies / self.cluster

    @property
    def costs(self) -> dict[str, float]:
        """The constants of the version, by name."""
        return {each.name: each.of(self.version) for each in CONSTANTS}

    def size_after_bytes(self, deaths: int) -> float:
        """Return a message's size after ``deaths`` dead-letterings: the broker records each queue in its headers."""
        costs = self.costs
        return self.size_bytes + (costs["death"] + (deaths - 1) * costs["death_more"] if deaths else 0)

    def check(self) -> None:
        """Raise `SettingsError` if it is inconsistent."""
        if self.quorum and self.cluster < self.replicas:
            hint = f"Each of {self.replicas} replicas needs its own node: use more nodes or fewer replicas."
            raise SettingsError("nodes", self.nodes, hint)
        if self.version not in VERSIONS:
            hint = f"Measured versions are {', '.join(VERSIONS)}: use the nearest."
            raise SettingsError("rabbitmq", self.version, hint)
        if self.countdown_rate_per_s > self.rate_per_s:
            total = f"These tasks are part of the total rate of {self.rate_per_s:g}/s"
            hint = f"{total}: raise that rate, or lower this one."
            raise SettingsError("countdown rate", self.countdown_rate_per_s, hint)
        if bool(self.countdown_rate_per_s) != bool(self.countdown_ms):
            hint = "Tasks with a countdown need both a rate and a delay."
            raise SettingsError("countdown", self.countdown_ms or None, hint)
        if self.countdown_rate_per_s and not self.levels:
            hint = "Only delays of `levels` can be estimated: leave out the countdown, or add levels."
            raise SettingsError("levels", self.levels, hint)


@dataclass(frozen=True)
class TierFlow:
    """One tier. ``parked`` in a steady state; ``parked_outage`` at the end of the outage, None without one."""

    tier_index: int
    delay_ms: int
    arrivals_per_s: float
    parked: float
    parked_outage: float | None

    @property
    def peak(self) -> float:
        """Messages at the end of the outage, or in a steady state without one."""
        return self.parked if self.parked_outage is None else self.parked_outage


@dataclass(frozen=True)
class LevelFlow:
    """One binary level of exact delays, in a steady state."""

    level: int
    ttl_ms: int
    arrivals_per_s: float
    parked: float


@dataclass(frozen=True)
class Outage:
    """The end of an outage of ``ms``: messages ``parked`` then, which is the peak, and ``exhausted`` until then.

    ``peak_factor``: parked messages divided by those in a steady state; None if those are 0.
    """

    ms: int
    parked: float
    peak_factor: float | None
    attempts_per_s: float
    exhausted: float


@dataclass(frozen=True)
class Flow:
    """Messages that wait, and executions (``attempts``), parked and exhausted messages per second: a steady state."""

    tiers: tuple[TierFlow, ...]
    parked: float
    attempts_per_s: float
    retries_per_s: float
    exhausted_per_s: float
    exhausted_per_day: float
    outage: Outage | None


def flow(rate_per_s: float, failures: Sequence[float], ladder: Ladder, outage_ms: int = 0) -> Flow:
    """Return the flow through a ladder by Little's law: waiting messages are the arrival rate times the delay.

    It holds for every single tier, and a message that has failed k times arrives in tier k. ``failures``: the share of
    attempts that fail; one for all attempts, or one for each, of which the last one applies to all later ones.
    ``outage_ms``: all attempts fail for this time, after a steady state. Attempts take no time. With jitter the
    messages are spread evenly over the lanes. Raises `SettingsError` if the last tier grows without a limit.
    """
    entering = _entering_per_s(rate_per_s, failures, ladder)
    *arrivals, exhausted = entering
    ttls_ms = [ladder.lane_ttls(tier_index) for tier_index in range(1, len(ladder) + 1)]
    parked = [rate * (_mean(ttls) / 1000) for rate, ttls in zip(arrivals, ttls_ms, strict=True)]
    peaks: Sequence[float | None] = [None] * len(ladder)
    outage = None
    if outage_ms:
        lanes = [_lane_in_outage(rate_per_s, entering, lane, outage_ms, ladder) for lane in zip(*ttls_ms, strict=True)]
        *at_end, attempts_then, exhausted_then = (_mean(values) for values in zip(*lanes, strict=True))
        factor = sum(at_end) / sum(parked) if sum(parked) else None
        peaks, outage = at_end, Outage(outage_ms, sum(at_end), factor, attempts_then, exhausted_then)
    tiers = map(TierFlow, range(1, len(ladder) + 1), ladder.tiers_ms, arrivals, parked, peaks)
    return Flow(
        tiers=tuple(tiers),
        parked=sum(parked),
        attempts_per_s=rate_per_s + sum(arrivals),
        retries_per_s=sum(arrivals),
        exhausted_per_s=exhausted,
        exhausted_per_day=exhausted * _DAY_S,
        outage=outage,
    )


def level_flow(rate_per_s: float, delay_ms: int, unit_ms: int, levels: int) -> tuple[LevelFlow, ...]:
    """Return the levels that messages with a delay pass, the longest first, by Little's law.

    The delay is rounded up to units; each bit that is set in it is a level that holds the message. Raises
    `SettingsError` for a delay that ``levels`` cannot hold.
    """
    count = units(delay_ms, unit_ms) if rate_per_s else 0
    if count.bit_length() > levels:
        hint = f"{levels} levels of {format_ms(unit_ms)} hold {format_ms((2**levels - 1) * unit_ms)}."
        raise SettingsError("countdown", format_ms(delay_ms), hint)
    passed = [(level, unit_ms * 2**level) for level in reversed(range(levels)) if count >> level & 1]
    return tuple(LevelFlow(level, ttl_ms, rate_per_s, rate_per_s * ttl_ms / 1000) for level, ttl_ms in passed)


def _entering_per_s(rate_per_s: float, failures: Sequence[float], ladder: Ladder) -> list[float]:
    """Return the rates into tier 1, tier 2, ... and the exhausted queue in a steady state.

    The rate into tier k is that of first attempts times the product of the first k shares. A last tier that repeats
    adds the geometric series of its share.
    """
    attempts = max(len(ladder) + 1, len(failures))
    shares = [failures[min(attempt, len(failures) - 1)] for attempt in range(attempts)]
    failed = [rate_per_s * passed for passed in accumulate(shares, lambda left, right: left * right)]
    if not ladder.repeat_last:
        return failed[: len(ladder) + 1]
    if shares[-1] == 1 and failed[-1]:
        hint = (
            "With repeat_last a task that always fails is retried without a limit: its last tier is unbounded. Use a "
            "lower share for the later attempts, such as 0.02,0.5, or --outage for a time in which all attempts fail."
        )
        raise SettingsError("failure rate", ",".join(f"{each:g}" for each in failures), hint)
    later = failed[-1] * shares[-1] / (1 - shares[-1]) if failed[-1] else 0.0
    return [*failed[: len(ladder) - 1], sum(failed[len(ladder) - 1 :]) + later, 0.0]


def _lane_in_outage(
    rate_per_s: float, entering: Sequence[float], ttls_ms: Sequence[int], outage_ms: int, ladder: Ladder
) -> list[float]:
    """Return the messages in each tier of a lane when an outage ends, attempts per second then, and exhausted messages.

    A message that enters tier k has passed the tiers below, each after its delay, and has failed in all of them since
    the outage began. Counted back, it entered tier m before the outage, at the steady rate of tier m. So the rate into
    tier k is a step function of the time since the outage began: its steps are at the sums of the delays below k, and
    its highest step is the rate of first attempts. More messages arrive than leave until the outage ends, and fewer
    from then on: the end is the peak. A last tier that repeats keeps its old messages and all new ones, and each of
    them returns whenever a whole number of TTLs has passed.
    """

    def steps(tier_index: int) -> list[tuple[float, float, float]]:  # (begin ms, end ms, messages per second)
        ends_ms = list(accumulate(reversed(ttls_ms[: tier_index - 1]), initial=0))
        rates = [*reversed(entering[:tier_index]), rate_per_s]
        return list(zip([-inf, *ends_ms], [*ends_ms, outage_ms], rates, strict=True))

    def entered(tier_index: int, begin_ms: int) -> float:  # from `begin_ms` to the end of the outage
        parts = [(min(end, outage_ms) - max(begin, begin_ms), rate) for begin, end, rate in steps(tier_index)]
        return sum(rate * max(0, ms) / 1000 for ms, rate in parts)

    last, last_ms = len(ttls_ms), outage_ms - 1
    parked, returning = [], []
    for tier_index, ttl_ms in enumerate(ttls_ms, 1):
        if ladder.repeat_last and tier_index == last:
            old_per_s = entering[tier_index - 1]
            parked.append(entered(tier_index, 0) + old_per_s * ttl_ms / 1000)
            again = [
                rate * (max((last_ms - begin) // ttl_ms, 0) - max((last_ms - end) // ttl_ms, 0))
                for begin, end, rate in steps(tier_index)[1:]
            ]
            returning.append(old_per_s + sum(again))
        else:
            parked.append(entered(tier_index, outage_ms - ttl_ms))
            returning += [rate for begin, end, rate in steps(tier_index) if begin <= last_ms - ttl_ms < end]
    exhausted = 0.0 if ladder.repeat_last else entered(last + 1, 0)
    return [*parked, rate_per_s + sum(returning), exhausted]


def _mean(values: Collection[float]) -> float:
    return sum(values) / len(values)


@dataclass(frozen=True)
class Waiting:
    """``count`` messages of ``size_bytes`` that wait in ``queues`` equal queues of the cluster.

    ``moved_per_s``: messages that the broker takes in for them, into these queues and from a tier back.
    """

    where: str
    queues: int
    count: float
    size_bytes: float
    moved_per_s: float


@dataclass(frozen=True)
class Item:
    """A part of a node's memory or disk, and the constants that it was computed from."""

    what: str
    size_bytes: float
    constants: tuple[str, ...]


@dataclass(frozen=True)
class Estimate:
    """What a workload needs. ``memory`` and ``disk`` are those of one node when most messages are parked.

    ``delayed`` messages wait for their countdown in ``levels``. ``objects`` are those of ``ladders``, ``levels`` and
    ``all``. ``moved_per_s``: messages that the broker takes into queues. ``written_bytes_per_s``: their bytes, in all
    copies. ``memory_needed_bytes``: RAM of a node with which it stays below its high watermark.
    """

    workload: Workload
    flow: Flow
    levels: tuple[LevelFlow, ...]
    delayed: float
    objects: dict[str, Counts]
    moved_per_s: float
    written_bytes_per_s: float
    memory: tuple[Item, ...]
    node_memory_bytes: float
    memory_needed_bytes: float
    disk: tuple[Item, ...]
    node_disk_bytes: float
    waiting: tuple[Waiting, ...]


def estimate(load: Workload) -> Estimate:
    """Return what a workload needs. Raises `SettingsError` if it is inconsistent or would grow without a limit."""
    load.check()
    flows = flow(load.rate_per_s, load.failures, load.ladder, load.outage_ms)
    levels = level_flow(load.countdown_rate_per_s, load.countdown_ms, load.unit_ms, load.levels)
    ladders = ladder_counts(load.ladder, load.queue_type, load.queues, reason_routing=load.version != "3.10")
    shared = levels_counts(load.levels, load.unit_ms, load.queue_type, load.queues)
    waiting = _waiting(load, flows, levels)
    memory, disk = _memory(load, waiting, ladders + shared), _disk(load, waiting, ladders + shared)
    moved = [(load.rate_per_s, load.size_bytes), *((each.moved_per_s, each.size_bytes) for each in waiting)]
    used_bytes, costs = sum(item.size_bytes for item in memory), load.costs
    log_bytes = costs["wal_node_factor"] * costs["wal"] if load.quorum else 0
    return Estimate(
        workload=load,
        flow=flows,
        levels=levels,
        delayed=sum(level.parked for level in levels),
        objects={"ladders": ladders, "levels": shared, "all": ladders + shared},
        moved_per_s=sum(rate for rate, _ in moved),
        written_bytes_per_s=sum(rate * size_bytes for rate, size_bytes in moved) * load.copies,
        memory=memory,
        node_memory_bytes=used_bytes,
        memory_needed_bytes=max(used_bytes / costs["high_watermark"], log_bytes),
        disk=disk,
        node_disk_bytes=sum(item.size_bytes for item in disk),
        waiting=waiting,
    )


def _waiting(load: Workload, flows: Flow, levels: Sequence[LevelFlow]) -> tuple[Waiting, ...]:
    """Return the messages that wait at the peak; in the exhausted queue those of the outage."""
    lanes, size, found = load.queues * load.ladder.lanes, load.size_after_bytes, []
    for tier in flows.tiers:
        where = f"Tier {tier.tier_index} ({format_ms(tier.delay_ms)})"
        found.append(Waiting(where, lanes, tier.peak, size(tier.tier_index), 2 * tier.arrivals_per_s))
    for passed, level in enumerate(levels):
        where = f"Level {level.level} ({format_ms(level.ttl_ms)})"
        found.append(Waiting(where, 1, level.parked, size(passed), level.arrivals_per_s))
    exhausted = flows.outage.exhausted if flows.outage else 0.0
    return (*found, Waiting("Exhausted", 1, exhausted, size(len(flows.tiers) + 1), flows.exhausted_per_s))


def _memory(load: Workload, waiting: Sequence[Waiting], counts: Counts) -> tuple[Item, ...]:
    """Return the parts of a node's memory. Bindings and exchanges are on every node."""
    costs, queue = load.costs, f"{load.queue_type}_queue"
    return (
        Item("the node itself", costs["node"], ("node",)),
        *_messages_in_memory(load, waiting, costs),
        Item("queues", load.share * counts.queues * costs[queue], (queue,)),
        Item("bindings", counts.bindings * costs["binding"], ("binding",)),
        Item("exchanges", counts.exchanges * costs["exchange"], ("exchange",)),
    )


def _messages_in_memory(load: Workload, waiting: Sequence[Waiting], costs: Mapping[str, float]) -> list[Item]:
    """Return the memory of a node's messages.

    Of quorum queues: the index of all messages, and a full write-ahead log, where small messages need more than on
    disk. Of classic queues: all messages in RabbitMQ 3.10; later the buffers, and the index of large messages.
    """
    if load.quorum:
        index_bytes = load.share * sum(each.count for each in waiting) * costs["quorum_message"]
        size_bytes = load.size_after_bytes(1)
        logged_bytes = costs["wal"] / (size_bytes + costs["quorum_disk"]) * (size_bytes + costs["wal_message"])
        return [
            Item("index of parked messages", index_bytes, ("quorum_message",)),
            Item("messages in the write-ahead log", logged_bytes, ("wal", "quorum_disk", "wal_message")),
        ]
    if kept_bytes := costs["classic_kept"]:
        all_bytes = sum(each.count * (each.size_bytes + kept_bytes) for each in waiting)
        return [Item("parked messages", load.share * all_bytes, ("classic_kept",))]
    buffers_bytes = sum(min(each.queues * costs["classic_buffer"], each.count * each.size_bytes) for each in waiting)
    large = sum(each.count for each in waiting if each.size_bytes > costs["classic_embedded"])
    index_bytes = load.share * large * costs["classic_stored"]
    return [
        Item("buffers of queues with messages", load.share * buffers_bytes, ("classic_buffer",)),
        Item("index of the shared store", index_bytes, ("classic_embedded", "classic_stored")),
    ]


def _disk(load: Workload, waiting: Sequence[Waiting], counts: Counts) -> tuple[Item, ...]:
    """Return the parts of a node's disk."""
    costs, over, queue = load.costs, f"{load.queue_type}_disk", f"{load.queue_type}_queue_disk"
    stored_bytes = sum(each.count * (each.size_bytes + costs[over]) for each in waiting)
    return (
        Item("parked messages", load.share * stored_bytes, ("death", "death_more", over)),
        *([Item("write-ahead log", costs["wal"], ("wal",))] if load.quorum else []),
        Item("queues", load.share * counts.queues * costs[queue], (queue,)),
        Item("bindings", counts.bindings * costs["binding_disk"], ("binding_disk",)),
    )
