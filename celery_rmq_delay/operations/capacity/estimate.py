"""Estimate of a load: parked messages, broker objects, messages moved, memory and disk of a node, and warnings."""

from __future__ import annotations

from dataclasses import dataclass

from ...durations import format_ms
from .advice import warnings
from .flow import Flow, LevelFlow, flow, level_flow
from .objects import Counts, ladder_counts, levels_counts
from .resources import Item, Waiting, disk, memory, memory_needed, size_after
from .workload import Workload

_DAY = 86_400


@dataclass(frozen=True)
class Estimate:
    """What a workload needs. ``memory`` and ``disk`` are those of one node when most messages are parked.

    ``moved``: messages that the broker takes into queues per second. ``written``: their bytes, in all copies.
    """

    workload: Workload
    flow: Flow
    levels: tuple[LevelFlow, ...]
    ladder_counts: Counts
    levels_counts: Counts
    moved: float
    written: float
    memory: tuple[Item, ...]
    disk: tuple[Item, ...]
    warnings: tuple[str, ...]

    @property
    def counts(self) -> Counts:
        """Objects of ladders and levels."""
        return self.ladder_counts + self.levels_counts

    @property
    def delayed(self) -> float:
        """Messages that wait for their countdown."""
        return sum(level.parked for level in self.levels)

    @property
    def node_memory(self) -> float:
        """Memory in use on a node, in bytes."""
        return sum(item.size for item in self.memory)

    @property
    def node_disk(self) -> float:
        """Disk in use on a node, in bytes."""
        return sum(item.size for item in self.disk)

    @property
    def memory_needed(self) -> float:
        """RAM of a node, in bytes, with which it stays below its high watermark."""
        return memory_needed(self.workload, self.node_memory)

    @property
    def exhausted_per_day(self) -> float:
        """Messages per day that reach the exhausted queue, where an operator has to act."""
        return self.flow.exhausted * _DAY


def estimate(load: Workload) -> Estimate:
    """Return what a workload needs. Raises `SettingsError` if it is inconsistent or would grow without a limit."""
    load.check()
    flows = flow(load.rate, load.failures, load.ladder, load.outage_ms)
    levels = level_flow(load.countdown_rate, load.countdown_ms, load.unit_ms, load.levels)
    ladders = ladder_counts(load.ladder, load.queue_type, load.queues, reason_routing=load.version != "3.10")
    shared = levels_counts(load.levels, load.unit_ms, load.queue_type, load.queues)
    counts = ladders + shared
    waiting = _waiting(load, flows, levels)
    used = memory(load, waiting, counts)
    moved, written = _moved(load, flows, levels)
    return Estimate(
        workload=load,
        flow=flows,
        levels=levels,
        ladder_counts=ladders,
        levels_counts=shared,
        moved=moved,
        written=written * load.copies,
        memory=used,
        disk=disk(load, waiting, counts),
        warnings=tuple(warnings(load, flows, waiting, counts, sum(item.size for item in used))),
    )


def _waiting(load: Workload, flows: Flow, levels: tuple[LevelFlow, ...]) -> list[Waiting]:
    """Return the messages that wait at the peak; in the exhausted queue those of the outage."""
    found = [
        Waiting(
            f"Tier {tier.tier_index} ({format_ms(tier.delay_ms)})",
            load.queues * load.ladder.lanes,
            tier.parked if tier.parked_outage is None else tier.parked_outage,
            size_after(load, tier.tier_index),
        )
        for tier in flows.tiers
    ]
    found += [
        Waiting(f"Level {level.level} ({format_ms(level.ttl_ms)})", 1, level.parked, size_after(load, passed))
        for passed, level in enumerate(levels)
    ]
    return [*found, Waiting("Exhausted", 1, flows.exhausted_in_outage, size_after(load, len(flows.tiers) + 1))]


def _moved(load: Workload, flows: Flow, levels: tuple[LevelFlow, ...]) -> tuple[float, float]:
    """Return messages and bytes per second: into origin queue and levels, for each retry into a tier and back."""
    hops = [(load.rate, load.size), (flows.exhausted, size_after(load, len(flows.tiers) + 1))]
    hops += [(2 * tier.arrivals, size_after(load, tier.tier_index)) for tier in flows.tiers]
    hops += [(level.arrivals, size_after(load, passed)) for passed, level in enumerate(levels)]
    return sum(rate for rate, _ in hops), sum(rate * size for rate, size in hops)
