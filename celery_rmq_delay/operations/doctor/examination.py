"""Diagnose problems that would prevent retries from being parked, with a fix for each. Changes nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from amqp.exceptions import AccessRefused, AMQPError, ChannelError
from kombu.entity import Queue as KombuQueue
from kombu.exceptions import OperationalError

from ...amqp.apply import consumer_count, ready_counts
from ...amqp.capabilities import Capabilities, capabilities
from ...app.inventory import applied, connect, plans
from ...app.state import state_of
from ...commands import command
from ...events.queue import events_queue
from ...exceptions import ManagementError, TransportError
from ...management.client import Management
from ...management.policies import DLX, NEGATIVE_IS_UNLIMITED, effective_limit
from ...management.records import Bindings, QueueDetail
from ...names import quarantine
from ...topology.applied import REQUEUES
from ...topology.common import undeliverable
from ...topology.native_retry import refusal
from ...topology.transition import lost_record
from .. import celery_native_delay
from ..dead_letters import dead_letter_findings
from ..event_queue import event_findings
from ..exact_delays import exact_findings
from ..findings import Finding, Severity, apply_fix, redeclare_fix
from ..pending import Pending, ladder_change, pending
from ..time_outs import time_out_findings
from .adopted import adoption_findings, dlx_missing
from .policies import key_findings, policy_findings

if TYPE_CHECKING:
    from celery import Celery
    from kombu import Connection

    from ...amqp.objects import Queue
    from ...app.state import AppState
    from ...management.records import Policy
    from ...topology.applied import Applied
    from ...topology.ladder import LadderPlan

_OLDEST = (3, 10, 0)
#: Seconds to wait for replies of workers.
_ANSWERS = 1.0
#: Deliveries beyond the ladder's retries: the first attempt, and one to a worker that was lost.
_SPARE_DELIVERIES = 2


def examine(
    app: Celery, *, only: Iterable[str] = (), management_url: str | None = None, use_management: bool = True
) -> list[Finding]:
    """Return the findings about the app's broker and origin queues (or only those in ``only``), errors first.

    ``management_url``: see `Management.of`; ``use_management=False`` skips that API and the checks that need it.
    Raises `RmqDelayError` if `install` was not called.
    """
    delay = state_of(app)
    with app.connection_for_read() as connection:
        found = list(_examine(delay, connection, only, management_url, use_management))
    order: list[Severity] = ["error", "warning", "note"]
    return sorted(found, key=lambda finding: order.index(finding.severity))


def _examine(
    delay: AppState, connection: Connection, only: Iterable[str], management_url: str | None, use_management: bool
) -> Iterator[Finding]:
    try:
        connect(connection)
    except TransportError as error:
        yield Finding("transport", "error", "broker_url", str(error), "Use RabbitMQ, or do not call install().")
        return
    except (AMQPError, OperationalError) as error:
        hint = "Start the broker, or correct broker_url."
        yield Finding("unreachable", "error", connection.as_uri(), str(error), hint)
        return
    broker = capabilities(connection)
    yield from version_findings(broker)
    details: dict[str, QueueDetail] = {}
    policies: list[Policy] = []
    bindings: Bindings | None = None
    if use_management:
        try:
            with Management.of(connection, management_url, delay.settings.management_url) as management:
                management.version()
                details, policies = management.queues(), management.policies()
                bindings = management.bindings()
        except ManagementError as error:
            yield _without_management(error)
    found_plans = plans(connection, delay, only)
    for plan in found_plans:
        yield from _queue_findings(connection, delay, plan, broker, details, policies, bindings)
    if bindings is not None:
        yield from shared_prefix_findings(delay, bindings)
    yield from dead_letter_findings(delay, details, {*only})
    if details:
        managed = _managed_queues(connection, delay, found_plans)
        yield from policy_findings(managed, details, policies, connection, delay)
    yield from exact_findings(connection, delay, [plan.queue for plan in found_plans])
    yield from event_findings(connection, delay)
    yield from _exhausted(connection, delay)
    yield from _celery_native(connection, delay)
    yield from time_out_findings(delay)
    if any(consumer_count(connection, plan.queue) for plan in found_plans):
        yield from _requeues(connection, delay)


def _without_management(error: ManagementError) -> Finding:
    """Return the finding that the management API cannot be used, which needs no action without the optional extra."""
    found, _, hint = str(error).partition(". ")
    unchecked = "Policies, bindings and waiting dead letters are not checked"
    if isinstance(error.__cause__, ImportError):
        return Finding("management", "note", "management API", f"{found}. {unchecked}.", hint)
    return Finding(
        "management", "warning", "management API", found, hint or f"{unchecked}; --no-management skips the API."
    )


def shared_prefix_findings(delay: AppState, bindings: Bindings) -> Iterator[Finding]:
    """Report other exhausted queues that also receive undeliverable messages."""
    net, own = undeliverable(delay.settings.names), delay.settings.exhausted_queue
    others = sorted(queue for source, queue in bindings if source == net and queue != own)
    if others:
        found = f"Undeliverable messages go to {own} and to {', '.join(others)}: requeued from both, they run twice."
        hint = f"Set another prefix in apps with other exhausted queues, or unbind an old queue from {net}."
        yield Finding("shared-prefix", "warning", net, found, hint)


def _managed_queues(connection: Connection, delay: AppState, found: Iterable[LadderPlan]) -> list[Queue]:
    """Return the managed queues: those that only the package uses."""
    queues = [queue for topology in delay.exact.topologies for queue in topology.frame().queues]
    if delay.settings.events.on:
        queues.append(events_queue(delay))
    for plan in found:
        tiers = [queue for _, _, queue in plan.delay_queues(_ladders(plan, applied(connection, plan)))]
        ways = [queue for topology in delay.exact.topologies for queue in topology.arrival(plan.queue).queues]
        queues += [plan.record_queue(), plan.quarantine_queue(), plan.exhausted_queue(), *tiers, *ways]
    return list({queue.name: queue for queue in queues}.values())


def version_findings(broker: Capabilities) -> Iterator[Finding]:
    """Report limitations of the broker's version."""
    text = ".".join(map(str, broker.version))
    if broker.version < _OLDEST:
        found = f"The broker reports version {text}; the package is tested from 3.10 on."
        yield Finding("broker-version", "warning", "broker", found, "Upgrade RabbitMQ.")
    elif not broker.reports_death_reason:
        found = (
            f"RabbitMQ {text} does not report why a message died: each death, also a crash, moves it to the next tier."
        )
        hint = "RabbitMQ 3.13 or later reports the reason; apply the topology again after the upgrade."
        yield Finding("broker-version", "note", "broker", found, hint)


