"""``celery -A proj rmq-delay``: inspect and manage the delay queues.

Exit codes: 0 no problem, 1 an error or a problem that an operator must solve, 2 for ``plan``: changes are pending.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from typing import TypeVar

import click
from celery.bin.base import handle_preload_options
from kombu import Connection

from ..app.inventory import applied, plans
from ..app.queues import compare
from ..app.state import AppState
from ..events.queue import declare_events
from ..exceptions import ManagementError
from ..management.client import Management
from ..management.records import QueueDetail
from ..operations.deletion import delete_origin
from ..operations.doctor import examine
from ..operations.findings import dead_letters_waiting, time_out_findings
from ..operations.pending import event_pending, exact_pending, pending
from ..operations.prune import prune as prune_ladders
from ..operations.status import read_status
from ..topology.transition import apply_plan
from . import text
from .adopt import adopt
from .base import (
    CHANGES_WAIT,
    Output,
    command_of,
    connected,
    management_of,
    management_option,
    no_management_option,
    only,
)
from .capacity import capacity
from .moving import migrate_command, uninstall_command
from .tasks import exhausted, parked, release

_T = TypeVar("_T")


@click.group(name="rmq-delay")
@click.pass_context
@handle_preload_options
def rmq_delay(ctx: click.Context) -> None:
    """Inspect and manage retries that wait in RabbitMQ, and their delay queues."""


@command_of(only, management_option, no_management_option)
def plan(ctx: click.Context, only: tuple[str, ...], management_url: str | None, no_management: bool) -> Output:
    """Show what apply would change. Exit code 2 when there are changes, 1 when apply could not make them.

    Compares bindings only if the management API is available.
    """
    with connected(ctx.obj.app) as (delay, connection):
        missing = "Bindings are not compared"
        bindings = None if no_management else _asked(delay, connection, management_url, Management.bindings, missing)
        found = [
            pending(connection, each, applied(connection, each), bindings) for each in plans(connection, delay, only)
        ]
        if not only:
            found.append(exact_pending(connection, delay.exact, [each.queue for each in found]))
            if delay.settings.events.on:
                found.append(event_pending(connection, delay))
        notes = [f"Note: {each.found} {each.fix}" for each in time_out_findings(delay)]
    if notes and not ctx.params["as_json"]:
        ctx.call_on_close(partial(click.echo, "\n".join(notes), err=True))
    exit_code = 1 if any(each.conflicts or each.lost for each in found) else CHANGES_WAIT if any(found) else 0
    return Output([each.to_json() for each in found], text.plan_text(found), exit_code)


def _asked(
    delay: AppState, connection: Connection, url: str | None, ask: Callable[[Management], _T], missing: str
) -> _T | None:
    """Return the management API's answer; if it is not available, print ``missing`` and return None."""
    try:
        with management_of(delay, connection, url) as management:
            return ask(management)
    except ManagementError as error:
        click.echo(f"{missing}: {error}\nUse --no-management to skip the management API.", err=True)
        return None


@command_of(
    only,
    click.option(
        "--reset", is_flag=True, help="If a ladder's record is lost, replace the ladder in force. Stop workers first."
    ),
    click.option("--exact-delays", is_flag=True, help="Declare the queues for exact delays even if none was used yet."),
)
def apply(ctx: click.Context, only: tuple[str, ...], reset: bool, exact_delays: bool) -> Output:
    """Declare the origin queues, their ladders, and the queue for events.

    Workers do this at start unless apply_on_start=False. The queues for exact delays are declared when a delay is first
    used; with apply_on_start=False this command declares them.
    """
    rows, words = [], []
    with connected(ctx.obj.app) as (delay, connection):
        for each in plans(connection, delay, only):
            with connection.channel() as channel:
                delay.app.amqp.queues[each.queue](channel).declare()
            compare(delay.app, each.queue, connection)
            changed = apply_plan(connection, each, reset=reset)
            delay.exact.bind(connection, each.queue)
            if each.queue in delay.differing:
                delay.learn(each.queue, applied(connection, each).adoption)
            rejects = delay.rejects(each.queue)
            rows.append({"queue": each.queue, "changed": changed, "rejects": rejects})
            remark = "" if rejects else "; without our dead-letter exchange, see doctor"
            words.append(f"{each.queue}: {'ladder changed' if changed else 'as planned'}{remark}")
        delay.exact.declare(connection, unused=exact_delays)
        if exact_delays:
            words.append(f"exact delays ({delay.exact.topology(connection).name}): declared")
        if delay.settings.events.on:
            declare_events(connection, delay)
    return Output(rows, "\n".join(words) or "The app has no origin queues.")


