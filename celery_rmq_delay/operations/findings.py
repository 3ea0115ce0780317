"""Findings about queues, policies and messages, each with its fix. `doctor` reports them."""

from __future__ import annotations

import json
import re
import shlex
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from kombu import Connection

from ..amqp.apply import unconsumed
from ..amqp.capabilities import Capabilities
from ..amqp.objects import Queue
from ..app.queues import KEEP
from ..app.state import AppState
from ..commands import command
from ..durations import MAX_TTL_MS
from ..exceptions import TopologyError
from ..management.records import DLX, NEGATIVE_IS_UNLIMITED, ROUTING_KEY, Policy, QueueDetail, applying, differences
from ..topology.applied import Adoption
from ..topology.ladder import LadderPlan
from .pending import exact_pending, listed
from .results import Finding, apply_fix, redeclare_fix
from .status import event_status

_OLDEST = (3, 10, 0)
#: RabbitMQ's default, in seconds. Neither AMQP nor the management API shows another one.
_CONSUMER_TIMEOUT = 30 * 60
#: RabbitMQ sends the messages that a queue has refused again after this time: its
#: ``dead_letter_worker_publisher_confirm_timeout``.
_AGAIN = "3 minutes"
#: An event queue needs a collector when this share of its maximum length is reached.
_NEARLY_FULL = 0.9
#: Keys by which a queue loses messages, or itself; with a TTL only where that is shorter than the queue's own.
_HARMFUL = ("expires", "max-length", "max-length-bytes")
#: Deliveries beyond the ladder's retries: the first attempt, and one to a worker that was lost.
_SPARE_DELIVERIES = 2


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


def dlx_missing(plan: LadderPlan, problem: str) -> Finding:
    """Return the finding that a queue has our dead-letter exchange neither by arguments nor by a policy."""
    found = f"It exists without our dead-letter exchange: every retry costs a publish with confirm. {problem}"
    hint = f"Run `{_adopt(plan)}`. {KEEP} The queue's exchange is {plan.names.dlx(plan.queue)}."
    return Finding("dlx-missing", "warning", plan.queue, found, hint)


def adoption_findings(
    plan: LadderPlan, adoption: Adoption | None, detail: QueueDetail | None, policies: Iterable[Policy]
) -> Iterator[Finding]:
    """Compare the recorded adoption with the policies in effect; needs the management API."""
    if detail is None:
        return
    by_policy = detail.policy_definition.get(DLX) == plan.names.dlx(plan.queue)
    if adoption is None or not adoption.in_force:
        if by_policy:
            found = f"The dead-letter exchange comes from the policy {detail.policy!r}; retries are still published."
            hint = f"No action needed: its failed tasks reach their delay queues. `{_adopt(plan)}` lets workers reject."
            yield Finding("dlx-by-policy", "note", plan.queue, found, hint)
        return
    others = [policy for policy in policies if policy.name != adoption.policy]
    if not by_policy:
        why = f"the policy {detail.policy!r} applies instead" if detail.policy else "no policy applies to it"
        found = f"It was adopted by the policy {adoption.policy!r}, and {why}: messages that workers reject are lost."
        yield Finding("adoption-lost", "error", plan.queue, found, f"Run `{_adopt(plan)}` now.")
        return
    base = applying(others, plan.queue, detail.type, adoption.base)
    changed = differences(adoption.base_definition, base.definition if base else {})
    if changed:
        name = base.name if base else adoption.base
        found = f"The policy {name!r}, merged into that of its adoption, has changed: {', '.join(changed)}."
        yield Finding("adoption-outdated", "warning", plan.queue, found, f"Run `{_adopt(plan)}`.")


def _adopt(plan: LadderPlan) -> str:
    return command(f"adopt --queue {plan.queue}")


def policy_findings(
    queues: Iterable[Queue], details: Mapping[str, QueueDetail], policies: Iterable[Policy], connection: Connection,
    delay: AppState,
) -> Iterator[Finding]:  # fmt: skip
    """Report the policies that harm ``queues``, which are managed queues, and a policy that protects them."""
    harmed: dict[tuple[str | None, str | None], dict[str, dict[str, Any]]] = defaultdict(dict)
    for queue in queues:
        detail = details.get(queue.name)
        if detail and (found := _harm(queue.arguments, detail.policy_definition)):
            harmed[detail.policy, detail.operator_policy][queue.name] = found
    for (policy, operator), found_by_name in sorted(harmed.items(), key=str):
        names = sorted(found_by_name)
        keys = json.dumps({key: value for found in found_by_name.values() for key, value in found.items()})
        kinds = (("policy", policy), ("operator policy", operator))
        by = " with the ".join(f"{kind} {name!r}" for kind, name in kinds if name)
        text = f"The {by} sets {keys} on {listed(names)}: messages there are lost, or return early."
        hint = _fix(policies, policy, connection.virtual_host or "/", delay.settings.prefix)
        yield Finding("policy", "error", policy or operator or "policies", text, hint)


def _harm(arguments: Mapping[str, Any], definition: Mapping[str, Any]) -> dict[str, Any]:
    found = {key: definition[key] for key in _HARMFUL if key in definition and f"x-{key}" not in arguments}
    if _changes_key(arguments, definition):
        found[ROUTING_KEY] = definition[ROUTING_KEY]
    limit = definition.get("delivery-limit")
    if isinstance(limit, int) and 0 <= limit < arguments.get("x-delivery-limit", 0):  # RabbitMQ takes the smaller one
        found["delivery-limit"] = limit
    ttl = definition.get("message-ttl")
    if isinstance(ttl, int) and ttl < arguments.get("x-message-ttl", MAX_TTL_MS):
        found["message-ttl"] = ttl
    return found


