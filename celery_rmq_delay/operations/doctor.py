"""Diagnose problems that would prevent retries from being parked, with a fix for each. Changes nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from amqp.exceptions import AccessRefused, AMQPError, ChannelError
from celery import Celery
from kombu import Connection
from kombu.entity import Queue as KombuQueue
from kombu.exceptions import OperationalError

from ..amqp.apply import consumer_count, ready_counts
from ..amqp.capabilities import capabilities
from ..amqp.objects import Queue
from ..app.inventory import applied, connect, plans
from ..app.state import AppState, state_of
from ..commands import command
from ..events.queue import events_queue
from ..exceptions import ManagementError, TransportError
from ..management.client import Management
from ..management.records import DLX, Bindings, Policy, QueueDetail, effective_limit
from ..names import quarantine
from ..topology.applied import REQUEUES, Applied
from ..topology.common import undeliverable
from ..topology.ladder import LadderPlan
from ..topology.native_retry import refusal
from ..topology.transition import lost_record
from . import celery_native_delay, findings
from .pending import Pending, ladder_change, pending
from .results import Finding, Severity, apply_fix, redeclare_fix

#: Seconds to wait for replies of workers.
_ANSWERS = 1.0


def examine(
    app: Celery, *, only: Iterable[str] = (), management_url: str | None = None, use_management: bool = True
) -> list[Finding]:
    """Return the findings about the app's broker and origin queues (or only those in ``only``), errors first.

    ``management_url``: see `Management.of`; ``use_management=False`` skips that API and the checks that need it.
    Raises `RmqDelayError` if `install` was not called.
    """
    delay = state_of(app)
    with app.connection_for_read() as connection:
        found = list(_Examination(delay, connection).run(only, management_url, use_management))
    order: list[Severity] = ["error", "warning", "note"]
    return sorted(found, key=lambda finding: order.index(finding.severity))


class _Examination:
    def __init__(self, delay: AppState, connection: Connection) -> None:
        self.delay, self.connection = delay, connection
        self.details: dict[str, QueueDetail] = {}
        self.policies: list[Policy] = []
        self.bindings: Bindings | None = None

    def run(self, only: Iterable[str], management_url: str | None, use_management: bool) -> Iterator[Finding]:
        delay, connection = self.delay, self.connection
        try:
            connect(connection)
        except TransportError as error:
            yield Finding("transport", "error", "broker_url", str(error), "Use RabbitMQ, or do not call install().")
            return
        except (AMQPError, OperationalError) as error:
            hint = "Start the broker, or correct broker_url."
            yield Finding("unreachable", "error", connection.as_uri(), str(error), hint)
            return
        self.broker = capabilities(connection)
        yield from findings.version_findings(self.broker)
        if use_management:
            yield from self._ask_management(management_url)
        found_plans = plans(connection, delay, only)
        for plan in found_plans:
            yield from self._queue(plan)
        if self.bindings is not None:
            yield from shared_prefix_findings(delay, self.bindings)
        yield from findings.dead_letter_findings(delay, self.details, {*only})
        if self.details:
            managed = self._managed_queues(found_plans)
            yield from findings.policy_findings(managed, self.details, self.policies, connection, delay)
        yield from findings.exact_findings(connection, delay, [plan.queue for plan in found_plans])
        yield from findings.event_findings(connection, delay)
        yield from self._exhausted()
        yield from self._celery_native()
        yield from findings.time_out_findings(delay)
        if any(consumer_count(connection, plan.queue) for plan in found_plans):
            yield from self._requeues()

    def _ask_management(self, url: str | None) -> Iterator[Finding]:
        try:
            with Management.of(self.connection, url, self.delay.settings.management_url) as management:
                management.version()
                self.details, self.policies = management.queues(), management.policies()
                self.bindings = management.bindings()
        except ManagementError as error:
            found, _, hint = str(error).partition(". ")
            unchecked = "Policies, bindings and waiting dead letters are not checked"
            if isinstance(error.__cause__, ImportError):  # the extra is optional
                yield Finding("management", "note", "management API", f"{found}. {unchecked}.", hint)
            else:
                hint = hint or f"{unchecked}; --no-management skips the API."
                yield Finding("management", "warning", "management API", found, hint)

    def _managed_queues(self, found: Iterable[LadderPlan]) -> list[Queue]:
        """Return the managed queues: those that only the package uses."""
        topologies = self.delay.exact.topologies
        queues = [queue for topology in topologies for queue in topology.frame().queues]
        if self.delay.settings.events.on:
            queues.append(events_queue(self.delay))
        for plan in found:
            ladders = [*plan.ladders.values(), *applied(self.connection, plan).ladders.values()]
            queues += [plan.record_queue(), plan.quarantine_queue(), plan.exhausted_queue()]
            queues += [queue for _, _, queue in plan.delay_queues(ladders)]
            queues += [queue for topology in topologies for queue in topology.arrival(plan.queue).queues]
        return list({queue.name: queue for queue in queues}.values())

    def _queue(self, plan: LadderPlan) -> Iterator[Finding]:
        delay, detail = self.delay, self.details.get(plan.queue)
        quorum = plan.queue_type == "quorum" and (detail is None or detail.type == "quorum")
        if delay.has_native_retry(plan.queue) and (refused := refusal(plan.queue, self.broker, quorum=quorum)):
            found, _, hint = refused.rpartition(". ")
            yield Finding("native", "error", plan.queue, f"{found}. No worker starts.", hint)
        state = applied(self.connection, plan)
        counts = ready_counts(self.connection, [plan.queue, quarantine(plan.queue)])
        if counts[plan.queue] is not None:
            yield from self._dead_lettering(plan, state, detail)
        yield from _drift(pending(self.connection, plan, state, self.bindings), plan)
        arguments = delay.app.amqp.queues[plan.queue].queue_arguments or {} if detail is None else detail.arguments
        definition = {} if detail is None else detail.policy_definition
        limits = arguments.get("x-delivery-limit"), definition.get("delivery-limit")
        yield from findings.limit_findings(plan, self.broker, effective_limit(*limits, self.broker.version))
        yield from findings.overflow_findings(plan, arguments, definition)
        yield from findings.key_findings(plan.queue, detail)
        if state.retired:
            found = f"{len(state.retired)} ladders are out of use and not yet removed."
            yield Finding("retired", "note", plan.queue, found, f"Run `{command('prune', delay.app)}`.")
        if suspects := counts[quarantine(plan.queue)]:
            found = f"{suspects} messages may have killed a worker and wait to be tried alone."
            hint = "Workers run them one by one: see that a worker runs."
            yield Finding("quarantine", "note", plan.queue, found, hint)

    def _dead_lettering(self, plan: LadderPlan, state: Applied, detail: QueueDetail | None) -> Iterator[Finding]:
        """Compare an existing origin queue with its declaration: an active declare of what exists changes nothing."""
        app = self.delay.app
        try:
            with self.connection.channel() as channel:
                KombuQueue.queue_declare(app.amqp.queues[plan.queue], channel=channel)
            return
        except AccessRefused as error:
            known = detail and detail.arguments.get(f"x-{DLX}", detail.policy_definition.get(DLX))
            if known != plan.names.dlx(plan.queue):
                found = f"It is unknown whether it has our dead-letter exchange. {error.reply_text}"
                hint = "Run doctor as a user who may configure it."
                yield Finding("queue-arguments", "note", plan.queue, found, hint)
            return
        except ChannelError as error:
            problem = str(error.reply_text)
        yield from findings.adoption_findings(plan, state.adoption, detail, self.policies)
        adopted = state.adoption is not None and state.adoption.in_force
        by_policy = detail is not None and detail.policy_definition.get(DLX) == plan.names.dlx(plan.queue)
        if "x-dead-letter" not in problem and "x-overflow" not in problem:
            hint = (
                "Declare it in task_queues with the arguments that it has. Or stop its publishers and workers, delete "
                f"it with `{command(f'delete-queue {plan.queue}', app)}`, and run `{command('apply', app)}`."
            )
            found = f"It exists with other arguments. {problem}"
            yield Finding("queue-arguments", "warning", plan.queue, found, hint)
        elif not adopted and not by_policy:
            yield findings.dlx_missing(plan, problem)

    def _exhausted(self) -> Iterator[Finding]:
        name = self.delay.settings.exhausted_queue
        if count := ready_counts(self.connection, [name])[name]:
            hint = f"List them with `{command('exhausted list', self.delay.app)}`, then requeue or discard them."
            yield Finding("exhausted", "note", name, f"{count} messages are exhausted.", hint)

    def _celery_native(self) -> Iterator[Finding]:
        left = celery_native_delay.find_leftovers(self.connection)
        if left is not None:
            used = celery_native_delay.still_used(self.delay)
            severity: Severity = "warning" if left.messages and not used else "note"
            text, hint = celery_native_delay.describe(left, used=used)
            yield Finding("celery-native", severity, "celery_delayed_*", text, hint)

    def _requeues(self) -> Iterator[Finding]:
        """Report tasks that requeue a message repeatedly without a delay."""
        inspect = self.delay.app.control.inspect(timeout=_ANSWERS, connection=self.connection)
        answers: Any = inspect._request(REQUEUES) or {}
        loops = [(node, loop) for node, found in sorted(answers.items()) if isinstance(found, list) for loop in found]
        for node, loop in loops:
            found = f"{node}: {loop['task']} has requeued a message {loop['most']} times in a row, without a delay."
            hint = "Call self.retry() instead of Reject(requeue=True)."
            yield Finding("requeues", "warning", loop["queue"], found, hint)


def shared_prefix_findings(delay: AppState, bindings: Bindings) -> Iterator[Finding]:
    """Report other exhausted queues that also receive undeliverable messages."""
    net, own = undeliverable(delay.settings.names), delay.settings.exhausted_queue
    others = sorted(queue for source, queue in bindings if source == net and queue != own)
    if others:
        found = f"Undeliverable messages go to {own} and to {', '.join(others)}: requeued from both, they run twice."
        hint = f"Set another prefix in apps with other exhausted queues, or unbind an old queue from {net}."
        yield Finding("shared-prefix", "warning", net, found, hint)


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
