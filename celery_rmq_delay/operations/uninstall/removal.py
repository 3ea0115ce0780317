"""Remove the ladders of origin queues, and then the objects that queues share."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from ...amqp import apply
from ...amqp.apply import consumer_count, inspect_queue
from ...amqp.objects import Binding, Objects
from ...amqp.record import locked_record
from ...app.queues import has_argument
from ...app.state import AppState
from ...commands import command
from ...exceptions import AdoptionError, PublishError
from ...management.records import DLX, find_ours
from ...names import moving, quarantine
from ...topology.applied import Applied
from ...topology.common import undeliverable
from ...topology.exact.alternatives import Hold, Plugin
from ...topology.exact.base import arrivals
from ...topology.exact.levels import Levels
from .. import deletion as steps
from ..adoption import Adopter
from ..migration.service import poison_queue
from .broker import USE_MANAGEMENT, Broker, Exact, Origin, existing, renew

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
            broker.run(map(steps.delete_exchange, origin.exchanges))
            if not broker.run_all(map(steps.delete_queue, origin.tiers)):
                return False
            for tier_index in range(1, origin.highest_tier + 1):
                broker.take(steps.unbind(queue, names.returns, origin.plan.return_binding(tier_index).key))
            self._remove_quarantine(queue)
            if not stays:
                broker.run(map(steps.delete_exchange, (names.dlx(queue), names.other(queue))))
            for name in (moving(names.record(queue)), names.record(queue)):  # the lock ends with the last one
                broker.take(steps.drop_queue(name))
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
        with locked_record(self.connection, queue, steps.LOCK_TIMEOUT, create=False) as (_, record):
            if record.value is not None:
                record.save(replace(Applied.from_json(record.value), bound=None, reason_routing=None).to_json())
            self.broker.fence = record.check
            try:
                yield
            finally:
                self.broker.fence = steps.no_fence

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
            self.broker.deleted.append(steps.Deleted("policy", policy))
        return True

    def _stays(self, queue: str) -> bool:
        """Return whether a queue still dead-letters to our exchange; on request, delete it."""
        found = inspect_queue(self.connection, queue)
        if found is None or not self._dead_letters(queue):
            return False
        problem = self._problem(queue, found)
        if problem is None:
            if self.broker.take(steps.delete_queue(queue)):
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
            self.broker.take(steps.delete_queue(name))


_STOP = "Stop all workers for the run, then start them again."


class Shared:
    """Removes exact delays, the exchanges that return messages, and the exhausted and the events queue."""

    def __init__(self, delay: AppState, broker: Broker, exact: Exact, origins: Iterable[str]) -> None:
        self.settings, self.names, self.broker, self.exact = delay.settings, delay.settings.names, broker, exact
        self.connection, self.request = broker.connection, broker.request
        self.poison = poison_queue(delay)
        known = delay.app.amqp.queues
        streams = {name for name, each in known.items() if (each.queue_arguments or {}).get("x-queue-type") == "stream"}
        #: The queues to which messages may have returned.
        self.queues = sorted({*known, *origins} - streams)

    def remove(self, *, ladders_gone: bool, staying: Sequence[str]) -> None:
        """Delete all that is no longer needed.

        ``ladders_gone``: no message returns from a tier. ``staying``: the origin queues whose rejected messages go to
        the exhausted queue.
        """
        levels = [each for each in self.exact.levels if self._levels(each)]
        loops = [self.broker.delete_queues([each.delay, each.wait]) for each in self.exact.loops]
        held = all([self._hold(), self._plugin()])
        returning: dict[str, list[str]] = {
            each.delivery: [each.binding(name).key for name in self.queues] for each in levels
        }
        arrived = held and len(levels) == len(self.exact.levels) and self.broker.delete_queues(self.exact.dues)
        if arrived:
            returning[arrivals(self.names)] = self.queues
        if ladders_gone:
            returning[self.names.returns] = []
        everything = all(loops) and arrived and ladders_gone
        net = undeliverable(self.names)
        if self._returning(returning) and everything:
            self.broker.run([steps.unbind(self.settings.exhausted_queue, net, ""), self._exchange(net)])
        elif self.broker.exists(net):
            self.broker.leave("exchange", net, "It takes messages whose queue is gone from other objects.", steps.AGAIN)
            staying = [*staying, net]
        self._last_queues(staying)

    def _levels(self, levels: Levels) -> bool:
        """Delete levels from the highest on: a message that arrives meanwhile finds the lower ones."""
        queues = [*reversed(levels.holding())]
        if not self.broker.empty(queues):
            return False
        pairs = (step for name in queues for step in (steps.delete_exchange(name), steps.delete_queue(name)))
        # The lowest queue, which is deleted last, shows the use as the mark does.
        return self.broker.run([steps.delete_exchange(levels.mark), *pairs])

    def _hold(self) -> bool:
        if self.exact.hold is not None:
            return self.broker.delete_queues(self.exact.hold)
        name = arrivals(self.names)
        used = Hold.name in self.settings.exact.topologies and self.broker.exists(name)
        if used and self.request.check_hidden:
            reason = "Only the management API lists the queues of hold, whose messages return by it."
            self.broker.leave("exchange", name, reason, USE_MANAGEMENT)
            return False
        return True

    def _plugin(self) -> bool:
        exchanges = Plugin(self.exact.options[0]).frame().exchanges
        (name,) = (each.name for each in exchanges if each.delays)
        if not self.broker.exists(name):
            return True
        listing = self.broker.listing
        held = None if listing is None else listing.exchanges.get(name, 0)
        if held or held is None:
            reason = f"{held} messages wait in it." if held else "Only the management API reports its messages."
            self.broker.leave("exchange", name, reason, "Wait until they are delivered: they cannot be taken out.")
            return False
        return self.broker.take(steps.delete_exchange(name))

    def _returning(self, exchanges: Mapping[str, Sequence[str]]) -> bool:
        """Delete exchanges by which messages returned, when no such message is left; the values are binding keys.

        Stock Celery publishes a retry to the exchange from which its message came.
        """
        present = [name for name in exchanges if self.broker.exists(name)]
        if not present:
            return True
        if problem := self._may_need_them():
            for name in present:
                self.broker.leave("exchange", name, *problem)
            return False
        for name in present:
            for queue, key in zip(self.queues, exchanges[name], strict=False):
                self.broker.take(steps.unbind(queue, name, key))
        return self.broker.run_all(map(self._exchange, present))

    def _may_need_them(self) -> steps.Problem | None:
        """Publish the messages of all queues again; return (reason, fix) if others may have come by our exchanges."""
        there = existing(self.connection, self.queues)
        counts = {name: consumer_count(self.connection, name) for name in there}
        if consumed := ", ".join(name for name, count in counts.items() if count):
            reason = f"Workers consume {consumed}: their messages may have come by it, and their retries need it."
            return steps.Problem(reason, _STOP)
        if self.request.dry_run:
            return None
        try:
            for name in there:
                renew(self.connection, name)
        except PublishError as error:
            reason = f"A message may have come by it, and could not be published to its queue again: {error}"
            return steps.Problem(reason, steps.AGAIN)
        return None

    def _exchange(self, name: str) -> steps.Step:
        def used() -> steps.Problem:
            bound = ", ".join(self.broker.bound(name)) or "only the management API reports its name"
            reason = f"A queue or an exchange, unknown to this app, is bound to it: {bound}."
            return steps.Problem(reason, "Uninstall the other app of this prefix, or remove the binding.")

        return steps.delete_exchange(name, used)

    def _last_queues(self, staying: Sequence[str]) -> None:
        self._last(self.poison.name, "messages that could not be read", "Requeue them by hand, or delete the queue.")
        events = self.names.events
        if self.request.discard_events and not consumer_count(self.connection, events):
            self.broker.take(steps.drop_queue(events))
        else:
            self._last(events, "events", "Let the collector read them, or add --discard-events.")
        fix = f"Requeue them with `{command('exhausted requeue')}`, or discard them (`exhausted discard`)."
        self._last(self.settings.exhausted_queue, "exhausted tasks", fix, staying)

    def _last(self, name: str, what: str, fix: str, needed_by: Sequence[str] = ()) -> None:
        found = inspect_queue(self.connection, name)
        if found is None:
            return
        others = ", ".join(needed_by)
        if found.message_count:
            self.broker.leave("queue", name, f"It has {found.message_count} {what}.", fix)
        elif found.consumer_count:
            self.broker.leave("queue", name, f"It has {found.consumer_count} consumers.", "Stop the collector.")
        elif others:
            self.broker.leave("queue", name, f"It takes messages of {others}.", f"See {others}.")
        else:
            self.broker.take(steps.delete_queue(name))
