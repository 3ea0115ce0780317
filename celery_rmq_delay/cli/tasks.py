"""The commands for parked and for exhausted tasks: ``release``, ``parked list`` and ``exhausted ...``."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import click

from ..amqp.scan import SCAN_LIMIT
from ..app.inventory import plans
from ..durations import parse_ms
from ..operations import exhausted as dead
from ..operations import parked as waiting
from . import text
from .base import Output, command_of, connected, limit_option, management_option, only, require_answer, yes_option

_TASK_IDS = click.argument("task_ids", nargs=-1, metavar="[TASK_ID]...")
_PARKED_SCAN = click.option("--scan-limit", type=click.IntRange(1), help="Parked messages to inspect per delay queue.")
_SCAN = click.option(
    "--scan-limit", type=click.IntRange(1), default=SCAN_LIMIT, show_default=True, help="Messages to inspect per queue."
)
_EVERYTHING = click.option("--all", "everything", is_flag=True, help="All exhausted tasks.")
_SELECTING = (
    _TASK_IDS,
    click.option("--task", help="Only this task, by name."),
    click.option("--queue", help="Only this origin queue."),
    click.option("--exception", help="Only this exception, with or without its module."),
    click.option("--reason", help=f"Only this reason: {', '.join(dead.REASONS)}."),
    limit_option,
    _SCAN,
)


@command_of(
    _TASK_IDS,
    click.option("--all", "everything", is_flag=True, help="All parked tasks of --queue."),
    only,
    click.option("--tier", help="Only tasks in the tier with this delay, such as 10m."),
    limit_option,
    _PARKED_SCAN,
)
def release(
    ctx: click.Context, task_ids: tuple[str, ...], everything: bool, only: tuple[str, ...], tier: str | None,
    **limits: int | None,
) -> Output:  # fmt: skip
    """Run parked tasks now. Exit code 1 when a named task is not parked or could not be moved.

    A search for task ids also inspects other messages. RabbitMQ 4.1 and later count these as delivered before, so they
    run one at a time when they are due; there the search ends after 1000 messages unless you set --scan-limit.
    """
    if everything and not (only or task_ids):
        raise click.UsageError("--all needs --queue.")
    delay_ms = None if tier is None else parse_ms(tier, "--tier")
    with connected(ctx.obj.app) as (delay, connection):
        chosen = plans(connection, delay, only)
        found = waiting.release(
            connection, chosen, task_ids=task_ids, everything=everything, delay_ms=delay_ms, **limits
        )
    return Output(found.to_json(), text.released_text(found), int(bool(found.failed or found.not_found)))


@click.group()
def parked() -> None:
    """List parked tasks; `release` runs them now."""


@command_of(
    only,
    click.option("--task", help="Only this task, by name."),
    click.option("--tier", help="Only tasks in the tier with this delay, such as 10m; exact: those with exact delays."),
    limit_option,
    _PARKED_SCAN,
    management_option,
    name="list",
)
def _list(ctx: click.Context, only: tuple[str, ...], tier: str | None, limit: int | None, **given: Any) -> Output:
    """List parked tasks with their due times, by queue and tier, then exact delays (100 by default, see --limit).

    RabbitMQ 4.1 and later count inspected messages as delivered before, so they run one at a time when they are due;
    there at most 1000 messages of each delay queue are inspected unless you set --scan-limit.
    """
    wanted = tier if tier in (None, waiting.EXACT) else parse_ms(tier, "--tier")
    with connected(ctx.obj.app) as (delay, connection):
        found = waiting.list_parked(connection, delay, only, tier=wanted, limit=limit or 100, **given)
    return Output(found.to_json(), text.parked_text(found))


@click.group()
def exhausted() -> None:
    """List, show, requeue or discard exhausted tasks."""


def _selecting(function: Callable[..., Output]) -> Callable[..., Output]:
    """Give a command one `Selection` instead of the options that select exhausted messages."""

    @wraps(function)
    def run(ctx: click.Context, *, task_ids: tuple[str, ...], everything: bool = False, **given: Any) -> Output:
        conditions = {name: given.pop(name) for name in ("task", "queue", "exception", "reason")}
        selection = dead.Selection(task_ids=frozenset(task_ids), everything=everything, **conditions)
        return function(ctx, selection, **given)

    return run


@command_of(*_SELECTING, name="list")
@_selecting
def _list_exhausted(ctx: click.Context, selection: dead.Selection, limit: int | None, scan_limit: int) -> Output:
    """List exhausted tasks, the oldest first (100 by default, see --limit)."""
    with connected(ctx.obj.app) as (delay, connection):
        found = dead.list_exhausted(connection, delay.settings, selection, limit=limit or 100, scan_limit=scan_limit)
    return Output(found.to_json(), text.exhausted_text(found))


@command_of(click.argument("task_id", metavar="TASK_ID"), _SCAN, name="show")
def _show(ctx: click.Context, task_id: str, scan_limit: int) -> Output:
    """Show an exhausted task: headers, traceback and arguments, without secrets.

    Only a JSON body is decoded. Exit code 1 when the task is not found.
    """
    with connected(ctx.obj.app) as (delay, connection):
        found, outcome = dead.show_exhausted(connection, delay.settings, task_id, scan_limit=scan_limit)
    if not found:
        raise click.ClickException(f"{task_id} is not in {delay.settings.exhausted_queue}.{text.rest_text(outcome)}")
    return Output([each.to_json() for each in found], text.exhausted_details(found))


@command_of(
    _EVERYTHING,
    click.option("--to", help="Send them to this queue instead of their origin queue."),
    *_SELECTING,
    name="requeue",
)
@_selecting
def _requeue(ctx: click.Context, selection: dead.Selection, **given: Any) -> Output:
    """Send exhausted tasks back to their origin queue as first published, with all their retries.

    Exit code 1 when a message could not be sent (it stays exhausted) or a named task was not found.
    """
    with connected(ctx.obj.app) as (delay, connection):
        refused = delay.dead_letters_refused
        found = dead.requeue(connection, delay.settings, selection, dead_letters_refused=refused, **given)
    return Output(found.to_json(), text.acted_text(found, "requeued"), int(bool(found.failed or found.not_found)))


@command_of(_EVERYTHING, yes_option, *_SELECTING, name="discard")
@_selecting
def _discard(ctx: click.Context, selection: dead.Selection, yes: bool, limit: int | None, scan_limit: int) -> Output:
    """Remove exhausted tasks for good."""
    selection.require()
    require_answer(ctx, answered=yes)
    with connected(ctx.obj.app) as (delay, connection):
        settings = delay.settings
        if not yes:
            limit = len(dead.list_exhausted(connection, settings, selection, limit=limit, scan_limit=scan_limit).done)
            if limit:
                click.confirm(f"Discard {limit} exhausted tasks for good?", abort=True, err=True)
        found = (
            dead.Outcome(not_found=sorted(selection.task_ids), complete=True)
            if limit == 0
            else dead.discard(connection, settings, selection, limit=limit, scan_limit=scan_limit)
        )
    return Output(found.to_json(), text.acted_text(found, "discarded"), int(bool(found.not_found)))


parked.add_command(_list)
for _command in (_list_exhausted, _show, _requeue, _discard):
    exhausted.add_command(_command)
