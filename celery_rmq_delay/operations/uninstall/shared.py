"""Remove the objects that queues share, the last ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from ...amqp.apply import consumer_count, inspect_queue
from ...commands import command
from ...exceptions import PublishError
from ...topology.common import undeliverable
from ...topology.exact.alternatives import Hold, Plugin
from ...topology.exact.base import arrivals
from ..migration.service import poison_queue
from ..steps import AGAIN, Problem, Step, delete_exchange, delete_queue, drop_queue, unbind
from .broker import USE_MANAGEMENT, Broker
from .inventory import Exact, existing
from .returning import renew

if TYPE_CHECKING:
    from ...app.state import AppState
    from ...topology.exact.levels import Levels

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
            self.broker.run([unbind(self.settings.exhausted_queue, net, ""), self._exchange(net)])
        elif self.broker.exists(net):
            self.broker.leave("exchange", net, "It takes messages whose queue is gone from other objects.", AGAIN)
            staying = [*staying, net]
        self._last_queues(staying)

    # -- exact delays ----------------------------------------------------------------------------------------------

    def _levels(self, levels: Levels) -> bool:
        """Delete levels from the highest on: a message that arrives meanwhile finds the lower ones."""
        queues = [*reversed(levels.holding())]
        if not self.broker.empty(queues):
            return False
        pairs = (step for name in queues for step in (delete_exchange(name), delete_queue(name)))
        # The lowest queue, which is deleted last, shows the use as the mark does.
        return self.broker.run([delete_exchange(levels.mark), *pairs])

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
        return self.broker.take(delete_exchange(name))

    # -- return ----------------------------------------------------------------------------------------------------

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
                self.broker.take(unbind(queue, name, key))
        return self.broker.run_all(map(self._exchange, present))

    def _may_need_them(self) -> Problem | None:
        """Publish the messages of all queues again; return (reason, fix) if others may have come by our exchanges."""
        there = existing(self.connection, self.queues)
        counts = {name: consumer_count(self.connection, name) for name in there}
        if consumed := ", ".join(name for name, count in counts.items() if count):
            reason = f"Workers consume {consumed}: their messages may have come by it, and their retries need it."
            return Problem(reason, _STOP)
        if self.request.dry_run:
            return None
        try:
            for name in there:
                renew(self.connection, name)
        except PublishError as error:
            reason = f"A message may have come by it, and could not be published to its queue again: {error}"
            return Problem(reason, AGAIN)
        return None

    def _exchange(self, name: str) -> Step:
        def used() -> Problem:
            bound = ", ".join(self.broker.bound(name)) or "only the management API reports its name"
            reason = f"A queue or an exchange, unknown to this app, is bound to it: {bound}."
            return Problem(reason, "Uninstall the other app of this prefix, or remove the binding.")

        return delete_exchange(name, used)

    # -- the last queues -------------------------------------------------------------------------------------------

    def _last_queues(self, staying: Sequence[str]) -> None:
        self._last(self.poison.name, "messages that could not be read", "Requeue them by hand, or delete the queue.")
        events = self.names.events
        if self.request.discard_events and not consumer_count(self.connection, events):
            self.broker.take(drop_queue(events))
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
            self.broker.take(delete_queue(name))
