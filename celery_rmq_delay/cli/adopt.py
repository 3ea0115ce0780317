"""``rmq-delay adopt``: set our dead-letter exchange on an existing queue by a policy, or detach the queue."""

from __future__ import annotations

from typing import Any

import click

from ..app.inventory import origin_queues
from ..operations.adoption import Adopter, UndoPlan
from . import base, text


@base.command_of(
    click.option("--queue", "queues", multiple=True, required=True, help="Queue to adopt; may be given several times."),
    click.option("--undo", is_flag=True, help="Detach the queue: its failed tasks are copied again."),
    click.option("--replace", is_flag=True, help="Adopt even if another policy dead-letters the queue elsewhere."),
    click.option("--force", is_flag=True, help="With --undo: do not wait for consumers that do not answer."),
    click.option("--dry-run", is_flag=True, help="Only show the changes. Exit code 2 when there are any."),
    base.yes_option,
    base.management_option,
)
def adopt(
    ctx: click.Context, queues: tuple[str, ...], undo: bool, replace: bool, force: bool, dry_run: bool, yes: bool,
    management_url: str | None,
) -> base.Output:  # fmt: skip
    """Make an existing queue dead-letter to its ladder, by a policy. Shows the change and asks first.

    Exit code 1 when a queue cannot be adopted, or when not every worker that consumes it has replied.
    """
    as_json = ctx.params["as_json"]
    if (replace and undo) or (force and not undo):
        raise click.UsageError("--replace is for adopting, --force for --undo.")
    base.require_answer(ctx, answered=yes or dry_run)
    with (
        base.connected(ctx.obj.app) as (delay, connection),
        base.management_of(delay, connection, management_url) as management,
    ):
        management.version()
        adopter = Adopter(delay, connection, management)
        names = origin_queues(delay, dict.fromkeys(queues))
        plans: list[Any] = [adopter.plan_undo(name) if undo else adopter.plan(name, replace=replace) for name in names]
        waiting = [each for each in plans if (each if undo else not adopter.is_adopted(each))]
        words = "\n".join(_text(each, is_due=each in waiting) for each in plans)
        if dry_run or not waiting:
            rows = [{**each.to_json(), "done": each not in waiting} for each in plans]
            return base.Output(rows, words, base.CHANGES_WAIT if waiting else 0)
        click.echo(words, err=as_json)
        if not yes:
            click.confirm("Detach?" if undo else "Adopt?", abort=True, err=True)
        done = []
        for plan in waiting:
            done.append(adopter.undo(plan, force=force) if undo else adopter.adopt(plan))
            if not as_json:  # at once: the next one may fail
                click.echo(text.adopted_text(done[-1]))
    rows = [{**plan.to_json(), **each.to_json()} for plan, each in zip(waiting, done, strict=True)]
    return base.Output(rows, None, int(any(each.unanswered for each in done)))


def _text(plan: Any, *, is_due: bool) -> str:
    undo = isinstance(plan, UndoPlan)
    if not is_due:
        return f"{plan.queue}: {'is not adopted' if undo else 'is adopted, nothing to do'}"
    return text.undo_text(plan) if undo else text.policy_text(plan)
