"""The policy that adopts a queue, as pure data, merged with the policy that applies now."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..exceptions import AdoptionError
from .records import Policy

if TYPE_CHECKING:
    from ..amqp.capabilities import Version
    from ..names import Names
    from .records import QueueDetail

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
