"""Output of ``rmq-delay capacity``: plain data for JSON, and the text that is made from the same data."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from typing import Any

from ..durations import format_ms
from ..operations.capacity import CONSTANTS, MEASURED_BY, Estimate, Workload
from ..tables import table

_BINARY = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def format_size(size: float) -> str:
    """Return bytes with three digits and a binary unit: ``1.95 MiB``."""
    power = min(int(math.log(size, 1024)), len(_BINARY) - 1) if size >= 1 else 0
    return f"{format_number(size / 1024**power)} {_BINARY[power]}"


def format_number(value: float) -> str:
    """Return a number with three digits, or all of them before the point: ``0.0123``, ``1.5``, ``12,345``."""
    if value == 0 or abs(value) >= 99.95:
        return f"{value:,.0f}"
    digits = 2 - math.floor(math.log10(abs(value)))
    if digits > 6:
        return f"{value:.1e}"
    text = f"{value:.{max(digits, 0)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


#: The tables of the text, by the key of their rows in the data. Of each column: its heading, its key in a row, and how
#: a value is written.
_Column = tuple[str, str, Callable[[Any], str]]
_TABLES: dict[str, tuple[_Column, ...]] = {
    "tiers": (
        ("TIER", "tier_index", str),
        ("DELAY", "delay_ms", format_ms),
        ("ARRIVE/S", "arrivals", format_number),
        ("PARKED", "parked", format_number),
        ("AFTER {outage} OUTAGE", "parked_outage", format_number),
    ),
    "levels": (
        ("LEVEL", "level", str),
        ("WAIT", "ttl_ms", format_ms),
        ("ARRIVE/S", "arrivals", format_number),
        ("DELAYED", "parked", format_number),
    ),
    "objects": (
        ("OBJECTS OF", "what", str),
        ("QUEUES", "queues", str),
        ("EXCHANGES", "exchanges", str),
        ("BINDINGS", "bindings", str),
    ),
    "memory": (("MEMORY OF A NODE", "what", str), ("SIZE", "size", format_size), ("MADE OF", "constants", ", ".join)),
    "disk": (("DISK OF A NODE", "what", str), ("SIZE", "size", format_size), ("MADE OF", "constants", ", ".join)),
    "constants": (("CONSTANT", "name", str), ("VALUE", "value", str), ("WHAT", "what", str), ("SOURCE", "source", str)),
}
#: The keys of columns that are left-aligned.
_LEFT = {"constants", "delay_ms", "name", "source", "ttl_ms", "what"}


def estimate_json(found: Estimate) -> dict[str, Any]:
    """Return the estimate as plain data: sizes in bytes, rates per second, times in ms."""
    data = _plain(asdict(found))
    del data["waiting"]
    del data["workload"]["ladder"]["queue_type"]  # the workload has the one that applies
    return {
        "workload": data.pop("workload"),
        **data.pop("flow"),
        **data,
        "warnings": list(_warnings(found)),
        "measured_by": MEASURED_BY,
        "constants": [
            {"name": each.name, "value": each.of(found.workload.version), "unit": each.unit, "what": each.what}
            | {"source": each.source}
            for each in CONSTANTS
        ],
    }


def _plain(value: Any) -> Any:
    """Return nested data whose keys have no unit of a size or a rate."""
    if isinstance(value, dict):
        return {key.removesuffix("_per_s").removesuffix("_bytes"): _plain(each) for key, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, (list, tuple)) else value


def _warnings(found: Estimate) -> Iterator[str]:
    """Return a warning for each problem of a load."""
    load, costs, has = found.workload, found.workload.costs, found.workload.node_memory_bytes
    if has is not None and has < found.memory_needed_bytes:
        yield (
            f"Memory: a node would use {format_size(found.node_memory_bytes)}, and needs "
            f"{format_size(found.memory_needed_bytes)} of RAM; it has {format_size(has)}. "
            "At the high watermark it stops all publishers."
        )
    for each in found.waiting:
        if load.quorum and each.count / each.queues > costs["quorum_backlog"]:
            yield (
                f"{each.where}: {format_number(each.count / each.queues)} messages in one quorum queue; RabbitMQ "
                f"advises against more than {format_number(costs['quorum_backlog'])}. Use more origin queues, or "
                "jitter, whose lanes are separate queues, or classic queues."
            )
    lasts, outage = sum(load.ladder.tiers_ms), found.flow.outage
    if outage and lasts < outage.ms and not load.ladder.repeat_last:
        yield (
            f"Outage: the ladder lasts {format_ms(lasts)}, and the outage {format_ms(outage.ms)}: "
            f"{format_number(outage.exhausted)} tasks would be exhausted. Add tiers."
        )
    if (queues := found.objects["all"].queues) > costs["many_queues"]:
        yield (
            f"{queues:,} queues: declaring them takes minutes. Let tasks share origin queues, use fewer tiers or "
            "lanes, or several clusters."
        )
    if load.quorum and load.replicas % 2 == 0:
        yield f"{load.replicas} replicas tolerate no more lost nodes than {load.replicas - 1}: use an odd number."


def estimate_text(load: Workload, data: Mapping[str, Any], *, verbose: bool = False) -> str:
    """Return the data of `estimate_json` as tables; ``verbose`` adds every constant with its source."""
    outage, levels = data["outage"] or {}, data["levels"]
    all_tiers = {"tier_index": "all", "arrivals": data["retries"], "parked": data["parked"]}
    all_levels = {"level": "all", "ttl_ms": sum(each["ttl_ms"] for each in levels), "parked": data["delayed"]}
    objects = [{"what": what, **counts} for what, counts in data["objects"].items()]
    parts = [
        _load(load),
        _table("tiers", [*data["tiers"], {**all_tiers, "parked_outage": outage.get("parked")}], outage.get("ms")),
        *([_table("levels", [*levels, all_levels])] if levels else []),
        "\n".join(_rates(data)),
        _table("objects", objects),
        _table("memory", [*data["memory"], {"what": "all", "size": data["node_memory"]}]),
        f"a node needs at least {format_size(data['memory_needed'])} of RAM to stay below its high watermark",
        _table("disk", [*data["disk"], {"what": "all", "size": data["node_disk"]}]),
        *(f"warning: {each}" for each in data["warnings"]),
    ]
    if verbose:
        values = (f"{format_number(each['value'])} {each['unit']}".rstrip() for each in data["constants"])
        constants = [each | {"value": value} for each, value in zip(data["constants"], values, strict=True)]
        parts += [_table("constants", constants), f"measured: {MEASURED_BY.replace('VERSION', load.version)}"]
    return "\n\n".join(parts)


def _table(key: str, rows: Iterable[Mapping[str, Any]], outage_ms: int | None = None) -> str:
    columns = [column for column in _TABLES[key] if outage_ms or column[1] != "parked_outage"]
    headings = [heading.format(outage=format_ms(outage_ms or 0)) for heading, _, _ in columns]
    cells = [[write(row[key]) if key in row else "" for _, key, write in columns] for row in rows]
    right = {heading for heading, (_, key, _) in zip(headings, columns, strict=True) if key not in _LEFT}
    return table(headings, cells, right)


def _load(load: Workload) -> str:
    shares = ", ".join(f"{format_number(100 * share)} %" for share in load.failures)
    return (
        f"{format_number(load.rate_per_s)} tasks/s of {format_size(load.size_bytes)}, {shares} of the attempts fail, "
        f"{_many(load.queues, 'origin queue')}, {load.queue_type}, {_many(load.copies, 'copy', 'copies')} on "
        f"{_many(load.cluster, 'node')} of RabbitMQ {load.version}"
    )


def _many(count: int, word: str, words: str | None = None) -> str:
    return f"{count} {word if count == 1 else words or word + 's'}"


def _rates(data: Mapping[str, Any]) -> Iterator[str]:
    yield f"attempts: {format_number(data['attempts'])}/s, of which {format_number(data['retries'])}/s are retries"
    yield f"exhausted: {format_number(data['exhausted'])}/s, {format_number(data['exhausted_per_day'])} a day"
    yield (
        f"the broker takes in {format_number(data['moved'])} messages/s, dead letters included: "
        f"{format_size(data['written'])}/s to disk over all nodes"
    )
    if outage := data["outage"]:
        factor = outage["peak_factor"]
        usual = "" if factor is None else f" ({format_number(factor)} times the usual)"
        yield (
            f"an outage of {format_ms(outage['ms'])}: {format_number(outage['parked'])} parked at its end{usual}, "
            f"{format_number(outage['attempts'])} attempts/s by then, {format_number(outage['exhausted'])} exhausted "
            "during it"
        )
