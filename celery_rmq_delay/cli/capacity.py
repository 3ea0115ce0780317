"""``rmq-delay capacity``: estimate parked tasks and RabbitMQ's resources for a load. Needs no broker."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from ..app.state import find_state, state_of
from ..durations import parse_ms
from ..exceptions import SettingsError
from ..ladders import Ladder, QueueType
from ..operations.capacity import VERSIONS, Workload, estimate
from ..settings.parser import parse_settings
from ..settings.values import ExactSettings
from .base import Command, as_json, options, show, verbose_option
from .capacity_output import estimate_json, estimate_text

if TYPE_CHECKING:
    from celery import Celery

_COUNT = click.IntRange(1)
_NUMBER = r"([0-9]*\.?[0-9]+(?:[eE][+-]?[0-9]+)?)"
_RATE = re.compile(rf"{_NUMBER}\s*(?:/\s*(s|m|h|d))?")
_SHARE = re.compile(rf"{_NUMBER}\s*(%?)")
_SIZE = re.compile(rf"{_NUMBER}\s*([kKMGT]i?)?B?")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_POWERS = {"k": 1, "K": 1, "M": 2, "G": 3, "T": 4}


@click.command(cls=Command)
@options(
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
    as_json,
)
def capacity(ctx: click.Context, *, verbose: bool, as_json: bool, **given: Any) -> None:
    """Estimate how many tasks a load parks and what RabbitMQ needs for them. Connects to no broker.

    Exit code 1 when there are warnings.
    """
    try:
        found = estimate(_workload(ctx.obj.app, given))
    except SettingsError as error:  # of the options: those of the app are checked by `install`
        raise click.UsageError(str(error), ctx) from error
    data = estimate_json(found)
    show(data, estimate_text(found.workload, data, verbose=verbose), as_json=as_json)
    ctx.exit(1 if data["warnings"] else 0)


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
