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
from ...events.queue import events_queue
from ...exceptions import ManagementError, TransportError
from ...management.client import Management
from ...management.policies import DLX, NEGATIVE_IS_UNLIMITED, effective_limit
from ...management.records import Bindings, QueueDetail
from ...names import quarantine
from ...topology.common import undeliverable
from ...topology.native_retry import refusal
from ...topology.transition import lost_record
from ...worker.requeues import COMMAND as REQUEUES
from .. import celery_native_delay
from ..event_queue import event_findings
from ..exact_delays import exact_findings
from ..findings import APPLY, REDECLARE, Finding, Severity
from ..pending import Pending, ladder_change, pending
from .adopted import adoption_findings, dlx_missing
from .policies import key_findings, policy_findings

if TYPE_CHECKING:
    from celery import Celery
    from kombu import Connection

    from ...amqp.objects import Queue
    from ...app.state import AppState
    from ...management.records import Policy
    from ...topology.ladder import LadderPlan
    from ...topology.transition import Applied

_OLDEST = (3, 10, 0)
#: Seconds in which workers answer.
_ANSWERS = 1.0
#: Deliveries beyond the ladder's retries: the first attempt, and one that a lost worker took.
_SPARE_DELIVERIES = 2


def examine(
    app: Celery, *, only: Iterable[str] = (), management_url: str | None = None, use_management: bool = True
) -> list[Finding]:
    """Return what is wrong with the app's broker and origin queues (with ``only`` some of them), the worst first.

    ``management_url``: see `Management.of`; ``use_management=False`` does without that API and what only it can tell.
    Raises `RmqDelayError` where `install` was not called.
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
            found, _, hint = str(error).partition(". ")
            unseen = (
                "Without it policies, bindings and waiting dead letters stay unseen; --no-management leaves it out."
            )
            hint = hint or unseen
            yield Finding("management", "warning", "management API", found, hint)
    found_plans = plans(connection, delay, only)
    for plan in found_plans:
        yield from _queue_findings(connection, delay, plan, broker, details, policies, bindings)
    if bindings is not None:
        yield from shared_prefix_findings(delay, bindings)
    if details:
        yield from policy_findings(_own_queues(connection, delay, found_plans), details, policies, connection, delay)
    yield from exact_findings(connection, delay)
    yield from event_findings(connection, delay)
    yield from _exhausted(connection, delay)
    yield from _celery_native(connection, delay)
    if any(consumer_count(connection, plan.queue) for plan in found_plans):
        yield from _requeues(connection, delay)


def shared_prefix_findings(delay: AppState, bindings: Bindings) -> Iterator[Finding]:
    """Say which exhausted queues besides the app's own get what cannot be delivered."""
    net, own = undeliverable(delay.settings.names), delay.settings.exhausted_queue
    others = sorted(queue for source, queue in bindings if source == net and queue != own)
    if others:
        found = f"What is undeliverable goes to {own} and to {', '.join(others)}: requeued from both, it runs twice."
        hint = f"Give apps with other exhausted queues another prefix; or, if it is an old queue, unbind it from {net}."
        yield Finding("shared-prefix", "warning", net, found, hint)


def _own_queues(connection: Connection, delay: AppState, found: Iterable[LadderPlan]) -> list[Queue]:
    """Return the queues that are the package's alone."""
    queues = [queue for topology in delay.exact.topologies for queue in topology.frame().queues]
    if delay.settings.events.on:
        queues.append(events_queue(delay))
    for plan in found:
        tiers = [queue for _, _, queue in plan.delay_queues(_ladders(plan, applied(connection, plan)))]
        queues += [plan.record_queue(), plan.quarantine_queue(), plan.exhausted_queue(), *tiers]
    return list({queue.name: queue for queue in queues}.values())


def version_findings(broker: Capabilities) -> Iterator[Finding]:
    """Say what the broker's version means for the package."""
    text = ".".join(map(str, broker.version))
    if broker.version < _OLDEST:
        found = f"The broker says it is version {text}; the package is tested from 3.10 on."
        yield Finding("broker-version", "warning", "broker", found, "Upgrade RabbitMQ.")
    elif not broker.tells_death_reason:
        found = (
            f"RabbitMQ {text} does not say why a message died: every death takes it to the next tier, crash loops too."
        )
        hint = "RabbitMQ 3.13 or later tells them apart; apply the topology again after the upgrade."
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
    own = [
        plan.queue,
        quarantine(plan.queue),
        *(queue.name for _, _, queue in plan.delay_queues(_ladders(plan, state))),
    ]
    for name in own:
        waiting = details[name].dead_letters_waiting if name in details else 0
        if waiting:
            found = f"{waiting} dead letters wait in {name} because no queue has taken them."
            hint = "Look again in a minute; if they stay, run `celery -A proj rmq-delay apply`, or empty a full target."
            yield Finding("dead-letters-waiting", "warning", plan.queue, found, hint)
    if state.retired:
        found = f"{len(state.retired)} ladders are out of use and not yet removed."
        yield Finding("retired", "note", plan.queue, found, "Run `celery -A proj rmq-delay prune`.")
    if counts[quarantine(plan.queue)]:
        found = f"{counts[quarantine(plan.queue)]} messages may have killed a worker and wait to be tried alone."
        yield Finding("quarantine", "note", plan.queue, found, "Workers take them one by one: see that one runs.")


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
            found = f"It cannot be seen whether it has our dead-letter exchange. {error.reply_text}"
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
        hint = "Declare it in task_queues with the arguments that it has, or drain, delete and declare it again."
        yield Finding("queue-arguments", "warning", plan.queue, f"It exists with other arguments. {problem}", hint)


