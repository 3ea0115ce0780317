"""``celery -A proj rmq-delay``: inspect and manage the delay queues.

Exit codes: 0 no problem, 1 an error or a problem that an operator must solve, 2 for ``plan``: changes are pending.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import click
from celery.bin.base import handle_preload_options

from ..app.inventory import applied, plans
from ..app.queues import compare
from ..durations import parse_ms
from ..events.queue import declare_events
from ..exceptions import ManagementError
from ..management.client import Management
from ..management.records import Bindings, QueueDetail
from ..operations import exhausted as dead
from ..operations.dead_letters import dead_letters_waiting
from ..operations.deletion import delete_origin
from ..operations.doctor.examination import examine
from ..operations.event_queue import event_pending
from ..operations.exact_delays import exact_pending
from ..operations.pending import pending
from ..operations.prune import prune as prune_ladders
from ..operations.release import release as release_parked
from ..operations.status import read_status
from ..operations.time_outs import time_out_findings
from ..topology.transition import apply_plan
from . import text as text
from .adopt import adopt
from .base import (
    CHANGES_WAIT,
    Command,
    as_json,
    connected,
    limit_option,
    management_option,
    no_management_option,
    only,
    options,
    require_answer,
    scan_option,
    show,
    yes_option,
)
from .capacity import capacity
from .migrate import migrate_command
from .parked import parked
from .uninstall import uninstall_command

if TYPE_CHECKING:
    from kombu import Connection

    from ..app.state import AppState

_T = TypeVar("_T")


@click.group(name="rmq-delay")
@click.pass_context
@handle_preload_options
def rmq_delay(ctx: click.Context) -> None:
    """Inspect and manage retries that wait in RabbitMQ, and their delay queues."""


rmq_delay.add_command(adopt)
rmq_delay.add_command(capacity)
rmq_delay.add_command(migrate_command)
rmq_delay.add_command(parked)
rmq_delay.add_command(uninstall_command)


@rmq_delay.command(cls=Command)
@options(only, management_option, no_management_option, as_json)
def plan(
    ctx: click.Context, only: tuple[str, ...], management_url: str | None, no_management: bool, as_json: bool
) -> None:
    """Show what apply would change. Exit code 2 when there are changes, 1 when apply could not make them.

    Compares bindings only if the management API is available.
    """
    with connected(ctx.obj.app) as (delay, connection):
        bindings: Bindings | None = None
        if not no_management:
            bindings = _asked(delay, connection, management_url, Management.bindings, "Bindings are not compared")
        found = [
            pending(connection, each, applied(connection, each), bindings) for each in plans(connection, delay, only)
        ]
        if not only:
            found.append(exact_pending(connection, delay.exact, [each.queue for each in found]))
            if delay.settings.events.on:
                found.append(event_pending(connection, delay))
        notes = [f"Note: {each.found} {each.fix}" for each in time_out_findings(delay)]
    show([each.to_json() for each in found], text.plan_text(found), as_json=as_json)
    if not as_json:
        click.echo("".join(f"{note}\n" for note in notes), err=True, nl=False)
    ctx.exit(1 if any(each.conflicts or each.lost for each in found) else CHANGES_WAIT if any(found) else 0)


def _asked(
    delay: AppState, connection: Connection, url: str | None, ask: Callable[[Management], _T], missing: str
) -> _T | None:
    """Return the management API's answer; if it is not available, print ``missing`` and return None."""
    try:
        with Management.of(connection, url, delay.settings.management_url) as management:
            return ask(management)
    except ManagementError as error:
        click.echo(f"{missing}: {error}\nUse --no-management to skip the management API.", err=True)
        return None


@rmq_delay.command(cls=Command)
@options(
    only,
    click.option(
        "--reset", is_flag=True, help="If a ladder's record is lost, replace the ladder in force. Stop workers first."
    ),
    click.option("--exact-delays", is_flag=True, help="Declare the queues for exact delays even if none was used yet."),
    as_json,
)
def apply(ctx: click.Context, only: tuple[str, ...], reset: bool, exact_delays: bool, as_json: bool) -> None:
    """Declare the origin queues, their ladders, and the queue for events.

    Workers do this at start unless apply_on_start=False. The queues for exact delays are declared when a delay is first
    used; with apply_on_start=False this command declares them.
    """
    rows = []
    with connected(ctx.obj.app) as (delay, connection):
        for each in plans(connection, delay, only):
            with connection.channel() as channel:
                delay.app.amqp.queues[each.queue](channel).declare()
            compare(delay.app, each.queue, connection)
            changed = apply_plan(connection, each, reset=reset)
            delay.exact.bind(connection, each.queue)
            if each.queue in delay.differing:
                delay.learn(each.queue, applied(connection, each).adoption)
            rows.append({"queue": each.queue, "changed": changed, "rejects": delay.rejects(each.queue)})
        delay.exact.declare(connection, unused=exact_delays)
        chosen = delay.exact.topology(connection)
        if delay.settings.events.on:
            declare_events(connection, delay)
    words = [
        f"{row['queue']}: {'ladder changed' if row['changed'] else 'as planned'}"
        + ("" if row["rejects"] else "; without our dead-letter exchange, see doctor")
        for row in rows
    ]
    if exact_delays:
        words.append(f"exact delays ({chosen.name}): declared")
    show(rows, "\n".join(words) or "The app has no origin queues.", as_json=as_json)


