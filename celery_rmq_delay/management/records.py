"""Queues, bindings and policies of the management API as plain data, and the policy that adopts a queue."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..amqp.capabilities import Version
from ..amqp.objects import Binding
from ..exceptions import AdoptionError
from ..names import Names, parse_delay_queue

DLX, ROUTING_KEY = "dead-letter-exchange", "dead-letter-routing-key"
#: From this version on a negative delivery limit means no limit; before, it means 0.
NEGATIVE_IS_UNLIMITED = (4, 0, 0)


def pattern_of(queue: str) -> str:
    """Return the pattern that matches this queue's name and no other."""
    return f"^{re.escape(queue)}$"


def wanted_keys(names: Names, queue: str, queue_type: str) -> dict[str, Any]:
    """Return the policy keys by which a queue's rejected messages advance through its ladder."""
    safe = {"dead-letter-strategy": "at-least-once", "overflow": "reject-publish"}
    return {DLX: names.dlx(queue), **(safe if queue_type == "quorum" else {})}


def applying(policies: Iterable[Policy], queue: str, queue_type: str, seen: str | None = None) -> Policy | None:
    """Return the policy with the highest priority that matches a queue.

    ``seen``: the one that the broker reports; decides between equal priorities, and where Python cannot read a pattern.
    """
    fitting = [
        policy
        for policy in policies
        if (fits := policy.fits(queue, queue_type)) or (fits is None and policy.name == seen)
    ]
    return max(fitting, key=lambda policy: (policy.priority, policy.name == seen), default=None)