@command_of(only, management_option, no_management_option)
def status(ctx: click.Context, only: tuple[str, ...], management_url: str | None, no_management: bool) -> Output:
    """Show how many tasks are parked by queue and tier, when the next is due, and how many are exhausted.

    Counts the messages that quorum queues hold back only if the management API is available: due messages for a full
    queue, and the retries of "native" queues.
    """
    with connected(ctx.obj.app) as (delay, connection):
        found = read_status(ctx.obj.app, connection, only)
        holds_back = "quorum" in {delay.exact.queue_type, *(each.queue_type for each in found.queues)}
        if holds_back and not no_management:
            missing = "Messages that quorum queues hold back are not counted"
            details = _asked(delay, connection, management_url, Management.queues, missing)
            if details is not None:
                found = found.with_details(details, dead_letters_waiting(delay, details, only))
    return Output(found.to_json(), text.status_text(found))


@command_of(only, management_option, no_management_option)
def doctor(ctx: click.Context, only: tuple[str, ...], management_url: str | None, no_management: bool) -> Output:
    """Diagnose problems that would prevent retries from being parked, with a fix for each.

    Exit code 1 when there are errors or warnings.
    """
    found = examine(ctx.obj.app, only=only, management_url=management_url, use_management=not no_management)
    exit_code = int(any(each.needs_a_person for each in found))
    return Output([each.to_json() for each in found], text.findings_text(found), exit_code)


@command_of(
    only,
    click.option("--now", is_flag=True, help="Do not wait for workers that use old ladders: all are restarted."),
    management_option,
    no_management_option,
)
def prune(
    ctx: click.Context, only: tuple[str, ...], now: bool, management_url: str | None, no_management: bool
) -> Output:
    """Delete the empty delay queues of retired ladders.

    Only the management API shows whether a quorum queue is empty.
    """
    with connected(ctx.obj.app) as (delay, connection):
        details: Mapping[str, QueueDetail] | None = {}
        if not no_management:
            missing = "Dead letters held back in quorum queues are not counted"
            details = _asked(delay, connection, management_url, Management.queues, missing)
        found = [prune_ladders(connection, each, details, now=now) for each in plans(connection, delay, only)]
    return Output([each.to_json() for each in found], text.pruned_text(found))


@command_of(
    click.argument("queues", nargs=-1, required=True, metavar="QUEUE..."),
    management_option,
    no_management_option,
    name="delete-queue",
)
def delete_queue(
    ctx: click.Context, queues: tuple[str, ...], management_url: str | None, no_management: bool
) -> Output:
    """Delete origin queues without consumers, so that you can declare them again with other arguments.

    Their messages, and those that are due before they are declared again, go to the exhausted queue; requeue them from
    there. A queue deleted by hand loses them. Stop publishers and workers first. Exit code 1 when a queue is kept.
    """
    with connected(ctx.obj.app) as (delay, connection), ExitStack() as stack:
        management: Management | None = None
        if not no_management:
            management = stack.enter_context(management_of(delay, connection, management_url))
            management.version()
        exact = delay.exact.topology(connection)
        found = []
        for each in plans(connection, delay, queues):
            inspect = partial(management.queue, each.queue) if management else None
            found.append(delete_origin(connection, each, exact.arrival(each.queue), inspect))
            if not ctx.params["as_json"]:
                click.echo(text.deleted_text(found[-1]))
    return Output([each.to_json() for each in found], None, int(not all(each.deleted for each in found)))


for _command in (
    *(plan, apply, status, doctor, prune, delete_queue, adopt, capacity, migrate_command, uninstall_command),
    *(parked, release, exhausted),
):
    rmq_delay.add_command(_command)
