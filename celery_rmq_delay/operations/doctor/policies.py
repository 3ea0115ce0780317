"""Findings about policies that apply to managed queues and make them lose messages."""

from __future__ import annotations

import json
import re
import shlex
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ...durations import MAX_TTL_MS
from ...management.policies import DLX, ROUTING_KEY
from ..findings import Finding

if TYPE_CHECKING:
    from kombu import Connection

    from ...amqp.objects import Queue
    from ...app.state import AppState
    from ...management.records import Policy, QueueDetail

#: Keys by which a queue loses messages, or itself; with a TTL only where that is shorter than the queue's own.
_HARMFUL = ("expires", "max-length", "max-length-bytes")


def policy_findings(
    queues: Iterable[Queue],
    details: Mapping[str, QueueDetail],
    policies: Iterable[Policy],
    connection: Connection,
    delay: AppState,
) -> Iterator[Finding]:
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
        listed = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        text = f"The {by} sets {keys} on {listed}: messages there are lost, or return early."
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
