"""``rmq-delay migrate``: move waiting messages to other delay queues."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

import click

from ..durations import parse_ms
from ..operations.migration import sources, targets
from ..operations.migration.mover import WINDOW
from ..operations.migration.report import Report
from ..operations.migration.service import Request, migrate, poison_queue
from .base import Command, as_json, connected, interruptible, limit_option, management_option, options, show


@click.command("migrate", cls=Command)
@options(
    click.option("--from", "source", type=click.Choice(sources.NAMES), required=True, help="Where messages wait now."),
    click.option("--to", type=click.Choice(targets.NAMES), help="Where they wait afterwards; exact_delays by default."),
    click.option("--queue", "only", multiple=True, help="Only messages for this queue; may be given several times."),
    click.option("--source-queue", "source_queues", multiple=True, help="A queue of hold; may be given several times."),
    click.option("--source-prefix", help="Prefix of the source, if the settings have another."),
    click.option("--source-unit", help="exact_unit of the source, if the settings have another."),
    click.option("--source-type", type=click.Choice(["classic", "quorum"]), help="Queue type of the source."),
    limit_option,
    click.option("--dry-run", is_flag=True, help="Only count the messages; move nothing."),
    click.option("--remove", is_flag=True, help="Delete Celery's own delay queues when they are empty."),
    management_option,
    click.option("--no-management", is_flag=True, help="Do not use the management API."),
    as_json,
)
def migrate_command(
    ctx: click.Context, *, source_prefix: str | None, source_unit: str | None, source_type: Any, no_management: bool,
    as_json: bool, **given: Any,
) -> None:  # fmt: skip
    """Move waiting messages to other delay queues; each is in the new one before it leaves the old one.

    You can stop it at any time (Ctrl-C or SIGTERM finishes the messages under way); run it again to continue. Exit code
    1 when messages are left, or the counts do not add up.
    """
    unit_ms = None if source_unit is None else parse_ms(source_unit, "--source-unit")
    request = Request(
        prefix=source_prefix, unit_ms=unit_ms, queue_type=source_type, use_management=not no_management, **given
    )
    with connected(ctx.obj.app) as (delay, connection), interruptible() as stopped, ExitStack() as stack:
        begun = (lambda _length: bool) if as_json else partial(_progress, stack)
        report = migrate(delay, connection, request, stopped=stopped, begun=begun)
    show(report.to_json(), _text(report, poison_queue(delay).name), as_json=as_json)
    ctx.exit(1 if report.needs_a_person else 0)


def _progress(stack: ExitStack, length: int) -> Callable[[int], object]:
    """Show a progress bar on a terminal, and nothing elsewhere; return the function that advances it."""
    if not length or not sys.stderr.isatty():
        return bool
    shown: Any = click.progressbar(length=length, label="Moving", file=sys.stderr, show_pos=True)
    update: Callable[[int], object] = stack.enter_context(shown).update
    return update


def _text(report: Report, poison: str) -> str:
    would = "would be " if report.dry_run else ""
    lines = [f"{report.source}: {report.before} messages waited."]
    lines += [f"{count} for {queue} {would}moved to {report.target}" for queue, count in report.moved.items()]
    lines += [f"{count} for {queue} were due, {would}delivered" for queue, count in report.delivered.items()]
    lines += [f"{count} not understood, {would}put into {poison}: {why}" for why, count in report.poisoned.items()]
    lines += [f"{count} left: {why}" for why, count in report.left.items()]
    lines += [f"removed {name}" for name in report.removed]
    if report.arrived:
        lines.append(f"{report.arrived} were published to it meanwhile: a publisher still uses it.")
    if report.came_due:
        lines.append(f"{report.came_due} were due and left it during the run.")
    lines.append(f"{report.after} wait there now.")
    if report.surplus:
        more = f"{report.surplus} messages too many: a publisher still uses it. Run it again."
        lines.append(f"The counts do not add up: {more}")
    elif not report.adds_up:
        lines.append(f"The counts do not add up: {report.taken} taken, {report.copies} copies confirmed.")
    if report.interrupted or not report.complete:
        lines.append(f"Not finished: run it again. A killed run leaves at most {WINDOW} messages in both places.")
    return "\n".join(lines)
