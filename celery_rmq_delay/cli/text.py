"""Text output of the commands."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime

from ..durations import format_ms
from ..management.records import PolicyPlan, differences
from ..operations.adoption import Outcome as AdoptionOutcome
from ..operations.adoption import UndoPlan
from ..operations.deletion import Deletion, Kind
from ..operations.exhausted import SHOWN_APART, ExhaustedDetails, ExhaustedMessage, Outcome
from ..operations.parked import ParkedList, ParkedTask, Released
from ..operations.pending import Pending, ladder_change
from ..operations.prune import Pruned
from ..operations.results import Finding
from ..operations.status import ExactStatus, QueueStatus, Status, TierStatus
from ..operations.uninstall.broker import Report
from ..tables import table

#: Number of objects, left for the same reason, that a short text names.
_LEFT = 3
_PLURALS: dict[Kind, str] = {"queue": "queues", "exchange": "exchanges", "policy": "policies"}
_MESSAGE_WIDTH = 60
_QUEUES_OWN = "the queue's"


def plan_text(found: Iterable[Pending]) -> str:
    """Return the changes that an apply would make, by queue."""
    return "\n".join(line for each in found for line in _plan_lines(each))


def _plan_lines(found: Pending) -> Iterator[str]:
    if not found:
        yield f"{found.queue}: nothing to do"
        return
    yield f"{found.queue}:"
    yield from (f"  + {each.kind} {each.name}" for each in found.create)
    yield from (f"  + binding {binding.text}" for binding in found.unbound or ())
    yield from (f"  - binding {binding.text}" for binding in found.doubled or ())
    yield from (f"  ~ {each.kind} {each.name}: {each.problem}" for each in found.replace)
    yield from (f"  ! {each.kind} {each.name} cannot be changed: {each.problem}" for each in found.conflicts)
    if found.ladder:
        yield f"  ~ ladder: {' -> '.join(ladder_change(*found.ladder))}"
    for task, change in found.tasks.items():
        yield f"  ~ ladder of task {task}: {' -> '.join(ladder_change(*change, none=_QUEUES_OWN))}"
    if found.lost:
        yield "  ! the record of the ladder in force is gone: see doctor"
    if found.routing:
        yield "  ~ routing by death reason: as this version of RabbitMQ needs it"
    if found.unfinished:
        yield "  ~ finish an interrupted change of ladders"


def status_text(status: Status) -> str:
    """Return one line per tier, and the number of exhausted messages."""
    rows = [row for queue in status.queues for row in _status_rows(queue)]
    headings = ("QUEUE", "READY", "QUARANTINE", "TIER", "DELAY", "PARKED", "NEXT DUE", "")
    exhausted = "does not exist yet" if status.exhausted is None else f"{status.exhausted} messages"
    lines = [f"exhausted ({status.exhausted_queue}): {exhausted}", *map(_exact_line, status.exact)]
    if status.events is not None:
        waiting = "does not exist yet" if status.events.waiting is None else f"{status.events.waiting} waiting"
        lines.append(f"events ({status.events.queue}): {waiting}")
    lines += map(_held_line, status.native_retry)
    for name, count in (status.dead_letters or {}).items():
        lines.append(f"{name} holds back {count} messages that are due: their queue is full, or missing")
    return "\n".join([table(headings, rows), "", *lines])


def _exact_line(exact: ExactStatus) -> str:
    unknown = "RabbitMQ does not report how many messages are waiting"
    waiting = unknown if exact.waiting is None else f"{exact.waiting} waiting"
    return f"exact delays ({exact.topology}, unit {format_ms(exact.unit_ms)}): {waiting}"


def _held_line(queue: QueueStatus) -> str:
    if queue.held is None:
        return f"{queue.queue} holds its retries itself: only the management API reports how many"
    due = f", the next due {_moment(queue.held_due)}" if queue.held_due else ""
    return f"{queue.queue} holds its retries itself: {queue.held} messages{due}"


def _status_rows(queue: QueueStatus) -> Iterator[tuple[object, ...]]:
    for number, tier in enumerate(queue.tiers):
        head = ("", "", "") if number else (queue.queue, _count(queue.ready), _count(queue.quarantine))
        remark = "missing" if tier.missing else "retired" if tier.retired else ""
        yield (*head, tier.tier_index, format_ms(tier.delay_ms), tier.parked, _due(tier), remark)


def _count(count: int | None) -> str:
    return "missing" if count is None else str(count)


def _due(tier: TierStatus) -> str | None:
    if tier.oldest_due is not None:
        return _moment(tier.oldest_due)
    return None if tier.due_within_ms is None else f"within {format_ms(tier.due_within_ms)}"


def _moment(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%SZ}"


def findings_text(found: Iterable[Finding]) -> str:
    """Return each finding with its fix."""
    lines = [f"{each.severity}: {each.subject}: {each.found}\n    -> {each.fix}" for each in found]
    return "\n".join(lines) or "No problems found."


def pruned_text(found: Iterable[Pruned]) -> str:
    """Return what was deleted and what stays."""
    lines = []
    for each in found:
        lines += [f"{each.queue}: deleted {name}" for name in each.deleted]
        lines += [f"{each.queue}: kept ladder {key}: {why}" for key, why in each.kept.items()]
    return "\n".join(lines) or "Nothing to prune."


def deleted_text(found: Deletion) -> str:
    """Return whether a queue was deleted, or why it was kept."""
    if found.deleted:
        return (
            f"{found.queue}: deleted. {found.exhausted} of its messages went to the exhausted queue as undeliverable; "
            "messages that are due before it is declared again go there, too."
        )
    return (
        f"{found.queue}: kept. It has {found.consumers} consumers, {found.messages} messages and {found.hidden} that a "
        f"worker or the queue itself still holds; {found.exhausted} were moved to the exhausted queue. Stop its "
        "publishers, wait until its workers have stopped, and try again."
    )


def released_text(result: Released) -> str:
    """Return what was released and what was not."""
    lines = [f"released {task_id}" for task_id in result.released]
    lines += [f"not released: {task_id}: {problem}" for task_id, problem in result.failed.items()]
    lines += [f"not parked: {task_id} (already due, done, or exhausted)" for task_id in result.not_found]
    lines += [f"more messages are parked in {queue} than were inspected: see --scan-limit" for queue in result.unseen]
    return "\n".join(lines) or "Nothing was parked."


def parked_text(found: ParkedList) -> str:
    """Return one line per parked task."""
    headings = ("TASK ID", "TASK", "QUEUE", "TIER", "DELAY", "ATTEMPTS", "DUE")
    lines = [table(headings, map(_parked_row, found.tasks)) if found.tasks else "No parked task matches."]
    if not found.complete:
        lines.append("There are more messages than these: see --limit and --scan-limit.")
    if found.marked:
        lines.append("RabbitMQ has marked the inspected tasks: they run one at a time when they are due.")
    lines += [f"not listed: exact delays ({name}): {why}" for name, why in found.unlisted.items()]
    return "\n".join(lines)


def _parked_row(found: ParkedTask) -> tuple[object, ...]:
    tier = ("exact", None) if found.delay_ms is None else (found.tier_index, format_ms(found.delay_ms))
    return found.task_id, found.task, found.queue, *tier, found.attempts, found.due and _moment(found.due)


def exhausted_details(found: Iterable[ExhaustedDetails]) -> str:
    """Return all facts of exhausted messages, one after the other."""
    return "\n\n".join("\n".join(_details(each)) for each in found)


def _details(found: ExhaustedDetails) -> Iterator[str]:
    facts, shown = found.facts, found.shown
    for name, value in facts.to_json().items():
        if value is not None:
            yield f"{f'{name}:':14}{value}"
    yield from (f"{f'{name}:':14}{value}" for name, value in (("args", shown.args), ("kwargs", shown.kwargs)) if value)
    if shown.problem:
        yield f"{'body:':14}{shown.problem}"
    yield "headers:"
    yield from (f"  {each.name}: {each.value}" for each in shown.headers if each.name not in SHOWN_APART)
    if shown.deaths:
        yield "dead-lettered:"
    for each in shown.deaths:
        yield f"  {each.count} times from {each.queue} ({each.reason}), first {each.time and _moment(each.time)}"
    if found.traceback:
        yield f"traceback:\n{found.traceback.rstrip()}"


def exhausted_text(outcome: Outcome) -> str:
    """Return the listed messages as a table."""
    headings = ("TASK ID", "TASK", "QUEUE", "REASON", "EXCEPTION", "MESSAGE", "ATTEMPTS", "EXHAUSTED AT", "BYTES")
    text = table(headings, map(_exhausted_row, outcome.done)) if outcome.done else "No exhausted message matches."
    return text + rest_text(outcome)


def _exhausted_row(found: ExhaustedMessage) -> tuple[object, ...]:
    message = found.message
    if message is not None and len(message) > _MESSAGE_WIDTH:
        message = f"{message[: _MESSAGE_WIDTH - 3]}..."
    return (
        found.task_id, found.task, found.queue, found.reason, found.exception, message, found.attempts,
        found.exhausted_at, found.size,
    )  # fmt: skip


def acted_text(outcome: Outcome, done: str) -> str:
    """Return what happened to the selected messages; ``done`` is the verb, such as ``requeued``."""
    lines = [f"{done} {each.task_id or 'a message without id'} ({each.task})" for each in outcome.done]
    lines += [f"not {done}: {each.found.task_id} ({each.found.task}): {each.problem}" for each in outcome.failed]
    lines += [f"not found: {task_id}" for task_id in outcome.not_found]
    mention_rest = outcome.not_found or not lines
    return ("\n".join(lines) or "No exhausted message matches.") + (rest_text(outcome) if mention_rest else "")


def rest_text(outcome: Outcome) -> str:
    """Return a remark if only a part of the queue was inspected, or nothing was found in a queue with a consumer."""
    text = "" if outcome.complete else f"\nInspected only the first {outcome.seen} messages; there may be more."
    if outcome.consumed and not outcome.done:
        text += "\nA collector consumes this queue: exhausted tasks are in its database, see the Django admin."
    return text


def policy_text(plan: PolicyPlan) -> str:
    """Return the policy that an adoption writes, and what it changes for the queue."""
    policy = plan.policy
    priority = f"priority {policy.priority}"
    if plan.present and plan.present.priority != policy.priority:
        priority = f"priority {plan.present.priority} -> {policy.priority}"
    lines = [f"{plan.queue} ({plan.queue_type}):"]
    lines.append(f"  {'~' if plan.present else '+'} policy {policy.name}: pattern {policy.pattern}, {priority}")
    if plan.base:
        lines.append(f"    merged from the policy {plan.base.name} (priority {plan.base.priority}), which stays")
    changes = plan.changes
    lines += [f"      {key}: {policy.definition[key]}" for key in sorted(policy.definition) if key not in changes]
    lines += [_changed(key, *change) for key, change in changes.items()]
    if plan.operator_policy:
        lines.append(f"    the operator policy {plan.operator_policy} still applies, too")
    return "\n".join(lines)


def _changed(key: str, before: object, after: object) -> str:
    if before is None:
        return f"    + {key}: {after}"
    return f"    - {key}: {before}" if after is None else f"    ~ {key}: {before} -> {after}"


def undo_text(plan: UndoPlan) -> str:
    """Return what an undo removes."""
    if plan.policy is None:
        return f"{plan.queue}: the policy no longer exists; workers are notified to forward"
    lines = [f"{plan.queue}:", f"  - policy {plan.policy.name}: pattern {plan.policy.pattern}"]
    left = plan.base.definition if plan.base else {}
    lines += [_changed(key, *change) for key, change in differences(plan.policy.definition, left).items()]
    lines.append(f"    then the policy {plan.base.name} applies" if plan.base else "    then no policy applies")
    return "\n".join(lines)


def adopted_text(found: AdoptionOutcome) -> str:
    """Return the result of an adoption, or of its undo."""
    now = "adopted: its failed tasks are rejected" if found.rejects else "detached: its failed tasks are forwarded"
    lines = [f"{found.queue}: {now}"]
    lines += [f"  {worker} {'rejects' if rejects else 'forwards'}" for worker, rejects in found.workers.items()]
    if found.unanswered:
        listed = f" ({', '.join(found.silent)})" if found.silent else ""
        then = "forward until they are restarted" if found.rejects else "may still reject: restart them"
        lines.append(f"  {found.unanswered} consumers did not answer{listed}; workers among them {then}")
    return "\n".join(lines)


def uninstalled_text(report: Report, *, verbose: bool) -> str:
    """Return what an uninstall did or would do, and what it left; names every object only if ``verbose``."""
    return "\n".join(_uninstalled(report, verbose=verbose))


def _uninstalled(report: Report, *, verbose: bool) -> Iterator[str]:
    if report.refused:
        yield f"It would be refused now: {report.refused}"
    for queue, count in report.moved.items():
        would = f"{count} messages of {queue} would be put into their queue"
        yield would if report.dry_run else f"put {count} messages into {queue}"
    verb = "would delete" if report.dry_run else "deleted"
    names = {kind: [each.name for each in report.deleted if each.kind == kind] for kind in _PLURALS}
    counts = {kind: f"{len(of)} {kind if len(of) == 1 else _PLURALS[kind]}" for kind, of in names.items() if of}
    if verbose:
        yield from (f"{verb} {count}: {', '.join(names[kind])}" for kind, count in counts.items())
    elif counts:
        yield f"{verb} {', '.join(counts.values())} (--verbose lists them)"
    alike: dict[tuple[str, str], list[str]] = {}
    for each in report.left:
        alike.setdefault((each.reason, each.fix), []).append(f"{each.kind} {each.name}")
    for (reason, fix), objects in alike.items():
        more = 0 if verbose else len(objects) - _LEFT
        listed = f"{', '.join(objects[:_LEFT])} and {more} more" if more > 0 else ", ".join(objects)
        yield f"left: {listed}: {reason}\n    -> {fix}"
    if not report and not report.left:
        where = "" if report.verified else " that the settings and records name"
        yield f"Nothing of this package{where} is in the broker."
