"""Warnings about a load."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...durations import format_ms
from . import costs
from .flow import Flow
from .objects import Counts
from .quantities import format_number, format_size
from .resources import Waiting, memory_needed
from .workload import Workload


def warnings(load: Workload, flow: Flow, waiting: Sequence[Waiting], counts: Counts, used: float) -> Iterator[str]:
    """Return a warning for each problem of a load. ``used``: bytes of a node's memory."""
    needed = memory_needed(load, used)
    if load.node_memory is not None and load.node_memory < needed:
        yield (
            f"Memory: a node would use {format_size(used)}, and needs {format_size(needed)} of RAM; it has "
            f"{format_size(load.node_memory)}. At the high watermark it stops all publishers."
        )
    yield from _backlogs(load, waiting)
    lasts = sum(load.ladder.tiers_ms)
    if not load.ladder.repeat_last and lasts < load.outage_ms:
        yield (
            f"Outage: the ladder lasts {format_ms(lasts)}, and the outage {format_ms(load.outage_ms)}: "
            f"{format_number(flow.exhausted_in_outage)} tasks would be exhausted. Add tiers."
        )
    if counts.queues > costs.MANY_QUEUES.of(load.version):
        yield (
            f"{counts.queues:,} queues: declaring them takes minutes. Let tasks share origin queues, use fewer tiers "
            "or lanes, or several clusters."
        )
    if load.quorum and load.replicas % 2 == 0:
        yield f"{load.replicas} replicas tolerate no more lost nodes than {load.replicas - 1}: use an odd number."


def _backlogs(load: Workload, waiting: Sequence[Waiting]) -> Iterator[str]:
    most = costs.QUORUM_BACKLOG.of(load.version)
    for each in waiting:
        backlog = each.count / each.queues
        if load.quorum and backlog > most:
            yield (
                f"{each.where}: {format_number(backlog)} messages in one quorum queue; RabbitMQ advises against more "
                f"than {format_number(most)}. Use more origin queues, or jitter, whose lanes are separate queues, "
                "or classic queues."
            )
