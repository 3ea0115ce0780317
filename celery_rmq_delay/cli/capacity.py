"""``rmq-delay capacity``: estimate parked tasks and RabbitMQ's resources for a load. Needs no broker."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, replace
from typing import Any

import click
from celery import Celery

from ..app.state import find_state, state_of
from ..durations import format_ms, parse_ms
from ..exceptions import SettingsError
from ..ladders import Ladder, QueueType
from ..operations.capacity import CONSTANTS, MEASURED_BY, VERSIONS, Estimate, Workload, estimate
from ..settings.parser import parse_settings
from ..settings.values import ExactSettings
from ..tables import table
from .base import Output, command_of, verbose_option

_COUNT = click.IntRange(1)
_NUMBER = r"([0-9]*\.?[0-9]+(?:[eE][+-]?[0-9]+)?)"
_RATE = re.compile(rf"{_NUMBER}\s*(?:/\s*(s|m|h|d))?")
_SHARE = re.compile(rf"{_NUMBER}\s*(%?)")
_SIZE = re.compile(rf"{_NUMBER}\s*([kKMGT]i?)?B?")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_POWERS = {"k": 1, "K": 1, "M": 2, "G": 3, "T": 4}


@command_of(
    click.option("--rate", required=True, help="Rate of first attempts over all origin queues: 5000/s, 300/m, 1e6/d."),
    click.option(
        "--failure-rate",
        required=True,
        help="Share of attempts that fail: 0.02 or 2%; or one share per attempt: 0.02,0.5.",
    ),
    click.option("--size", default="1KiB", show_default=True, help="Size of a message with headers: 500B, 2KiB, 1MB."),
    click.option("--queue", help="Origin queue whose ladder and type to use; default: the default queue."),
    click.option("--tiers", help="Use this ladder: 10s,1m,10m."),
    click.option("--jitter", type=click.FloatRange(0, 1, max_open=True), help="Use this jitter: a share of the delay."),
    click.option("--lanes", type=click.IntRange(2, 64), help="Use this number of jitter lanes."),
    click.option("--repeat-last", is_flag=True, help="Repeat the last tier without a limit."),
    click.option("--queue-type", type=click.Choice(["classic", "quorum"]), help="Use this queue type."),
    click.option("--replicas", type=_COUNT, default=3, show_default=True, help="Replicas of quorum queues."),
    click.option("--nodes", type=_COUNT, help="Nodes of the cluster; by default one per replica."),
    click.option("--queues", type=_COUNT, default=1, show_default=True, help="Origin queues that share the load."),
    click.option("--outage", help="Duration in which every attempt fails: 30m."),
    click.option("--countdown-rate", default="0/s", help="Part of --rate with a countdown or an eta: 100/s."),
    click.option("--countdown", help="Mean delay of tasks with a countdown or an eta: 1h."),
    click.option("--rabbitmq", type=click.Choice(VERSIONS), default=VERSIONS[-1], show_default=True),
    click.option("--node-memory", help="RAM of a node: 8GiB. Warns if it is too little."),
    verbose_option(help="Also show the constants that the estimate is made of, with their sources."),
)
def capacity(ctx: click.Context, *, verbose: bool, **given: Any) -> Output:
    """Estimate how many tasks a load parks and what RabbitMQ needs for them. Connects to no broker.

    Exit code 1 when there are warnings.
    """
    try:
        found = estimate(_workload(ctx.obj.app, given))
    except SettingsError as error:  # of the options: those of the app are checked by `install`
        raise click.UsageError(str(error), ctx) from error
    data = estimate_json(found)
    return Output(data, estimate_text(found.workload, data, verbose=verbose), int(bool(data["warnings"])))


def _workload(app: Celery, given: dict[str, Any]) -> Workload:
    """Return the load that the options describe. Raises `SettingsError`."""
    ladder, queue_type = _waits_in(app, given)
    delay = find_state(app)
    exact = delay.settings.exact if delay else ExactSettings()
    return Workload(
        rate_per_s=parse_rate(given["rate"], "--rate"),
        failures=parse_shares(given["failure_rate"], "--failure-rate"),
        size_bytes=parse_size(given["size"], "--size"),
        ladder=ladder,
        queue_type=queue_type,
        replicas=given["replicas"],
        nodes=given["nodes"],
        queues=given["queues"],
        outage_ms=parse_ms(given["outage"], "--outage") if given["outage"] else 0,
        countdown_rate_per_s=parse_rate(given["countdown_rate"], "--countdown-rate"),
        countdown_ms=parse_ms(given["countdown"], "--countdown") if given["countdown"] else 0,
        levels=exact.levels if "levels" in exact.topologies else 0,
        unit_ms=exact.unit_ms,
        version=given["rabbitmq"],
        node_memory_bytes=parse_size(given["node_memory"], "--node-memory") if given["node_memory"] else None,
    )


def _waits_in(app: Celery, given: dict[str, Any]) -> tuple[Ladder, QueueType]:
    """Return the ladder and queue type of the app, as changed by the options."""
    ladder, queue_type = _of_app(app, given["queue"], own=given["tiers"] is None or given["queue"] is not None)
    changed: dict[str, Any] = {}
    if given["tiers"]:
        changed["tiers"] = [each.strip() for each in given["tiers"].split(",")]
    if given["jitter"] is not None or given["lanes"] is not None:
        changed["jitter"] = ladder.jitter if given["jitter"] is None else given["jitter"]
        changed["lanes"] = given["lanes"] or (ladder.lanes if ladder.jitter else 5)
        if not changed["jitter"]:
            raise SettingsError("--lanes", given["lanes"], "Lanes need jitter: add --jitter.")
    if changed:
        tiers = {"tiers": [tier / 1000 for tier in ladder.tiers_ms], "jitter": ladder.jitter}
        kept = {**tiers, "lanes": max(2, ladder.lanes), "repeat_last": ladder.repeat_last}
        ladder = parse_settings({**kept, **changed}, "option").default.ladder
    if given["repeat_last"]:
        ladder = replace(ladder, repeat_last=True)
    return ladder, given["queue_type"] or queue_type


def _of_app(app: Celery, name: str | None, *, own: bool) -> tuple[Ladder, QueueType]:
    if not own and find_state(app) is None:
        return parse_settings({}).default.ladder, "classic"
    delay = state_of(app)
    queue = name or app.conf.task_default_queue
    settings = delay.settings.for_queue(queue)
    if settings is None:
        if name:
            raise SettingsError("--queue", name, "The settings exclude this queue: it has no ladder.")
        settings = delay.settings.default
    return settings.ladder, delay.queue_type(queue)


def parse_rate(text: str, option: str) -> float:
    """Return messages a second from ``5000/s``, ``300/m``, ``10/h``, ``1e6/d``, or a number of messages a second."""
    found = _RATE.fullmatch(text.strip())
    if found is None:
        raise SettingsError(option, text, 'Write a rate such as "5000/s", "300/m" or "1e6/d".')
    return _finite(float(found.group(1)) / _SECONDS[found.group(2) or "s"], text, option)


def parse_shares(text: str, option: str) -> tuple[float, ...]:
    """Return shares from 0 to 1 from ``0.02``, ``2%``, or one for each attempt: ``0.02,0.5``."""
    shares = []
    for part in text.split(","):
        found = _SHARE.fullmatch(part.strip())
        share = float(found.group(1)) / (100 if found.group(2) else 1) if found else -1
        if not 0 <= share <= 1:
            hint = 'Write a share from 0 to 1 such as "0.02" or "2%", or one for each attempt: "0.02,0.5".'
            raise SettingsError(option, text, hint)
        shares.append(share)
    return tuple(shares)


def parse_size(text: str, option: str) -> int:
    """Return bytes from ``2KiB`` (of 1024), ``1MB`` (of 1000), ``500B`` or a number of bytes."""
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise SettingsError(option, text, 'Write a size such as "500B", "2KiB", "1MB" or "8GiB".')
    unit = found.group(2) or ""
    base = 1024 if unit.endswith("i") else 1000
    return round(_finite(float(found.group(1)) * base ** _POWERS.get(unit[:1], 0), text, option))


def _finite(value: float, text: str, option: str) -> float:
    if not math.isfinite(value):
        raise SettingsError(option, text, "This is too much for a number.")
    return value


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
