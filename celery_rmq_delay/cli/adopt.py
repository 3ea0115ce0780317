"""``rmq-delay adopt``: set our dead-letter exchange on an existing queue by a policy, or detach the queue."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from ..app.inventory import origin_queues
from ..management.client import Management
from ..operations import adoption
from . import text as cli_text
from .base import (
    CHANGES_WAIT,
    Command,
    as_json,
    connected,
    management_option,
    options,
    require_answer,
    show,
    yes_option,
)

if TYPE_CHECKING:
    from ..operations.adoption import Adopter


@click.command(cls=Command)
@options(
    click.option("--queue", "queues", multiple=True, required=True, help="Queue to adopt; may be given several times."),
    click.option("--undo", is_flag=True, help="Detach the queue: its failed tasks are copied again."),
    click.option("--replace", is_flag=True, help="Adopt even if another policy dead-letters the queue elsewhere."),
    click.option("--force", is_flag=True, help="With --undo: do not wait for consumers that do not answer."),
    click.option("--dry-run", is_flag=True, help="Only show the changes. Exit code 2 when there are any."),
    yes_option,
    management_option,
    as_json,
)
def adopt(
    ctx: click.Context, queues: tuple[str, ...], undo: bool, replace: bool, force: bool, dry_run: bool, yes: bool,
    management_url: str | None, as_json: bool,
) -> None:  # fmt: skip
    """Make an existing queue dead-letter to its ladder, by a policy. Shows the change and asks first.

    Exit code 1 when a queue cannot be adopted, or when not every worker that consumes it has replied.
    """
    if (replace and undo) or (force and not undo):
        raise click.UsageError("--replace is for adopting, --force for --undo.")
    require_answer(as_json=as_json, answered=yes or dry_run)
    with (
        connected(ctx.obj.app) as (delay, connection),
        Management.of(connection, management_url, delay.settings.management_url) as management,
    ):
        management.version()
        adopter = adoption.Adopter(delay, connection, management)
        names = origin_queues(delay, dict.fromkeys(queues))
        plans: list[Any] = [adopter.plan_undo(name) if undo else adopter.plan(name, replace=replace) for name in names]
        waiting = [each for each in plans if (each if undo else not adopter.is_adopted(each))]
        texts = list(_texts(plans, waiting))
        if dry_run or not waiting:
            show([{**each.to_json(), "done": each not in waiting} for each in plans], "\n".join(texts), as_json=as_json)
            ctx.exit(CHANGES_WAIT if waiting else 0)
        click.echo("\n".join(texts), err=as_json)
        if not yes:
            click.confirm("Detach?" if undo else "Adopt?", abort=True, err=True)
        done = [_carry_out(adopter, each, force=force, as_json=as_json) for each in waiting]
    if as_json:
        show([{**plan.to_json(), **each.to_json()} for plan, each in zip(waiting, done, strict=True)], "", as_json=True)
    ctx.exit(1 if any(each.unanswered for each in done) else 0)


def _carry_out(adopter: Adopter, plan: Any, *, force: bool, as_json: bool) -> adoption.Outcome:
    """Carry out one plan and print the result at once: the next one may fail."""
    found = adopter.undo(plan, force=force) if isinstance(plan, adoption.UndoPlan) else adopter.adopt(plan)
    if not as_json:
        click.echo(cli_text.adopted_text(found))
    return found


def _texts(plans: list[Any], waiting: list[Any]) -> Iterator[str]:
    for plan in plans:
        undo = isinstance(plan, adoption.UndoPlan)
        if plan not in waiting:
            yield f"{plan.queue}: {'is not adopted' if undo else 'is adopted, nothing to do'}"
        else:
            yield cli_text.undo_text(plan) if undo else cli_text.policy_text(plan)
