"""Queues, bindings and policies of the management API, as plain data."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..amqp.objects import Binding
from ..names import parse_delay_queue


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
