"""The function `uninstall` behind the command ``rmq-delay uninstall``.

The order in which nothing is lost: waiting messages go to their queues; rejected messages go to the exhausted queue;
then what leads into a delay queue is deleted before the queue, and the record of a queue's ladders after them. The
exchanges by which messages return are deleted when no message that came by them is left, and those of undeliverable
and exhausted messages last. Each step can be repeated, so the next run continues after a crash.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from operator import not_

from kombu import Connection

from ...amqp.apply import consumer_count
from ...app.state import AppState
from ...exceptions import RmqDelayError
from ...management.client import Management
from ...names import quarantine
from .. import deletion
from ..deletion import Kind
from ..migration.address import Source, of_tiers, source
from ..migration.service import poison_queue
from ..results import listed_counts, poll
from .broker import Broker, Report, Request, exact, existing, is_quorum, origins, quarantined, send_home
from .removal import Ladders, Shared

#: Seconds between two checks of what still waits.
_PAUSE = 0.5
_NEEDED = ("Messages that wait, or other objects that are left, need it.", "It is deleted after them.")
_UNKNOWN = ("It has our prefix, and is unknown to this app.", "Delete it by hand, if no other app needs it.")


def uninstall(
    delay: AppState, connection: Connection, request: Request, management: Management | None = None, *,
    stopped: Callable[[], bool] = bool,
) -> Report:  # fmt: skip
    """Put waiting messages back into their queues, and delete every object of this package.

    Return a report of what could not be deleted. ``stopped`` is called often; when it returns true, the run ends before
    it deletes anything. Raises `RmqDelayError` if a worker of this package consumes, as it would declare them again.
    """
    broker = Broker(connection, request, management)
    _Uninstall(delay, broker, stopped).run()
    return broker.report


class _Uninstall:
    def __init__(self, delay: AppState, broker: Broker, stopped: Callable[[], bool]) -> None:
        self.delay, self.broker, self.stopped = delay, broker, stopped
        self.connection, self.request = broker.connection, broker.request
        self.origins = origins(self.connection, delay, self.request.only, broker.listing)
        self.exact = exact(delay, broker.listing)

    def run(self) -> None:
        """Take all steps. Fills in the report."""
        self._check_workers()
        self._check_held()
        self._wait()
        self._return_messages()
        if self.stopped():
            raise RmqDelayError("Interrupted: nothing was deleted. Run the command again.")
        self._settle()
        ladders = Ladders(self.delay, self.broker)
        gone = [ladders.remove(each) for each in self.origins]
        if not self.request.only:
            self._check_workers()  # one that has started meanwhile has declared objects that need the shared ones
            queues = [each.plan.queue for each in self.origins]
            shared = Shared(self.delay, self.broker, self.exact, queues)
            shared.remove(ladders_gone=all(gone), staying=ladders.staying)
        elif self.request.delete_origin:
            self._remove_ways()
        self._verify()

    def _remove_ways(self) -> None:
        """Delete the due queues of the origin queues that are gone."""
        there = existing(self.connection, [each.plan.queue for each in self.origins])
        for each in self.origins:
            if each.plan.queue not in there:
                self.broker.delete_queues(self.exact.dues_of(each.plan.queue))

    def _check_workers(self) -> None:
        """Refuse while a worker of this package consumes."""
        queues = [*(quarantine(each.plan.queue) for each in self.origins), *(each.wait for each in self.exact.loops)]
        if found := listed_counts({name: consumer_count(self.connection, name) for name in queues}):
            self._refuse(f"Workers of this package consume {found}, and would declare everything again. Stop them")

    def _check_held(self) -> None:
        """Refuse while a worker that no longer consumes may still reject a message into a ladder."""
        if found := self._held():
            self._refuse(f"A client without a consumer, such as a worker that is stopping, holds messages of {found}")

    def _refuse(self, problem: str) -> None:
        text = f"{problem}, wait until their processes have ended, and run the command again."
        if not self.request.dry_run:
            raise RmqDelayError(text)
        self.broker.report.refused = text

    def _held(self) -> str:
        """Return the queues without consumers with unacknowledged messages, by up-to-date statistics.

        AMQP counts the cancelled consumer of a quorum queue as long as it holds messages.
        """
        management = self.broker.management
        if management is None:
            return ""
        names = [name for each in self.origins for name in (each.plan.queue, quarantine(each.plan.queue))]

        def inspect() -> str:
            listed = management.queues()
            counts = {name: listed[name].unacked for name in names if name in listed}
            held = {name: count for name, count in counts.items() if count}
            return listed_counts({name: count for name, count in held.items() if not management.consumers(name)})

        return poll(0 if self.request.dry_run else 2 * deletion.STATISTICS, inspect, _PAUSE, until=not_)

    def _sources(self) -> Iterator[Source]:
        """Yield the queues in which messages wait, in the order in which messages pass them."""
        for each in self.origins:
            yield of_tiers(each.tiers)
        if not self.request.only:
            for options in self.exact.options:
                yield source("levels", self.delay, self.connection, options)
                yield source("loop", self.delay, self.connection, options)
            if self.exact.hold:
                yield source("hold", self.delay, self.connection, self.exact.options[0], named=self.exact.hold)

    def _wait(self) -> None:
        if self.request.wait_ms and not self.request.dry_run:
            queues = [name for each in self._sources() for name in each.queues]
            poll(self.request.wait_ms / 1000, lambda: self.stopped() or not self.broker.waiting(queues), _PAUSE)

    def _return_messages(self) -> None:
        sources = [quarantined(each.plan.queue) for each in self.origins]
        if self.request.release:
            sources = [*self._sources(), *sources]
        for each in sources:
            waiting = self.broker.waiting(each.queues)
            if self.request.dry_run:
                self.broker.report.moved.update(waiting)
            elif waiting and not self.stopped():
                found = send_home(self.connection, each, poison_queue(self.delay), self.stopped)
                self.broker.report.moved.update(found.delivered)
                for name in self.broker.waiting(each.queues) if found.left else ():
                    self.broker.leave("queue", name, "; ".join(found.left), "Solve this, and run it again.")

    def _settle(self) -> None:
        """Wait until dead letters in transit have arrived, and the management API reports those that have not."""
        named = [*self.exact.dues, *(name for each in self._sources() for name in each.queues if is_quorum(name))]
        if self.request.delete_origin:
            named += [each.plan.queue for each in self.origins]
        if not self.request.dry_run and existing(self.connection, named):
            time.sleep(deletion.STATISTICS)
            self.broker.listing = self.broker.listed()

    def _verify(self) -> None:
        """Report what still exists: all with the prefix if the management API lists them, else what is known."""
        report, listing, known = self.broker.report, self.broker.listed(), {*self._known()}
        if listing is not None:
            report.verified = True
            there = {*listing.ours(self.delay.settings.prefix)}
            if self.request.only:
                there &= known
        else:
            queues = existing(self.connection, [name for kind, name in known if kind == "queue"])
            there = {(kind, name) for kind, name in known if kind == "exchange" and self.broker.exists(name)}
            there |= {("queue", name) for name in queues}
        gone = {(each.kind, each.name) for each in report.deleted} if self.request.dry_run else set()
        for kind, name in sorted(there - gone):
            reason, fix = _NEEDED if (kind, name) in known else _UNKNOWN
            self.broker.leave(kind, name, reason, fix)

    def _known(self) -> Iterator[tuple[Kind, str]]:
        """Yield the objects that are deleted when nothing needs them."""
        for each in self.origins:
            yield from each.objects()
        if not self.request.only:
            yield from self.exact.objects()