def _queue_findings(
    connection: Connection,
    delay: AppState,
    plan: LadderPlan,
    broker: Capabilities,
    details: Mapping[str, QueueDetail],
    policies: Iterable[Policy],
    bindings: Bindings | None,
) -> Iterator[Finding]:
    quorum = plan.queue_type == "quorum" and getattr(details.get(plan.queue), "type", "quorum") == "quorum"
    if delay.has_native_retry(plan.queue) and (refused := refusal(plan.queue, broker, quorum=quorum)):
        found, _, hint = refused.rpartition(". ")
        yield Finding("native", "error", plan.queue, f"{found}. No worker starts.", hint)
    state = applied(connection, plan)
    counts = ready_counts(connection, [plan.queue, quarantine(plan.queue)])
    if counts[plan.queue] is not None:
        yield from _dead_lettering(connection, delay, plan, state, details.get(plan.queue), policies)
    yield from _drift(pending(connection, plan, state, bindings), plan)
    arguments, definition = _declared(delay, plan, details.get(plan.queue))
    yield from limit_findings(plan, broker, _limit(arguments, definition, broker))
    yield from overflow_findings(plan, arguments, definition)
    yield from key_findings(plan.queue, details.get(plan.queue))
    if state.retired:
        found = f"{len(state.retired)} ladders are out of use and not yet removed."
        yield Finding("retired", "note", plan.queue, found, f"Run `{command('prune', delay.app)}`.")
    if counts[quarantine(plan.queue)]:
        found = f"{counts[quarantine(plan.queue)]} messages may have killed a worker and wait to be tried alone."
        yield Finding("quarantine", "note", plan.queue, found, "Workers run them one by one: see that a worker runs.")


