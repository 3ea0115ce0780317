"""``rmq-delay uninstall``: return waiting messages to their queues, and delete the objects of this package."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import click

from ..durations import parse_ms
from ..exceptions import ManagementError, RmqDelayError
from ..management.client import Management
from ..operations.uninstall.broker import Request
from ..operations.uninstall.run import uninstall
from .base import (
    CHANGES_WAIT,
    Command,
    as_json,
    connected,
    interruptible,
    management_option,
    no_management_option,
    only,
    options,
    require_answer,
    show,
    verbose_option,
    yes_option,
)
from .text import uninstalled_text

if TYPE_CHECKING:
    from kombu import Connection

    from ..app.state import AppState
    from ..operations.uninstall.leftovers import Report


@click.command("uninstall", cls=Command)
@options(
    only,
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
    yes_option,
    verbose_option(help="Show the names of all objects, instead of their numbers."),
    management_option,
    no_management_option,
    as_json,
)
def uninstall_command(
    ctx: click.Context, *, wait: str | None, dry_run: bool, yes: bool, verbose: bool, management_url: str | None,
    no_management: bool, as_json: bool, **given: Any,
) -> None:  # fmt: skip
    """Delete everything that this package has in the broker. Stop its workers first.

    Waiting messages are never deleted: a queue that has any is left. Run it again to continue. Exit code 1 when
    something is left.
    """
    require_answer(as_json=as_json, answered=yes or dry_run)
    wait_ms = 0 if wait is None else parse_ms(wait, "--wait")
    given = {**given, "wait_ms": wait_ms, "check_hidden": not no_management}
    with connected(ctx.obj.app) as (delay, connection), ExitStack() as stack:
        management = None if no_management else _management(stack, delay, connection, management_url)

        def run(*, dry_run: bool) -> Report:
            with interruptible() as stopped:
                return uninstall(delay, connection, Request(dry_run=dry_run, **given), management, stopped=stopped)

        if not yes and not dry_run:
            planned = run(dry_run=True)
            if planned.refused:
                raise RmqDelayError(planned.refused)
            if planned:
                click.echo(uninstalled_text(planned, verbose=verbose))
                click.confirm("Uninstall?", abort=True, err=True)
        report = run(dry_run=dry_run)
    show(report.to_json(), uninstalled_text(report, verbose=verbose), as_json=as_json)
    ctx.exit(CHANGES_WAIT if dry_run and report else 1 if report.left else 0)


def _management(stack: ExitStack, delay: AppState, connection: Connection, url: str | None) -> Management | None:
    """Return a client of the management API; if it is not available, print why and return None."""
    try:
        management = stack.enter_context(Management.of(connection, url, delay.settings.management_url))
        management.version()
    except ManagementError as error:
        click.echo(f"Only objects that the settings and records name are found: {error}", err=True)
        return None
    return management