@rmq_delay.command(cls=Command)
@options(only, management_option, no_management_option, as_json)
def status(
    ctx: click.Context, only: tuple[str, ...], management_url: str | None, no_management: bool, as_json: bool
) -> None:
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
    show(found.to_json(), text.status_text(found), as_json=as_json)


@rmq_delay.command(cls=Command)
@options(
    only,
    management_option,
    no_management_option,
    as_json,
)
def doctor(
    ctx: click.Context, only: tuple[str, ...], management_url: str | None, no_management: bool, as_json: bool
) -> None:
    """Diagnose problems that would prevent retries from being parked, with a fix for each.

    Exit code 1 when there are errors or warnings.
    """
    found = examine(ctx.obj.app, only=only, management_url=management_url, use_management=not no_management)
    show([each.to_json() for each in found], text.findings_text(found), as_json=as_json)
    ctx.exit(1 if any(each.needs_a_person for each in found) else 0)


@rmq_delay.command(cls=Command)
@options(
    only,
    click.option("--now", is_flag=True, help="Do not wait for workers that use old ladders: all are restarted."),
    management_option,
    no_management_option,
    as_json,
)
def prune(
    ctx: click.Context,
    only: tuple[str, ...],
    now: bool,
    management_url: str | None,
    no_management: bool,
    as_json: bool,
) -> None:
    """Delete the empty delay queues of retired ladders.

    Only the management API shows whether a quorum queue is empty.
    """
    with connected(ctx.obj.app) as (delay, connection):
        details: Mapping[str, QueueDetail] | None = {}
        if not no_management:
            missing = "Dead letters held back in quorum queues are not counted"
            details = _asked(delay, connection, management_url, Management.queues, missing)
        found = [prune_ladders(connection, each, details, now=now) for each in plans(connection, delay, only)]
    show([each.to_json() for each in found], text.pruned_text(found), as_json=as_json)


@rmq_delay.command("delete-queue", cls=Command)
@options(
    click.argument("queues", nargs=-1, required=True, metavar="QUEUE..."),
    management_option,
    no_management_option,
    as_json,
)
def delete_queue(
    ctx: click.Context, queues: tuple[str, ...], management_url: str | None, no_management: bool, as_json: bool
) -> None:
    """Delete origin queues without consumers, so that you can declare them again with other arguments.

    Their messages, and those that are due before they are declared again, go to the exhausted queue; requeue them from
    there. A queue deleted by hand loses them. Stop publishers and workers first. Exit code 1 when a queue is kept.
    """
    with connected(ctx.obj.app) as (delay, connection), ExitStack() as stack:
        management: Management | None = None
        if not no_management:
            of = Management.of(connection, management_url, delay.settings.management_url)
            management = stack.enter_context(of)
            management.version()
        exact = delay.exact.topology(connection)
        found = []
        for each in plans(connection, delay, queues):
            inspect = partial(management.queue, each.queue) if management else None
            found.append(delete_origin(connection, each, exact.arrival(each.queue), inspect))
            if not as_json:
                click.echo(text.deleted_text(found[-1]))
    if as_json:
        show([each.to_json() for each in found], "", as_json=True)
    ctx.exit(0 if all(each.deleted for each in found) else 1)