def _ladders(plan: LadderPlan, state: Applied) -> list[Any]:
    return [*plan.ladders.values(), *state.ladders.values()]


def _dead_lettering(
    connection: Connection,
    delay: AppState,
    plan: LadderPlan,
    state: Applied,
    detail: QueueDetail | None,
    policies: Iterable[Policy],
) -> Iterator[Finding]:
    """Compare an existing origin queue with its declaration: an active declare of what exists changes nothing."""
    try:
        with connection.channel() as channel:
            KombuQueue.queue_declare(delay.app.amqp.queues[plan.queue], channel=channel)
        return
    except AccessRefused as error:
        known = detail and detail.arguments.get(f"x-{DLX}", detail.policy_definition.get(DLX))
        if known != plan.names.dlx(plan.queue):
            found = f"It is unknown whether it has our dead-letter exchange. {error.reply_text}"
            yield Finding("queue-arguments", "note", plan.queue, found, "Run doctor as a user who may configure it.")
        return
    except ChannelError as error:
        problem = str(error.reply_text)
    yield from adoption_findings(plan, state.adoption, detail, policies)
    adopted = state.adoption is not None and state.adoption.in_force
    by_policy = detail is not None and detail.policy_definition.get(DLX) == plan.names.dlx(plan.queue)
    if "x-dead-letter" in problem or "x-overflow" in problem:
        if not adopted and not by_policy:
            yield dlx_missing(plan, problem)
    else:
        hint = (
            "Declare it in task_queues with the arguments that it has. Or stop its publishers and workers, delete it "
            f"with `{command(f'delete-queue {plan.queue}', delay.app)}`, and run `{command('apply', delay.app)}`."
        )
        yield Finding("queue-arguments", "warning", plan.queue, f"It exists with other arguments. {problem}", hint)


def _drift(waiting: Pending, plan: LadderPlan) -> Iterator[Finding]:
    for each in waiting.conflicts:
        yield Finding("conflict", "error", plan.queue, each.difference, redeclare_fix())
    for each in waiting.replace:
        yield Finding("queue-type", "note", plan.queue, each.difference, apply_fix())
    if waiting.create:
        yield Finding("missing", "error", plan.queue, waiting.missing, apply_fix())
    if waiting.unbound:
        yield Finding("unbound", "error", plan.queue, waiting.lost_bindings, apply_fix())
    if waiting.doubled:
        yield Finding("doubled", "error", plan.queue, waiting.extra_bindings, apply_fix())
    if waiting.lost:
        yield Finding("record", "error", plan.queue, *lost_record(plan))
    if waiting.ladder:
        before, after = ladder_change(*waiting.ladder)
        found = f"The ladder in force is {before}; the settings specify {after}."
        yield Finding("ladder", "warning", plan.queue, found, apply_fix())
    if waiting.tasks:
        found = f"Tasks have other ladders than planned: {', '.join(waiting.tasks)}."
        yield Finding("task-ladders", "warning", plan.queue, found, apply_fix())
    if waiting.routing or waiting.unfinished:
        found = "A change of ladders was interrupted." if waiting.unfinished else "The broker's version has changed."
        yield Finding("unfinished", "warning", plan.queue, found, apply_fix())


def _declared(
    delay: AppState, plan: LadderPlan, detail: QueueDetail | None
) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Return the arguments and the policy definition of an origin queue; the app's arguments without ``detail``."""
    if detail is None:
        return delay.app.amqp.queues[plan.queue].queue_arguments or {}, {}
    return detail.arguments, detail.policy_definition


