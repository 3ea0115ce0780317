"""RabbitMQ's routing in memory: exchanges, bindings, alternate exchanges."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from amqp.exceptions import NotFound

from ..publish.calls import matches_topic

Destination = Literal["queue", "exchange"]


@dataclass(frozen=True)
class _Binding:
    to: Destination
    destination: str
    key: str
    arguments: tuple[tuple[str, Any], ...]

    def takes(self, kind: str, key: str, headers: Mapping[str, Any]) -> bool:
        if kind == "direct":
            return self.key == key
        if kind == "topic":
            return matches_topic(self.key, key)
        return kind == "fanout" or _headers_match(dict(self.arguments), headers)


@dataclass
class _Exchange:
    type: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    bindings: dict[_Binding, None] = field(default_factory=dict)

    @property
    def routes_by(self) -> str:
        return str(self.arguments.get("x-delayed-type", self.type))


class Exchanges:
    """The exchanges of one vhost. The default exchange leads to every queue by its name."""

    def __init__(self) -> None:
        self._known = {"": _Exchange("direct"), "amq.direct": _Exchange("direct"), "amq.topic": _Exchange("topic")}

    def declare(self, name: str, kind: str, arguments: Mapping[str, Any] | None, *, passive: bool) -> None:
        """Add an exchange; one that exists stays as it is. Raises `NotFound` if a passive one is missing."""
        if passive:
            self._get(name)
        else:
            self._known.setdefault(name, _Exchange(kind, dict(arguments or {})))

    def delete(self, name: str) -> None:
        """Remove an exchange, if it exists."""
        self._known.pop(name, None)

    def bind(
        self, source: str, to: Destination, destination: str, key: str, arguments: Mapping[str, Any] | None
    ) -> None:
        """Add a binding. Raises `NotFound` if an exchange is missing."""
        if to == "exchange":
            self._get(destination)
        self._get(source).bindings[_binding(to, destination, key, arguments)] = None

    def unbind(
        self, source: str, to: Destination, destination: str, key: str, arguments: Mapping[str, Any] | None
    ) -> None:
        """Remove a binding, if it exists."""
        if source in self._known:
            self._known[source].bindings.pop(_binding(to, destination, key, arguments), None)

    def forget_queue(self, queue: str) -> None:
        """Remove the bindings of a deleted queue."""
        for exchange in self._known.values():
            for binding in [each for each in exchange.bindings if (each.to, each.destination) == ("queue", queue)]:
                del exchange.bindings[binding]

    def delays(self, name: str) -> bool:
        """Return whether an exchange delays messages by their header ``x-delay``."""
        return self._get(name).type == "x-delayed-message"

    def route(self, name: str, key: str, headers: Mapping[str, Any]) -> list[str]:
        """Return the queues that a message reaches, each once. Raises `NotFound` if there is no such exchange."""
        self._get(name)
        queues: dict[str, None] = {}
        visited: set[str] = set()
        waiting = [name]
        while waiting:
            current = waiting.pop(0)
            if current in visited or current not in self._known:
                continue
            visited.add(current)
            if not current:
                queues[key] = None
                continue
            exchange = self._known[current]
            taken = [each for each in exchange.bindings if each.takes(exchange.routes_by, key, headers)]
            queues.update((each.destination, None) for each in taken if each.to == "queue")
            waiting += [each.destination for each in taken if each.to == "exchange"]
            if not taken and (alternate := exchange.arguments.get("alternate-exchange")):
                waiting.append(alternate)
        return list(queues)

    def _get(self, name: str) -> _Exchange:
        if name not in self._known:
            raise NotFound(f"NOT_FOUND - no exchange {name!r}", reply_code=404)
        return self._known[name]


def _binding(to: Destination, destination: str, key: str, arguments: Mapping[str, Any] | None) -> _Binding:
    return _Binding(to, destination, key or "", tuple(sorted((arguments or {}).items())))


def _headers_match(wanted: dict[str, Any], headers: Mapping[str, Any]) -> bool:
    how = str(wanted.pop("x-match", "all"))
    if not how.endswith("-with-x"):
        wanted = {name: value for name, value in wanted.items() if not name.startswith("x-")}
    found = [name in headers and value in (None, headers[name]) for name, value in wanted.items()]
    return any(found) if how.startswith("any") else all(found)