def _drift(waiting: Pending, plan: LadderPlan) -> Iterator[Finding]:
    for each in waiting.conflicts:
        yield Finding("conflict", "error", plan.queue, each.difference, REDECLARE)
    for each in waiting.replace:
        yield Finding("queue-type", "note", plan.queue, each.difference, APPLY)
    if waiting.create:
        yield Finding("missing", "error", plan.queue, waiting.missing, APPLY)
    if waiting.unbound:
        yield Finding("unbound", "error", plan.queue, waiting.lost_bindings, APPLY)
    if waiting.lost:
        yield Finding("record", "error", plan.queue, *lost_record(plan))
    if waiting.ladder:
        before, after = ladder_change(*waiting.ladder)
        found = f"The ladder in force is {before}; the settings say {after}."
        yield Finding("ladder", "warning", plan.queue, found, APPLY)
    if waiting.tasks:
        found = f"Tasks have other ladders than planned: {', '.join(waiting.tasks)}."
        yield Finding("task-ladders", "warning", plan.queue, found, APPLY)
    if waiting.routing or waiting.unfinished:
        found = "A change of ladders was cut off." if waiting.unfinished else "The broker has another version now."
        yield Finding("unfinished", "warning", plan.queue, found, APPLY)


def _declared(
    delay: AppState, plan: LadderPlan, detail: QueueDetail | None
) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Return the arguments of an origin queue, and what policies set for it; those of the app where nothing tells."""
    if detail is None:
        return delay.app.amqp.queues[plan.queue].queue_arguments or {}, {}
    return detail.arguments, detail.policy_definition


def _limit(arguments: Mapping[str, Any], definition: Mapping[str, Any], broker: Capabilities) -> int | None:
    """Return the delivery limit that somebody set on an origin queue; None where it is the broker's default."""
    return effective_limit(arguments.get("x-delivery-limit"), definition.get("delivery-limit"), broker.version)


def overflow_findings(
    plan: LadderPlan, arguments: Mapping[str, Any], definition: Mapping[str, Any]
) -> Iterator[Finding]:
    """Say whether an origin queue refuses retries when it is full: a classic delay queue has none left to keep."""
    overflow = str(arguments.get("x-overflow") or definition.get("overflow"))
    limits = [key for key in ("max-length", "max-length-bytes") if f"x-{key}" in arguments or key in definition]
    if plan.queue_type == "classic" and limits and overflow.startswith("reject-publish"):
        found = f"It has {' and '.join(limits)} with {overflow}: retries that are due while it is full are lost."
        hint = "Make it a quorum queue, whose delay queues keep them, or take the limit away and limit its publishers."
        yield Finding("overflow", "error", plan.queue, found, hint)


def limit_findings(plan: LadderPlan, broker: Capabilities, limit: int | None) -> Iterator[Finding]:
    """Say whether a delivery limit takes messages from the ladder before it ends."""
    if plan.queue_type != "quorum" or limit is None or (limit < 0 and broker.version >= NEGATIVE_IS_UNLIMITED):
        return
    needed = max(len(ladder) for ladder in plan.ladders.values()) + _SPARE_DELIVERIES
    if limit < needed:
        zero = " (before RabbitMQ 4.0 a negative limit is 0)" if limit < 0 else ""
        found = f"Its delivery limit is {limit}{zero}; its ladder needs {needed}: messages exhaust early."
        hint = f"Set x-delivery-limit, or the policy's delivery-limit, to {needed} or more."
        yield Finding("delivery-limit", "error", plan.queue, found, hint)


def _exhausted(connection: Connection, delay: AppState) -> Iterator[Finding]:
    name = delay.settings.exhausted_queue
    count = ready_counts(connection, [name])[name]
    if count:
        hint = "Look at them with `celery -A proj rmq-delay exhausted list`, then requeue or discard."
        yield Finding("exhausted", "note", name, f"{count} messages are out of retries.", hint)


def _celery_native(connection: Connection, delay: AppState) -> Iterator[Finding]:
    """Say what Celery's own delayed delivery has left behind."""
    left = celery_native_delay.look(connection)
    if left is None:
        return
    used = celery_native_delay.still_used(delay.app, every_task=delay.settings.exact.every_task)
    text, hint = celery_native_delay.describe(left, used=used)
    if left.messages and not used:
        yield Finding("celery-native", "warning", "celery_delayed_*", text, hint)
    else:
        yield Finding("celery-native", "note", "celery_delayed_*", text, hint)


def _requeues(connection: Connection, delay: AppState) -> Iterator[Finding]:
    """Name the tasks that put a message back at once, over and over."""
    inspect = delay.app.control.inspect(timeout=_ANSWERS, connection=connection)
    answers: Any = inspect._request(REQUEUES) or {}
    loops = [(node, loop) for node, found in sorted(answers.items()) if isinstance(found, list) for loop in found]
    for node, loop in loops:
        found = f"{node}: {loop['task']} has requeued a message {loop['most']} times in a row, without a delay."
        yield Finding("requeues", "warning", loop["queue"], found, "Call self.retry() instead of Reject(requeue=True).")
