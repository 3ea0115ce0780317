"""``rmq-delay parked``: list parked tasks."""

from __future__ import annotations

import click

from ..durations import parse_ms
from ..operations.parked import EXACT, list_parked
from . import text
from .base import Command, as_json, connected, limit_option, management_option, only, options, show


@click.group()
def parked() -> None:
    """List parked tasks; `release` runs them now."""


@parked.command("list", cls=Command)
@options(
    only,
    click.option("--task", help="Only this task, by name."),
    click.option("--tier", help="Only tasks in the tier with this delay, such as 10m; exact: those with exact delays."),
    limit_option,
    click.option("--scan-limit", type=click.IntRange(1), help="Parked messages to inspect per delay queue."),
    management_option,
    as_json,
)
def parked_list(
    ctx: click.Context, only: tuple[str, ...], task: str | None, tier: str | None, limit: int | None,
    scan_limit: int | None, management_url: str | None, as_json: bool,
) -> None:  # fmt: skip
    """List parked tasks with their due times, by queue and tier, then exact delays (100 by default, see --limit).

    RabbitMQ 4.1 and later count inspected messages as delivered before, so they run one at a time when they are due;
    there at most 1000 messages of each delay queue are inspected unless you set --scan-limit.
    """
    wanted = None if tier is None else EXACT if tier == EXACT else parse_ms(tier, "--tier")
    with connected(ctx.obj.app) as (delay, connection):
        found = list_parked(
            connection, delay, only, task=task, tier=wanted,
            limit=limit or 100, scan_limit=scan_limit, management_url=management_url,
        )  # fmt: skip
    show(found.to_json(), text.parked_text(found), as_json=as_json)
