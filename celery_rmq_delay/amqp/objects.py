"""Exchanges, queues and bindings as plain data."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

__all__ = ["UNLIMITED_DELIVERIES", "Arguments", "Binding", "Exchange", "Objects", "Queue", "arguments"]

Arguments = tuple[tuple[str, Any], ...]

#: On quorum queues every inspection of a message counts as a delivery, for which managed queues must never drop one.
UNLIMITED_DELIVERIES = 1_000_000_000


def arguments(values: Mapping[str, Any]) -> Arguments:
    """Return arguments in their hashable form."""
    return tuple(sorted(values.items()))


@dataclass(frozen=True)
class Exchange:
    """A durable exchange."""

    name: str
    type: Literal["direct", "fanout", "headers", "topic", "x-delayed-message"]
    alternate: str | None = None
    #: The type that an exchange of type ``x-delayed-message`` routes by.
    delays: str | None = None
    #: Whether it is deleted with the last binding from it.
    auto_delete: bool = False

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of its declaration."""
        found = {"alternate-exchange": self.alternate, "x-delayed-type": self.delays}
        return {name: value for name, value in found.items() if value}


@dataclass(frozen=True)
class Queue:
    """A durable queue."""

    name: str
    declared: Arguments = ()

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of its declaration."""
        return dict(self.declared)


@dataclass(frozen=True)
class Binding:
    """A binding of a queue or an exchange to the exchange ``source``."""

    source: str
    destination: str
    to: Literal["queue", "exchange"] = "queue"
    key: str = ""
    declared: Arguments = ()

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of the binding."""
        return dict(self.declared)

    @property
    def ends(self) -> tuple[str, str]:
        """(source, destination)."""
        return self.source, self.destination

    @property
    def text(self) -> str:
        """The binding as text, for display."""
        return f"{self.source} -> {self.destination}" + (f" ({self.key})" if self.key else "")


@dataclass(frozen=True)
class Objects:
    """Objects of one topology, in the order in which they can be declared."""

    exchanges: tuple[Exchange, ...] = ()
    queues: tuple[Queue, ...] = ()
    bindings: tuple[Binding, ...] = ()

    def __add__(self, other: Objects) -> Objects:
        return Objects(
            _unique(self.exchanges, other.exchanges),
            _unique(self.queues, other.queues),
            _unique(self.bindings, other.bindings),
        )

    def without(self, known: Container[Exchange | Queue | Binding]) -> Objects:
        """Return the objects that are not in ``known``."""
        return Objects(
            tuple(each for each in self.exchanges if each not in known),
            tuple(each for each in self.queues if each not in known),
            tuple(each for each in self.bindings if each not in known),
        )

    def __iter__(self) -> Iterator[Exchange | Queue | Binding]:
        yield from self.exchanges
        yield from self.queues
        yield from self.bindings


def _unique(first: tuple[Any, ...], second: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(dict.fromkeys((*first, *second)))
