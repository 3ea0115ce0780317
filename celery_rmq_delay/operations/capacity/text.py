"""Output of ``rmq-delay capacity``: tables as text, plain data for JSON."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import Any

from ...durations import format_ms
from ...tables import table
from .costs import CONSTANTS, MEASURED_BY, Constant
from .estimate import Estimate
from .flow import TierFlow
from .quantities import format_number, format_size
from .resources import Item


def estimate_text(found: Estimate, *, verbose: bool = False) -> str:
    """Return the estimate as tables; ``verbose`` adds every constant with its source."""
    parts = [_load(found), _tiers(found), *([_levels(found)] if found.levels else []), _rates(found), _broker(found)]
    parts += [_items("MEMORY OF A NODE", found.memory), _needed(found), _items("DISK OF A NODE", found.disk)]
    parts += [f"warning: {each}" for each in found.warnings]
    if verbose:
        parts += [_constants(found)]
    return "\n\n".join(parts)


def _load(found: Estimate) -> str:
    load = found.workload
    shares = ", ".join(f"{format_number(100 * share)} %" for share in load.failures)
    return (
        f"{format_number(load.rate)} tasks/s of {format_size(load.size)}, {shares} of the attempts fail, "
        f"{_many(load.queues, 'origin queue')}, {load.queue_type}, {_many(load.copies, 'copy', 'copies')} on "
        f"{_many(load.cluster, 'node')} of RabbitMQ {load.version}"
    )


def _tiers(found: Estimate) -> str:
    outage = found.flow.outage_ms
    headings = ["TIER", "DELAY", "ARRIVE/S", "PARKED"]
    rows = [
        [
            tier.tier_index,
            format_ms(tier.delay_ms),
            format_number(tier.arrivals),
            *_parked(tier),
        ]
        for tier in found.flow.tiers
    ]
    total: list[object] = ["all", "", format_number(found.flow.retries), format_number(found.flow.parked)]
    if outage:
        headings.append(f"AFTER {format_ms(outage)} OUTAGE")
        total.append(format_number(found.flow.parked_outage))
    right = {"TIER", "ARRIVE/S", "PARKED", headings[-1]}
    return table(headings, [*rows, total], right=right)


def _parked(tier: TierFlow) -> Iterator[str]:
    yield format_number(tier.parked)
    if tier.parked_outage is not None:
        yield format_number(tier.parked_outage)


def _rates(found: Estimate) -> str:
    flows = found.flow
    lines = [
        f"attempts: {format_number(flows.attempts)}/s, of which {format_number(flows.retries)}/s are retries",
        f"exhausted: {format_number(flows.exhausted)}/s, {format_number(found.exhausted_per_day)} a day",
        f"the broker takes in {format_number(found.moved)} messages/s, dead letters included: "
        f"{format_size(found.written)}/s to disk over all nodes",
    ]
    if flows.outage_ms:
        factor = flows.peak_factor
        usual = "" if factor is None else f" ({format_number(factor)} times the usual)"
        lines.append(
            f"an outage of {format_ms(flows.outage_ms)}: "
            f"{format_number(flows.parked_outage)} parked at its end{usual}, "
            f"{format_number(flows.attempts_in_outage)} attempts/s by then, "
            f"{format_number(flows.exhausted_in_outage)} exhausted during it"
        )
    return "\n".join(lines)


def _broker(found: Estimate) -> str:
    rows = (("ladders", found.ladder_counts), ("levels", found.levels_counts), ("all", found.counts))
    cells = [(what, counts.queues, counts.exchanges, counts.bindings) for what, counts in rows]
    return table(("OBJECTS OF", "QUEUES", "EXCHANGES", "BINDINGS"), cells)


def _levels(found: Estimate) -> str:
    rows = [
        (level.level, format_ms(level.ttl_ms), format_number(level.arrivals), format_number(level.parked))
        for level in found.levels
    ]
    total = ("all", format_ms(sum(level.ttl_ms for level in found.levels)), "", format_number(found.delayed))
    headings = ("LEVEL", "WAIT", "ARRIVE/S", "DELAYED")
    return table(headings, [*rows, total], right={"LEVEL", "ARRIVE/S", "DELAYED"})


def _items(title: str, items: Iterable[Item]) -> str:
    items = list(items)
    rows = [(item.what, format_size(item.size), ", ".join(item.constants)) for item in items]
    total = ("all", format_size(sum(item.size for item in items)), "")
    return table((title, "SIZE", "MADE OF"), [*rows, total], right={"SIZE"})


def _needed(found: Estimate) -> str:
    return f"a node needs at least {format_size(found.memory_needed)} of RAM to stay below its high watermark"


def _constants(found: Estimate) -> str:
    version = found.workload.version
    rows = [(each.name, _value(each, version), each.what, each.source) for each in CONSTANTS]
    legend = f"measured: {MEASURED_BY.replace('VERSION', version)}"
    return f"{table(('CONSTANT', 'VALUE', 'WHAT', 'SOURCE'), rows, right={'VALUE'})}\n\n{legend}"


def _value(constant: Constant, version: str) -> str:
    value = constant.of(version)
    return f"{format_number(value)} {constant.unit}".rstrip()


def _many(count: int, word: str, words: str | None = None) -> str:
    return f"{count} {word if count == 1 else words or word + 's'}"


def estimate_json(found: Estimate) -> dict[str, Any]:
    """Return the estimate as plain data: sizes in bytes, rates per second, times in ms."""
    flows = found.flow
    ladder = found.workload.ladder.to_json()
    del ladder["queue_type"]  # the workload's counts
    return {
        "workload": {**asdict(found.workload), "ladder": ladder},
        "tiers": [asdict(tier) for tier in flows.tiers],
        "parked": flows.parked,
        "attempts": flows.attempts,
        "retries": flows.retries,
        "exhausted": flows.exhausted,
        "exhausted_per_day": found.exhausted_per_day,
        "outage": {
            "ms": flows.outage_ms,
            "parked": flows.parked_outage,
            "peak_factor": flows.peak_factor,
            "attempts": flows.attempts_in_outage,
            "exhausted": flows.exhausted_in_outage,
        }
        if flows.outage_ms
        else None,
        "levels": [asdict(level) for level in found.levels],
        "delayed": found.delayed,
        "objects": {
            "ladders": asdict(found.ladder_counts),
            "levels": asdict(found.levels_counts),
            "all": asdict(found.counts),
        },
        "moved": found.moved,
        "written": found.written,
        "memory": [asdict(item) for item in found.memory],
        "node_memory": found.node_memory,
        "memory_needed": found.memory_needed,
        "disk": [asdict(item) for item in found.disk],
        "node_disk": found.node_disk,
        "warnings": list(found.warnings),
        "measured_by": MEASURED_BY,
        "constants": [
            {"name": each.name, "value": each.of(found.workload.version), "unit": each.unit, "what": each.what}
            | {"source": each.source}
            for each in CONSTANTS
        ],
    }