def _limit(arguments: Mapping[str, Any], definition: Mapping[str, Any], broker: Capabilities) -> int | None:
    """Return the delivery limit that is set on an origin queue; None for the broker's default."""
    return effective_limit(arguments.get("x-delivery-limit"), definition.get("delivery-limit"), broker.version)


def overflow_findings(
    plan: LadderPlan, arguments: Mapping[str, Any], definition: Mapping[str, Any]
) -> Iterator[Finding]:
    """Report an origin queue that refuses due retries while it is full: a classic delay queue does not keep them."""
    overflow = str(arguments.get("x-overflow") or definition.get("overflow"))
    limits = [key for key in ("max-length", "max-length-bytes") if f"x-{key}" in arguments or key in definition]
    if not limits or not overflow.startswith("reject-publish"):
        return
    found = f"It has {' and '.join(limits)} with {overflow}: retries and exact delays that are due while it is full"
    if overflow == "reject-publish-dlx":
        hint = "Use reject-publish, in a quorum queue, or remove the limit and limit its publishers."
        yield Finding("overflow", "error", plan.queue, f"{found} are exhausted.", hint)
        return
    if plan.queue_type == "classic":
        hint = "Make it a quorum queue, whose delay queues keep them, or remove the limit and limit its publishers."
        yield Finding("overflow", "error", plan.queue, f"{found} are lost.", hint)
    else:
        hint = "Remove the limit and limit its publishers, or keep it below the limit."
        yield Finding("overflow", "warning", plan.queue, f"{found} wait, and return minutes after it has room.", hint)


def limit_findings(plan: LadderPlan, broker: Capabilities, limit: int | None) -> Iterator[Finding]:
    """Report a delivery limit that ends the ladder of messages early."""
    if plan.queue_type != "quorum" or limit is None or (limit < 0 and broker.version >= NEGATIVE_IS_UNLIMITED):
        return
    needed = max(len(ladder) for ladder in plan.ladders.values()) + _SPARE_DELIVERIES
    if limit < needed:
        zero = " (before RabbitMQ 4.0 a negative limit is 0)" if limit < 0 else ""
        found = f"Its delivery limit is {limit}{zero}; its ladder needs {needed}: messages are exhausted early."
        hint = f"Set x-delivery-limit, or the policy's delivery-limit, to {needed} or more."
        yield Finding("delivery-limit", "error", plan.queue, found, hint)


def _exhausted(connection: Connection, delay: AppState) -> Iterator[Finding]:
    name = delay.settings.exhausted_queue
    count = ready_counts(connection, [name])[name]
    if count:
        hint = f"List them with `{command('exhausted list', delay.app)}`, then requeue or discard them."
        yield Finding("exhausted", "note", name, f"{count} messages are exhausted.", hint)


def _celery_native(connection: Connection, delay: AppState) -> Iterator[Finding]:
    """Report the queues of Celery's native delayed delivery."""
    left = celery_native_delay.find_leftovers(connection)
    if left is None:
        return
    used = celery_native_delay.still_used(delay.app, every_task=delay.settings.exact.every_task)
    text, hint = celery_native_delay.describe(left, used=used)
    if left.messages and not used:
        yield Finding("celery-native", "warning", "celery_delayed_*", text, hint)
    else:
        yield Finding("celery-native", "note", "celery_delayed_*", text, hint)


def _requeues(connection: Connection, delay: AppState) -> Iterator[Finding]:
    """Report tasks that requeue a message repeatedly without a delay."""
    inspect = delay.app.control.inspect(timeout=_ANSWERS, connection=connection)
    answers: Any = inspect._request(REQUEUES) or {}
    loops = [(node, loop) for node, found in sorted(answers.items()) if isinstance(found, list) for loop in found]
    for node, loop in loops:
        found = f"{node}: {loop['task']} has requeued a message {loop['most']} times in a row, without a delay."
        yield Finding("requeues", "warning", loop["queue"], found, "Call self.retry() instead of Reject(requeue=True).")