@dataclass(frozen=True)
class PolicyPlan:
    """The policy to write for a queue.

    ``present`` is our existing policy, ``base`` the one of others that it is merged from (which would apply without
    ours), ``operator_policy`` the name of the operator policy that still applies beside it.
    """

    queue: str
    queue_type: str
    policy: Policy
    present: Policy | None = None
    base: Policy | None = None
    operator_policy: str | None = None

    @property
    def changes(self) -> dict[str, tuple[Any, Any]]:
        """The changes of the queue's keys by user policies: (before, after) by key; None is not set."""
        now = self.present or self.base
        return differences(now.definition if now else {}, self.policy.definition)

    @property
    def is_written(self) -> bool:
        """Whether the broker has this very policy."""
        return self.present == self.policy

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "queue": self.queue,
            "policy": self.policy.name,
            **self.policy.to_json(),
            "changes": {key: {"from": before, "to": after} for key, (before, after) in self.changes.items()},
            "merged_from": self.base.name if self.base else None,
            "operator_policy": self.operator_policy,
        }


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return (before, after) by key where they differ; None is not set."""
    keys = sorted({*before, *after})
    return {key: (before.get(key), after.get(key)) for key in keys if before.get(key) != after.get(key)}


def plan_policy(names: Names, detail: QueueDetail, policies: Iterable[Policy], *, replace: bool = False) -> PolicyPlan:
    """Return the policy that adopts a queue; ``replace``: also where another policy dead-letters it elsewhere.

    Raises `AdoptionError` where no policy can adopt it, or where it would override settings of others.
    """
    queue, policies = detail.name, list(policies)
    if detail.type not in ("classic", "quorum") or not detail.lasting:
        kind = detail.type if detail.lasting else "not lasting (not durable, exclusive or auto-delete)"
        raise AdoptionError(f"Queue {queue!r} is {kind}: only lasting classic and quorum queues can have a ladder.")
    wanted = wanted_keys(names, queue, detail.type)
    _check_arguments(detail, wanted)
    present = find_ours(names, queue, policies)
    others = [policy for policy in policies if policy.name != names.policy(queue)]
    base = applying(others, queue, detail.type, detail.policy)
    _check_base(queue, base, wanted, replace=replace)
    _check_operator(detail, [policy for policy in (present, base) if policy], wanted)
    merged = {key: value for key, value in (base.definition if base else {}).items() if key != ROUTING_KEY}
    # Also above those whose pattern Python cannot read.
    rivals = [policy.priority for policy in others if policy.fits(queue, detail.type) is not False]
    ours = Policy(names.policy(queue), pattern_of(queue), {**merged, **wanted}, max(rivals, default=0) + 1)
    return PolicyPlan(queue, detail.type, ours, present, base, detail.operator_policy)


def find_ours(names: Names, queue: str, policies: Iterable[Policy]) -> Policy | None:
    """Return the policy by which the queue was adopted; raises `AdoptionError` where it is not ours."""
    found = next((policy for policy in policies if policy.name == names.policy(queue)), None)
    if found and (found.pattern != pattern_of(queue) or found.definition.get(DLX) != names.dlx(queue)):
        raise AdoptionError(
            f"There is a policy {found.name!r} that this package did not write (pattern {found.pattern!r}, "
            f"{DLX} {found.definition.get(DLX)!r}). Rename it, or set another prefix."
        )
    return found


def _check_arguments(detail: QueueDetail, wanted: Mapping[str, Any]) -> None:
    """Refuse arguments that prevent a policy from working: they override policies and cannot be changed."""
    queue, found = detail.name, detail.arguments
    if found.get(f"x-{DLX}") == wanted[DLX] and f"x-{ROUTING_KEY}" not in found:
        raise AdoptionError(f"Queue {queue!r} has our dead-letter exchange as an argument: there is nothing to adopt.")
    for key in (*wanted, ROUTING_KEY):
        value = found.get(f"x-{key}")
        if value is not None and value != wanted.get(key):
            needs = f"{key}={wanted[key]}" if key in wanted else f"no {key}"
            raise AdoptionError(
                f"Queue {queue!r} has the argument x-{key}={value!r}, its ladder needs {needs}, and arguments "
                "override policies. Move to a new queue, or drain, delete and declare it again."
            )


def _check_base(queue: str, base: Policy | None, wanted: Mapping[str, Any], *, replace: bool) -> None:
    if base is None or replace:
        return
    elsewhere = base.definition.get(DLX, wanted[DLX])
    if elsewhere != wanted[DLX] or ROUTING_KEY in base.definition:
        key = base.definition.get(ROUTING_KEY)
        to = f"exchange {elsewhere!r}" + (f" with routing key {key!r}" if key is not None else "")
        raise AdoptionError(
            f"Queue {queue!r} dead-letters to {to} by the policy {base.name!r}. The adoption would end that: "
            "if you want that, use --replace."
        )


def _check_operator(detail: QueueDetail, known: Iterable[Policy], wanted: Mapping[str, Any]) -> None:
    """Refuse an operator policy that sets one of our keys to another value: it overrides every user policy."""
    if detail.operator_policy is None:
        return
    users = next((policy.definition for policy in known if policy.name == detail.policy), {})
    for key in (*wanted, ROUTING_KEY):
        value = detail.policy_definition.get(key)
        if value is not None and value != users.get(key) and value != wanted.get(key):
            raise AdoptionError(
                f"The operator policy {detail.operator_policy!r} sets {key}={value!r} for queue {detail.name!r}, and "
                f"its ladder needs {key}={wanted.get(key)!r}. Operator policies come first: ask its author."
            )


def effective_limit(argument: object, by_policy: object, version: Version) -> int | None:
    """Return the effective delivery limit of an argument and a policy; None is the broker's default."""
    limits = [limit for limit in (argument, by_policy) if isinstance(limit, int)]
    if limits and min(limits) < 0 and version >= NEGATIVE_IS_UNLIMITED:
        return max(limits)
    return min(limits, default=None)


@dataclass(frozen=True)
class QueueDetail:
    """A queue as reported by the API. Its statistics are up to ten seconds old.

    ``policy`` is the name of its user policy, ``policy_definition`` the result of its policy and operator policy.
    ``dead_letters_waiting`` counts dead-lettered messages that no queue has confirmed yet (quorum, at-least-once).
    ``held`` counts messages that the queue holds for a native retry (quorum, RabbitMQ 4.3), None where it is not
    reported; ``next_due_ms`` is when the next of them is due (ms since the epoch), None where none is held.
    """

    name: str
    type: str
    arguments: Mapping[str, Any]
    policy: str | None
    policy_definition: Mapping[str, Any]
    dead_letters_waiting: int
    operator_policy: str | None = None
    lasting: bool = True
    held: int | None = None
    next_due_ms: int | None = None
    #: All messages that may still be delivered: ready, unacked and held.
    messages: int = 0
    #: Those that a client holds.
    unacked: int = 0

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> QueueDetail:
        """Read one element of ``/api/queues``; missing keys (as without statistics) are empty."""
        return cls(
            name=required_text(data, "name"),
            type=str(data.get("type", "classic")),
            arguments=mapping(data.get("arguments")),
            policy=_some_text(data.get("policy")),
            policy_definition=mapping(data.get("effective_policy_definition")),
            dead_letters_waiting=int(data.get("messages_dlx") or 0),
            operator_policy=_some_text(data.get("operator_policy")),
            lasting=bool(data.get("durable", True)) and not data.get("exclusive") and not data.get("auto_delete"),
            held=_some_number(data.get("messages_delayed")),
            next_due_ms=_some_number(data.get("next_delayed_at")),
            messages=int(data.get("messages") or 0),
            unacked=int(data.get("messages_unacknowledged") or 0),
        )

    def belongs_to(self, prefix: str) -> bool:
        """Return whether it is a queue of this package with a prefix; the origin queues are not."""
        tier, origin = parse_delay_queue(self.name), self.name.removesuffix(".quarantine")
        is_quarantine = origin != self.name and self.arguments.get("x-dead-letter-exchange") == f"{prefix}.{origin}.dlx"
        return self.name.startswith(f"{prefix}.") or (tier is not None and tier.prefix == prefix) or is_quarantine

    @property
    def target(self) -> str | None:
        """The queue to which a delay queue returns its messages; None where its declaration does not name it."""
        tier, key = parse_delay_queue(self.name), self.arguments.get("x-dead-letter-routing-key")
        return tier.queue if tier else str(key) if key else None


