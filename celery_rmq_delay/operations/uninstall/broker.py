"""What the broker has at an uninstall: whether an object can be deleted, and the options."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...amqp import apply
from ...commands import command
from ...durations import format_ms
from ...names import parse_delay_queue
from ..steps import Problem, Runner, delete_queue
from .inventory import Listing, existing
from .leftovers import Report

if TYPE_CHECKING:
    from kombu import Connection

    from ...management.client import Management

USE_MANAGEMENT = "Use the management API (--management-url), or --no-management to skip this check."
_RELEASE = "Wait (--wait), or put them into their queue now with --release; then run the command again."


@dataclass(frozen=True)
class Request:
    """The options of an uninstall.

    ``only``: these origin queues, and nothing that queues share. ``release``: put waiting messages into their queues
    now, with their due time as eta. ``wait_ms``: how long to wait until they have returned by themselves.
    ``delete_origin``: delete origin queues that were declared with our dead-letter exchange, if they are empty and
    unused. ``discard_events``: delete the events queue even if it is not empty. ``check_hidden``: keep queues whose
    hidden messages are unknown because there is no management API.
    """

    only: tuple[str, ...] = ()
    release: bool = False
    wait_ms: int = 0
    delete_origin: bool = False
    discard_events: bool = False
    dry_run: bool = False
    check_hidden: bool = True


class Broker(Runner):
    """The broker of an uninstall: what it has, and the runner of the steps that change it."""

    def __init__(self, connection: Connection, request: Request, management: Management | None) -> None:
        super().__init__(connection, request.dry_run)
        self.request, self.management = request, management
        self.report = Report(request.dry_run, deleted=self.deleted, left=self.left)
        self.listing = self.listed()

    def listed(self) -> Listing | None:
        """Return what the management API lists now; None without it."""
        return None if self.management is None else Listing.of(self.management)

    def waiting(self, queues: Iterable[str]) -> dict[str, int]:
        """Return the ready messages by queue, of those that have any."""
        return {name: count for name, count in existing(self.connection, [*queues]).items() if count}

    def hidden(self, name: str) -> int | None:
        """Return how many messages of a queue AMQP does not report; None where that is unknown."""
        if self.listing is None:
            return None if self.request.check_hidden else 0
        detail = self.listing.queues.get(name)
        return max(detail.dead_letters_waiting, detail.held or 0) if detail else 0

    def exists(self, exchange: str) -> bool:
        """Return whether an exchange exists."""
        return apply.exchange_exists(self.connection, exchange)

    def empty(self, queues: Iterable[str]) -> bool:
        """Return whether queues in which messages wait can all be deleted; report those that cannot."""
        problems = {name: problem for name in queues if (problem := self._problem(name))}
        for name, problem in problems.items():
            self.leave("queue", name, *problem)
        return not problems

    def _problem(self, name: str) -> Problem | None:
        """Return why a queue cannot be deleted."""
        found = existing(self.connection, [name])
        if not found:
            return None
        if found[name] and not (self.dry and self.request.release):
            tier = parse_delay_queue(name)
            until = f", {format_ms(tier.ttl_ms)} at most" if tier else ""
            return Problem(f"{found[name]} messages wait in it{until}.", _RELEASE)
        hidden = self.hidden(name) if is_quorum(name) else 0
        if hidden is None:
            return Problem("Only the management API reports whether a quorum queue is empty.", USE_MANAGEMENT)
        if hidden:
            return Problem(f"{hidden} messages that were due wait for a target queue.", f"Run `{command('doctor')}`.")
        return None

    def bound(self, exchange: str) -> list[str]:
        """Return the names of what is bound to an exchange; none without the management API."""
        bindings = self.management.bindings() if self.management is not None else {}
        return sorted(destination for source, destination in bindings if source == exchange)

    def delete_queues(self, queues: Collection[str]) -> bool:
        """Delete queues in which messages wait, if none has any; return whether all are gone."""
        return self.empty(queues) and self.run_all(map(delete_queue, queues))


def is_quorum(name: str) -> bool:
    """Return whether the name of a queue in which messages wait is that of a quorum queue."""
    tier = parse_delay_queue(name)
    return tier.queue_type == "quorum" if tier else ".quorum." in name
