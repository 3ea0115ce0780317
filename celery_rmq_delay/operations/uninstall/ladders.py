"""Remove the ladders of one origin queue, and on request the queue itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ...amqp import apply
from ...amqp.apply import inspect_queue
from ...amqp.objects import Binding, Objects
from ...amqp.record import locked_record
from ...app.queues import has_argument
from ...exceptions import AdoptionError
from ...management.policies import DLX, find_ours
from ...names import moving, quarantine
from ...topology.applied import Applied
from ..adoption import Adopter
from ..steps import Deleted, delete_exchange, delete_queue, drop_queue, no_fence, unbind
from .broker import Broker
from .inventory import Origin, existing

if TYPE_CHECKING:
    from ...app.state import AppState

#: Seconds to wait for another process that applies the ladder.
LOCK_TIMEOUT = 30.0
DELETE_ORIGIN = (
    "Declare it with this argument in every process. Or, when it is empty and no process publishes to it or consumes "
    "it, run the command with --delete-origin, and then declare it as you like."
)


class Ladders:
    """Removes the ladders of origin queues."""

    def __init__(self, delay: AppState, broker: Broker) -> None:
        self.delay, self.broker = delay, broker
        self.names, self.connection, self.request = delay.settings.names, broker.connection, broker.request
        #: The origin queues that stay, whose rejected messages go to the exhausted queue.
        self.staying: list[str] = []

    def remove(self, origin: Origin) -> bool:
        """Delete the ladders of an origin queue; return whether no message can return from them any more.

        Changes nothing while a message waits in one of them.
        """
        queue, names, broker = origin.plan.queue, self.names, self.broker
        if not broker.empty(origin.tiers) or not self._detach(origin):
            return False
        stays = self._stays(queue)
        with self._locked(origin):
            if stays:
                self._redirect_rejections(origin)
            broker.run(map(delete_exchange, origin.exchanges))
            if not broker.run_all(map(delete_queue, origin.tiers)):
                return False
            for tier_index in range(1, origin.highest_tier + 1):
                broker.take(unbind(queue, names.returns, origin.plan.return_binding(tier_index).key))
            self._remove_quarantine(queue)
            if not stays:
                broker.run(map(delete_exchange, (names.dlx(queue), names.other(queue))))
            for name in (moving(names.record(queue)), names.record(queue)):  # the lock ends with the last one
                broker.take(drop_queue(name))
        return True

    @contextmanager
    def _locked(self, origin: Origin) -> Iterator[None]:
        """Hold the lock on the record, where it exists, so that no process applies the ladder meanwhile; check it.

        The record no longer counts as bound: if the run is interrupted, the next apply restores all bindings.
        """
        queue = origin.plan.record_queue()
        if self.request.dry_run or not existing(self.connection, [queue.name]):
            yield
            return
        with locked_record(self.connection, queue, LOCK_TIMEOUT, create=False) as (_, record):
            if record.value is not None:
                record.save(replace(Applied.from_json(record.value), bound=None, reason_routing=None).to_json())
            self.broker.fence = record.check
            try:
                yield
            finally:
                self.broker.fence = no_fence

    def _redirect_rejections(self, origin: Origin) -> None:
        """Route rejected messages of a queue that keeps its dead-letter exchange to the exhausted queue."""
        plan, other = origin.plan, self.names.other(origin.plan.queue)
        if self.request.dry_run or not self.broker.exists(self.names.dlx(plan.queue)):
            return
        self.broker.fence()
        apply.ensure_queue(self.connection, plan.exhausted_queue())
        exchange = tuple(each for each in plan.routing_exchanges if each.name == other)
        with self.connection.channel() as channel:
            apply.declare(channel, Objects(exchange, (), (Binding(other, plan.exhausted),)))

    def _detach(self, origin: Origin) -> bool:
        """Detach an adopted queue; return False where its policy stays."""
        queue, adoption = origin.plan.queue, origin.applied.adoption
        is_adopted = adoption is not None and adoption.in_force
        policy, management = self.names.policy(queue), self.broker.management
        if management is None:
            if is_adopted:
                reason = "It adopts the queue, and only the management API can delete it."
                self.broker.leave("policy", policy, reason, "Run the command with --management-url.")
            return not is_adopted
        try:
            if not is_adopted and find_ours(self.names, queue, management.policies()) is None:
                return True
            adopter = Adopter(self.delay, self.connection, management)
            plan = adopter.plan_undo(queue)
            if plan and not self.request.dry_run:
                adopter.undo(plan, force=True)  # no worker of this package consumes it, and others do not reply
        except AdoptionError as error:
            self.broker.leave("policy", policy, str(error), "See the message.")
            return False
        if plan.policy is not None:
            self.broker.deleted.append(Deleted("policy", policy))
        return True

    def _stays(self, queue: str) -> bool:
        """Return whether a queue still dead-letters to our exchange; on request, delete it."""
        found = inspect_queue(self.connection, queue)
        if found is None or not self._dead_letters(queue):
            return False
        problem = self._problem(queue, found)
        if problem is None:
            if self.broker.take(delete_queue(queue)):
                return False
            problem = "It could not be deleted."
        dlx = self.names.dlx(queue)
        reason = f"It was declared with the dead-letter exchange {dlx}, and arguments cannot be changed. {problem}"
        self.broker.leave("queue", queue, reason, DELETE_ORIGIN)
        for name in (dlx, self.names.other(queue)):
            self.broker.leave("exchange", name, f"It takes rejected messages of queue {queue}.", f"See queue {queue}.")
        self.staying.append(queue)
        return True

    def _problem(self, queue: str, found: Any) -> str | None:
        """Return why a queue with our dead-letter exchange is not deleted; None where it can be."""
        if not self.request.delete_origin:
            return ""
        if found.consumer_count or found.message_count:
            return f"It has {found.message_count} messages and {found.consumer_count} consumers."
        listing = self.broker.listing
        if listing is None:
            return None if not self.request.check_hidden else "Only the management API reports unacknowledged messages."
        detail = listing.queues.get(queue)
        held = max(detail.messages, self.broker.hidden(queue) or 0) if detail else 0
        return f"{held} of its messages are held by a worker or by the queue itself." if held else None

    def _dead_letters(self, queue: str) -> bool:
        """Return whether a queue dead-letters to our exchange, by an argument or by a policy that is not ours."""
        ours, listing = self.names.dlx(queue), self.broker.listing
        detail = listing.queues.get(queue) if listing is not None else None
        if detail is None:
            return has_argument(self.connection, queue, f"x-{DLX}", ours) is not False
        by_policy = detail.policy_definition.get(DLX) == ours and detail.policy != self.names.policy(queue)
        return detail.arguments.get(f"x-{DLX}") == ours or by_policy

    def _remove_quarantine(self, queue: str) -> None:
        name = quarantine(queue)
        count = self.broker.waiting([name]).get(name)
        if count and not self.request.dry_run:
            reason = f"{count} messages in it could not be put into queue {queue}."
            self.broker.leave("queue", name, reason, f"Check whether queue {queue} exists, and its length limit.")
        else:
            self.broker.take(delete_queue(name))