@rmq_delay.command(cls=Command)
@options(
    click.argument("task_ids", nargs=-1, metavar="[TASK_ID]..."),
    click.option("--all", "everything", is_flag=True, help="All parked tasks of --queue."),
    only,
    click.option("--tier", help="Only tasks in the tier with this delay, such as 10m."),
    limit_option,
    click.option("--scan-limit", type=click.IntRange(1), help="Parked messages to inspect per delay queue."),
    as_json,
)
def release(
    ctx: click.Context, task_ids: tuple[str, ...], everything: bool, only: tuple[str, ...], tier: str | None,
    limit: int | None, scan_limit: int | None, as_json: bool,
) -> None:  # fmt: skip
    """Run parked tasks now. Exit code 1 when a named task is not parked or could not be moved.

    A search for task ids also inspects other messages. RabbitMQ 4.1 and later count these as delivered before, so they
    run one at a time when they are due; there the search ends after 1000 messages unless you set --scan-limit.
    """
    if everything and not (only or task_ids):
        raise click.UsageError("--all needs --queue.")
    delay_ms = None if tier is None else parse_ms(tier, "--tier")
    with connected(ctx.obj.app) as (delay, connection):
        result = release_parked(
            connection, plans(connection, delay, only), task_ids=task_ids, everything=everything, delay_ms=delay_ms,
            limit=limit, scan_limit=scan_limit,
        )  # fmt: skip
    show(result.to_json(), text.released_text(result), as_json=as_json)
    ctx.exit(1 if result.failed or result.not_found else 0)


@rmq_delay.group()
def exhausted() -> None:
    """List, show, requeue or discard exhausted tasks."""


def _selecting(function: Any) -> Any:
    """Add the options that select exhausted messages; the command gets one `Selection`."""
    given = (
        click.argument("task_ids", nargs=-1, metavar="[TASK_ID]..."),
        click.option("--task", help="Only this task, by name."),
        click.option("--queue", help="Only this origin queue."),
        click.option("--exception", help="Only this exception, with or without its module."),
        click.option("--reason", help=f"Only this reason: {', '.join(dead.REASONS)}."),
        limit_option,
        scan_option,
        as_json,
    )

    def command(ctx: click.Context, *, task_ids: Iterable[str], everything: bool = False, **values: Any) -> None:
        conditions = {name: values.pop(name) for name in ("task", "queue", "exception", "reason")}
        selection = dead.Selection(task_ids=frozenset(task_ids), everything=everything, **conditions)
        function(ctx, selection, **values)

    command.__doc__ = function.__doc__
    return options(*given)(command)


everything_option = click.option("--all", "everything", is_flag=True, help="All exhausted tasks.")


@exhausted.command("list", cls=Command)
@_selecting
def exhausted_list(
    ctx: click.Context, selection: dead.Selection, limit: int | None, scan_limit: int, as_json: bool
) -> None:
    """List exhausted tasks, the oldest first (100 by default, see --limit)."""
    with connected(ctx.obj.app) as (delay, connection):
        found = dead.list_exhausted(connection, delay.settings, selection, limit=limit or 100, scan_limit=scan_limit)
    show(found.to_json(), text.exhausted_text(found), as_json=as_json)


@exhausted.command("show", cls=Command)
@options(
    click.argument("task_id", metavar="TASK_ID"),
    scan_option,
    as_json,
)
def exhausted_show(ctx: click.Context, task_id: str, scan_limit: int, as_json: bool) -> None:
    """Show an exhausted task: headers, traceback and arguments, without secrets.

    Only a JSON body is decoded. Exit code 1 when the task is not found.
    """
    with connected(ctx.obj.app) as (delay, connection):
        found, outcome = dead.show_exhausted(connection, delay.settings, task_id, scan_limit=scan_limit)
    if not found:
        raise click.ClickException(f"{task_id} is not in {delay.settings.exhausted_queue}.{text.rest_text(outcome)}")
    show([each.to_json() for each in found], text.exhausted_details(found), as_json=as_json)


@exhausted.command("requeue", cls=Command)
@everything_option
@click.option("--to", help="Send them to this queue instead of their origin queue.")
@_selecting
def exhausted_requeue(
    ctx: click.Context, selection: dead.Selection, to: str | None, limit: int | None, scan_limit: int, as_json: bool
) -> None:
    """Send exhausted tasks back to their origin queue as first published, with all their retries.

    Exit code 1 when a message could not be sent (it stays exhausted) or a named task was not found.
    """
    with connected(ctx.obj.app) as (delay, connection):
        result = dead.requeue(
            connection,
            delay.settings,
            selection,
            to=to,
            limit=limit,
            scan_limit=scan_limit,
            dead_letters_refused=delay.dead_letters_refused,
        )
    show(result.to_json(), text.acted_text(result, "requeued"), as_json=as_json)
    ctx.exit(1 if result.failed or result.not_found else 0)


@exhausted.command("discard", cls=Command)
@everything_option
@yes_option
@_selecting
def exhausted_discard(
    ctx: click.Context, selection: dead.Selection, yes: bool, limit: int | None, scan_limit: int, as_json: bool
) -> None:
    """Remove exhausted tasks for good."""
    selection.require()
    require_answer(as_json=as_json, answered=yes)
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
    show(found.to_json(), text.acted_text(found, "discarded"), as_json=as_json)
    ctx.exit(1 if found.not_found else 0)
