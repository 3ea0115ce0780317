"""Options that several commands have."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import click

from ..durations import parse_ms
from .estimate.options import Options as Estimate

_Function = Callable[..., Any]
_DEFAULT = Estimate()


def _pairs(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    for value in values:
        if "=" not in value:
            raise click.BadParameter(f"found {value!r}. Write NAME=VALUE, such as spark.driver.memory=8g.")
    return {name.strip(): found.strip() for name, _, found in (value.partition("=") for value in values)}


def _ladders(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> dict[str, list[tuple[int, ...]]]:
    ladders: dict[str, list[tuple[int, ...]]] = {}
    for value in values:
        queue, found, delays = (part.strip() for part in value.partition("="))
        if not (queue and found and delays):
            raise click.BadParameter(f"found {value!r}. Write QUEUE=DELAYS, such as payments=30s,5m,1h.")
        ladder = tuple(parse_ms(each, f"--ladder {queue}") for each in delays.split(","))
        ladders.setdefault(queue, []).append(ladder)
    return ladders


def _seconds(ctx: click.Context, param: click.Parameter, value: str | None) -> float | None:
    return None if value is None else parse_ms(value, f"--{param.name}") / 1000


ladder_option = click.option(
    "--ladder", "ladders", multiple=True, callback=_ladders, metavar="QUEUE=DELAYS",
    help="Also estimate the results of this ladder, such as payments=30s,5m,1h; may be repeated.",
)  # fmt: skip

_ESTIMATE = (
    click.option("--min-recovery", type=float, metavar="SHARE", help="Least share that an advised ladder recovers."),
    click.option(
        "--max-median", "max_median_s", callback=_seconds, metavar="DELAY",
        help="Longest median time to recovery of an advised ladder.",
    ),
    click.option(
        "--max-p95", "max_p95_s", callback=_seconds, metavar="DELAY",
        help="Longest 95th percentile of the time to recovery of an advised ladder.",
    ),
    click.option(
        "--delay-weight", default=_DEFAULT.delay_weight, show_default=True, metavar="RETRIES",
        help="How many retries per failure cost as much as today's mean time to recovery.",
    ),
    click.option(
        "--max-tiers", default=_DEFAULT.max_tiers, show_default=True, help="Most tiers of an advised ladder."
    ),
    click.option(
        "--min-episodes", default=_DEFAULT.min_episodes, show_default=True, help="Fewest failure episodes for advice."
    ),
    click.option(
        "--bootstrap-rounds", default=_DEFAULT.bootstrap_rounds, show_default=True,
        help="Resampled histories for the intervals; 0: no intervals.",
    ),
    click.option("--seed", default=_DEFAULT.seed, show_default=True, help="The same seed produces the same intervals."),
)  # fmt: skip
_ESTIMATED = (
    "min_recovery",
    "max_median_s",
    "max_p95_s",
    "delay_weight",
    "max_tiers",
    "min_episodes",
    "bootstrap_rounds",
    "seed",
)

_ON_SPARK = (
    click.option("--master", metavar="URL", help="The cluster, such as spark://host:7077; default: this machine."),
    click.option(
        "--conf", multiple=True, callback=_pairs, metavar="NAME=VALUE", help="A Spark setting; may be repeated."
    ),
    click.option("--json", "as_json", is_flag=True, help="Print JSON."),
)


def estimate_options(function: _Function) -> _Function:
    """Add the options of the estimate and the advice; the function receives them as ``estimate``."""

    @wraps(function)
    def with_estimate(*args: Any, **given: Any) -> Any:
        return function(*args, estimate=Estimate(**{name: given.pop(name) for name in _ESTIMATED}), **given)

    return _with(with_estimate, _ESTIMATE)


def on_spark(function: _Function) -> _Function:
    """Add the options of the Spark session, and ``--json``."""
    return _with(function, _ON_SPARK)


def _with(function: _Function, options: tuple[Callable[[_Function], _Function], ...]) -> _Function:
    for option in reversed(options):
        function = option(function)
    return function
