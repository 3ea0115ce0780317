"""``migrate`` and ``uninstall``: move waiting messages to other delay queues, or return all of them to their queues."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

import click
from kombu import Connection

from ..app.state import AppState
from ..durations import parse_ms
from ..exceptions import ManagementError, RmqDelayError
from ..management.client import Management
from ..operations.migration.address import SOURCES
from ..operations.migration.mover import WINDOW, Report
from ..operations.migration.service import Request, migrate, poison_queue
from ..operations.migration.targets import TARGETS
from ..operations.uninstall import broker as leaving
from ..operations.uninstall.run import uninstall
from . import base
from .text import uninstalled_text


@base.command_of(
    click.option("--from", "source", type=click.Choice(SOURCES), required=True, help="Where messages wait now."),
    click.option("--to", type=click.Choice(TARGETS), help="Where they wait afterwards; exact_delays by default."),
    click.option("--queue", "only", multiple=True, help="Only messages for this queue; may be given several times."),
    click.option("--source-queue", "source_queues", multiple=True, help="A queue of hold; may be given several times."),
    click.option("--source-prefix", "prefix", help="Prefix of the source, if the settings have another."),
    click.option("--source-unit", help="exact_unit of the source, if the settings have another."),
    click.option(
        "--source-type", "queue_type", type=click.Choice(["classic", "quorum"]), help="Queue type of the source."
    ),
    base.limit_option,
    click.option("--dry-run", is_flag=True, help="Only count the messages; move nothing."),
    click.option("--remove", is_flag=True, help="Delete Celery's own delay queues when they are empty."),
    base.management_option,
    base.no_management_option,
    name="migrate",
)
def migrate_command(ctx: click.Context, source_unit: str | None, no_management: bool, **given: Any) -> base.Output:
    """Move waiting messages to other delay queues; each is in the new one before it leaves the old one.

    You can stop it at any time (Ctrl-C or SIGTERM finishes the messages under way); run it again to continue. Exit code
    1 when messages are left, or the counts do not add up.
    """
    unit_ms = None if source_unit is None else parse_ms(source_unit, "--source-unit")
    request = Request(unit_ms=unit_ms, use_management=not no_management, **given)
    with base.connected(ctx.obj.app) as (delay, connection), base.interruptible() as stopped, ExitStack() as stack:
        begun = (lambda _length: bool) if ctx.params["as_json"] else partial(_progress, stack)
        report = migrate(delay, connection, request, stopped=stopped, begun=begun)
    return base.Output(report.to_json(), _text(report, poison_queue(delay).name), int(report.needs_a_person))


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


@base.command_of(
    base.only,
    click.option(
        "--release", is_flag=True, help="Put waiting messages into their queues now, with their due time as eta."
    ),
    click.option("--wait", help="Wait up to this time, such as 10m, until waiting messages have returned."),
    click.option(
        "--delete-origin",
        is_flag=True,
        help="Delete origin queues that were declared with our dead-letter exchange, if empty and unused.",
    ),
    click.option("--discard-events", is_flag=True, help="Delete the events queue even if it is not empty."),
    click.option("--dry-run", is_flag=True, help="Only show what would be done. Exit code 2 when there is something."),
    base.yes_option,
    base.verbose_option(help="Show the names of all objects, instead of their numbers."),
    base.management_option,
    base.no_management_option,
    name="uninstall",
)
def uninstall_command(
    ctx: click.Context, wait: str | None, dry_run: bool, yes: bool, verbose: bool, management_url: str | None,
    no_management: bool, **given: Any,
) -> base.Output:  # fmt: skip
    """Delete everything that this package has in the broker. Stop its workers first.

    Waiting messages are never deleted: a queue that has any is left. Run it again to continue. Exit code 1 when
    something is left.
    """
    base.require_answer(ctx, answered=yes or dry_run)
    wait_ms = 0 if wait is None else parse_ms(wait, "--wait")
    given |= {"wait_ms": wait_ms, "check_hidden": not no_management}
    with base.connected(ctx.obj.app) as (delay, connection), ExitStack() as stack:
        management = None if no_management else _management(stack, delay, connection, management_url)

        def run(*, dry_run: bool) -> leaving.Report:
            request = leaving.Request(dry_run=dry_run, **given)
            with base.interruptible() as stopped:
                return uninstall(delay, connection, request, management, stopped=stopped)

        if not yes and not dry_run:
            planned = run(dry_run=True)
            if planned.refused:
                raise RmqDelayError(planned.refused)
            if planned:
                click.echo(uninstalled_text(planned, verbose=verbose))
                click.confirm("Uninstall?", abort=True, err=True)
        report = run(dry_run=dry_run)
    exit_code = base.CHANGES_WAIT if dry_run and report else int(bool(report.left))
    return base.Output(report.to_json(), uninstalled_text(report, verbose=verbose), exit_code)


def _management(stack: ExitStack, delay: AppState, connection: Connection, url: str | None) -> Management | None:
    """Return a client of the management API; if it is not available, print why and return None."""
    try:
        management = stack.enter_context(base.management_of(delay, connection, url))
        management.version()
    except ManagementError as error:
        click.echo(f"Only objects that the settings and records name are found: {error}", err=True)
        return None
    return management