class Bindings(dict[tuple[str, str], list[Binding]]):
    """The bindings of a vhost, by (source, destination)."""

    def missing(self, planned: Iterable[Binding]) -> list[Binding]:
        """Return the bindings of ``planned`` that do not exist."""
        return [each for each in planned if each not in self.get(each.ends, ())]

    def present(self, unwanted: Iterable[Binding]) -> list[Binding]:
        """Return the bindings of ``unwanted`` that exist."""
        return [each for each in unwanted if each in self.get(each.ends, ())]


def _some_text(value: object) -> str | None:
    return str(value) if value else None


def _some_number(value: object) -> int | None:
    return value if isinstance(value, int) else None


def mapping(value: object) -> Mapping[str, Any]:
    """Return a JSON object; empty for anything else."""
    # Old brokers encode an empty object as [].
    return value if isinstance(value, dict) else {}


_OF_STREAMS = {"max-age", "stream-max-segment-size-bytes", "initial-cluster-size"}
#: A policy with one of these keys does not apply to a queue of this type at all. Measured on 3.10, 4.0 and 4.3.
_NOT_FOR = {
    "classic": {"dead-letter-strategy", "delivery-limit", *_OF_STREAMS},
    "quorum": {
        *("queue-mode", "ha-mode", "ha-params", "ha-sync-mode", "ha-promote-on-shutdown", "ha-promote-on-failure"),
        *("queue-master-locator", "max-priority"),
        *_OF_STREAMS,
    },
}


@dataclass(frozen=True)
class Policy:
    """A user policy of one vhost."""

    name: str
    pattern: str
    definition: Mapping[str, Any] = field(default_factory=dict)
    priority: int = 0
    apply_to: str = "queues"

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Policy:
        """Read one element of ``/api/policies``. Raises `KeyError`, `TypeError` or `ValueError` for invalid data."""
        name, pattern, apply_to = (required_text(data, key) for key in ("name", "pattern", "apply-to"))
        return cls(name, pattern, dict(data.get("definition") or {}), int(data.get("priority", 0)), apply_to)

    def to_json(self) -> dict[str, Any]:
        """Return the request body that writes the policy."""
        return {
            "pattern": self.pattern,
            "definition": dict(self.definition),
            "priority": self.priority,
            "apply-to": self.apply_to,
        }

    def fits(self, queue: str, queue_type: str) -> bool | None:
        """Return whether the policy can apply to a queue; None where Python cannot read the pattern.

        The broker matches the bytes of the name with PCRE, most of which Python supports.
        """
        if self.apply_to not in ("all", "queues", f"{queue_type}_queues"):
            return False
        if _NOT_FOR.get(queue_type, set()) & self.definition.keys():
            return False
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # for syntax that PCRE and Python interpret differently
            try:
                return re.search(self.pattern.encode(), queue.encode()) is not None
            except (re.error, Warning, ValueError, OverflowError, RecursionError):
                return None


def required_text(data: Mapping[str, Any], key: str) -> str:
    """Return a text of a JSON object. Raises `KeyError` where it is missing, `TypeError` where it is not a text."""
    if not isinstance(data[key], str):
        raise TypeError(key)
    return str(data[key])