def _changes_key(arguments: Mapping[str, Any], definition: Mapping[str, Any]) -> bool:
    return ROUTING_KEY in definition and f"x-{ROUTING_KEY}" not in arguments and f"x-{DLX}" in arguments


def key_findings(queue: str, detail: QueueDetail | None) -> Iterator[Finding]:
    """Report a policy that changes the routing key of rejected messages, which selects the next tier."""
    if detail is not None and _changes_key(detail.arguments, detail.policy_definition):
        by = detail.policy or detail.operator_policy
        sets = f"The policy {by!r} sets {ROUTING_KEY}"
        text = f"{sets}: retries always take the first tier, and unknown tasks loop."
        hint = f"Remove {ROUTING_KEY} from the policy, or narrow its pattern."
        yield Finding("dead-letter-key", "error", queue, text, hint)


def _fix(policies: Iterable[Policy], harmful: str | None, vhost: str, prefix: str) -> str:
    if harmful is None:
        return "Narrow the operator policy's pattern: no other policy can override it."
    own = f"^({re.escape(prefix)}\\..*|.*\\.retry\\.[0-9]+\\..*|.*\\.quarantine)$"
    definition = json.dumps({"message-ttl": MAX_TTL_MS})  # without an effect
    priority = 1 + max((policy.priority for policy in policies), default=0)
    command = shlex.join(["rabbitmqctl", "set_policy", "-p", vhost, "rmq-delay-own", own, definition])
    return (
        f"Narrow its pattern; or set this policy on the managed queues instead: {command} --apply-to queues "
        f"--priority {priority}"
    )


def time_out_findings(delay: AppState) -> Iterator[Finding]:
    """Report tasks without a time limit below the default time-out: with ``acks_late`` it applies to them."""
    limits = {task.name: task.time_limit for task in delay.retryable_tasks()}
    names = sorted(name for name, limit in limits.items() if limit is None or not 0 < limit < _CONSUMER_TIMEOUT)
    if names:
        found = (
            f"These tasks have no time_limit below 30 minutes: {listed(names, 5)}. From one that runs for longer than "
            "its consumer_timeout (30 minutes by default) RabbitMQ takes the message back, and the worker reconnects."
        )
        hint = (
            "If a task takes that long, set consumer_timeout in rabbitmq.conf to more than the longest one takes; or "
            "set time_limit."
        )
        yield Finding("consumer-timeout", "note", "consumer_timeout", found, hint)


def dead_letters_waiting(delay: AppState, details: Mapping[str, QueueDetail], only: Collection[str]) -> dict[str, int]:
    """Return the waiting dead letters of all queues of the app and of its prefix, by name; none without any.

    Only the management API reports them (``details``). ``only``: those that belong to these origin queues, if any.
    """
    prefix, own = delay.settings.prefix, {*delay.app.amqp.queues, delay.settings.exhausted_queue}
    found = {
        name: detail.dead_letters_waiting
        for name, detail in sorted(details.items())
        if detail.dead_letters_waiting and (name in own or detail.belongs_to(prefix))
    }
    return {name: count for name, count in found.items() if not only or {name, details[name].target} & {*only}}


def dead_letter_findings(
    delay: AppState, details: Mapping[str, QueueDetail], only: Collection[str]
) -> Iterator[Finding]:
    """Report dead letters that no queue has taken."""
    for name, count in dead_letters_waiting(delay, details, only).items():
        target = details[name].target
        found = f"{count} dead letters wait in {name} because no queue has taken them."
        full = f"If {target} is full, drain it" if target else "Empty a full target queue"
        stay = f"If they stay, run `{command('apply', delay.app)}`."
        hint = f"{full}: RabbitMQ sends them again after up to {_AGAIN}. {stay}"
        yield Finding("dead-letters-waiting", "warning", target or name, found, hint)


def event_findings(connection: Connection, delay: AppState) -> Iterator[Finding]:
    """Report an event queue that is nearly full."""
    found = event_status(connection, delay)
    most = delay.settings.events.max_length
    if found is not None and found.waiting is not None and found.waiting >= _NEARLY_FULL * most:
        what = f"{found.waiting} of at most {most} events wait: the oldest are dropped."
        hint = "Start a collector (`manage.py rmq_delay_collect`), or set events to False."
        yield Finding("events-unread", "warning", found.queue, what, hint)


def exact_findings(connection: Connection, delay: AppState, queues: Iterable[str]) -> Iterator[Finding]:
    """Report problems of the exact delays of the settings, also of the ways to the origin ``queues``."""
    exact = delay.exact
    try:
        waiting = exact_pending(connection, exact, queues)
    except TopologyError as error:
        yield Finding("exact-topology", "error", f"{delay.setting}.exact_delays", str(error), "See the message.")
        return
    for each in waiting.conflicts:
        yield Finding("exact-conflict", "error", waiting.queue, each.difference, redeclare_fix())
    if waiting.create:
        yield Finding("exact-missing", "error", waiting.queue, waiting.missing, apply_fix())
    for queue in filter(None, (topology.consumed for topology in exact.topologies)):
        if (count := unconsumed(connection, queue)) is not None:
            hint = "Start a worker of this app: each worker releases the messages that are due."
            found = f"No worker consumes it; {count} wait there."
            yield Finding("exact-unconsumed", "error" if count else "warning", queue, found, hint)
