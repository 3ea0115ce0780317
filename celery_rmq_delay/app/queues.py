"""Origin queues: the app's queues, which the first process declares with a dead-letter exchange."""

from __future__ import annotations

import logging
import re
from typing import Any

from amqp import Channel as AMQPChannel
from amqp.exceptions import AccessRefused, ChannelError, NotFound, PreconditionFailed
from celery import Celery
from celery.app.amqp import Queues
from kombu import Connection
from kombu.entity import Queue

from ..amqp.apply import check_limit, inspect_queue
from ..amqp.connections import beside
from ..amqp.record import read_record
from ..commands import command
from ..exceptions import TopologyError
from ..topology.applied import Applied
from ..topology.common import origin_arguments
from .state import AppState

logger = logging.getLogger(__name__)

#: When a queue without our dead-letter exchange may not be deleted.
KEEP = (
    "Do not delete the queue while a process without this package may declare it: RabbitMQ would refuse that process."
)

#: RabbitMQ's error text for an argument of a queue that differs from its declaration.
_HAS = re.compile(
    r"inequivalent arg '(?P<name>[^']+)' .* current is the value "
    r"('(?P<text>.*)' of type 'longstr'|'(?P<bool>true|false)' of type 'bool'|'(?P<number>-?\d+)' of type '\w+')",
    re.DOTALL,
)


class OriginQueue(Queue):
    """A queue whose rejected messages advance through a ladder; an existing one with other arguments forwards them."""

    delay: AppState | None = None
    no_declare: bool | None

    @classmethod
    def of(cls, queue: Queue, delay: AppState) -> OriginQueue:
        """Return ``queue`` with the dead-letter arguments of its ladder."""
        origin = cls(**queue.as_dict())
        origin.delay = delay
        kind = delay.queue_type(queue.name, queue)
        native_retry = delay.native_retry(queue.name, queue)
        origin.queue_arguments = {
            **origin_arguments(delay.settings.names, queue.name, kind),
            **(native_retry.arguments() if native_retry else {}),
            **(queue.queue_arguments or {}),
        }
        return origin

    def __copy__(self) -> OriginQueue:
        copied: OriginQueue = super().__copy__()
        copied.delay = self.delay
        return copied

    def queue_declare(self, nowait: bool = False, passive: bool = False, channel: Any = None) -> Any:
        """Declare the queue, on a separate channel first: a refusal closes the channel."""
        channel = channel or self.channel
        delay = self.delay
        if delay is None or passive or not isinstance(channel, AMQPChannel):
            return super().queue_declare(nowait=nowait, passive=passive, channel=channel)
        if self.name in delay.differing:
            try:
                return self._declare_passive(channel)
            except NotFound:  # it was deleted
                delay.forget(self.name)
        declared = self._declare(delay, channel)
        if delay.on_declared is not None:
            delay.on_declared(self.name)
        return declared

    def compare(self, connection: Connection) -> None:
        """Find out whether a queue with ``no_declare`` rejects into its ladder; if ``strict``, raise if not. Blocks."""
        delay = self.delay
        if (
            not self.no_declare
            or delay is None
            or self.name in delay.differing
            or inspect_queue(connection, self.name) is None
        ):
            return
        with connection.channel() as channel:
            self._declare(delay, channel)

    def _declare(self, delay: AppState, channel: Any) -> Any:
        try:
            with channel.connection.channel() as probe:
                return super().queue_declare(nowait=False, channel=probe)
        except PreconditionFailed as error:
            check_limit(error)
            self._found_differing(delay, error, channel.connection.client)
            is_quorum = has_argument(channel.connection, self.name, "x-queue-type", "quorum")
            if is_quorum is not None:
                delay.differing_type[self.name] = "quorum" if is_quorum else "classic"
        except AccessRefused as error:
            if not self.no_declare:
                raise
            self._found_differing(delay, error, channel.connection.client)
        return self._declare_passive(channel)

    def _found_differing(self, delay: AppState, error: ChannelError, connection: Connection) -> None:
        goal = f"have them rejected to {delay.settings.names.dlx(self.name)!r}"
        fix = f"run `{command(f'adopt --queue {self.name}', delay.app)}`."
        if delay.has_native_retry(self.name):
            goal = "have them wait in the queue itself"
            fix = f"delete it with `{command(f'delete-queue {self.name}', delay.app)}` and start a worker."
        what, hint = "exists with other arguments", KEEP
        if not isinstance(error, PreconditionFailed):
            what, hint = "has arguments that this user may not compare", "Or allow the user to configure the queue."
        text = (
            f"The queue {self.name!r} {what} ({error.reply_text}). Unless it is adopted, its failed tasks are "
            f"forwarded to their delay queues with a publish each. To {goal} instead, {fix} {hint}"
        )
        if delay.settings.strict and not _is_adopted(delay, self.name, connection):
            raise TopologyError(text) from error
        delay.differing.add(self.name)
        logger.warning(text)

    def _declare_passive(self, channel: Any) -> Any:
        with channel.connection.channel() as probe:
            return super().queue_declare(passive=True, channel=probe)


def has_argument(connection: Any, queue: str, name: str, value: str) -> bool | None:
    """Return whether an existing queue has an argument with this value; None where the refusals do not show it.

    Each refusal of a declaration names one argument with the queue's value. Declared with all of these arguments and
    the wanted one, the queue either has it, or that one is refused.
    """
    arguments: dict[str, Any] = {name: value}
    while True:
        try:
            with connection.channel() as probe:
                probe.queue_declare(queue, durable=True, auto_delete=False, arguments=arguments)
        except PreconditionFailed as error:
            refused = str(error.reply_text)
        else:
            return True
        if f"inequivalent arg '{name}'" in refused:
            return False
        found = _HAS.search(refused)
        if found is None or found["name"] in arguments:
            return None
        arguments[found["name"]] = _value(found)


def _value(found: re.Match[str]) -> str | int | bool:
    if found["bool"]:
        return found["bool"] == "true"
    return int(found["number"]) if found["number"] else found["text"]


def _is_adopted(delay: AppState, queue: str, source: Connection) -> bool:
    plan = delay.plan(queue, reason_routing=True, tasks=False)
    with beside(source) as connection:
        adoption = Applied.from_json(read_record(connection, plan.record_queue())).adoption
    return adoption is not None and adoption.in_force


class OriginQueues(Queues):
    """The app's queues; each queue that can have a ladder becomes an `OriginQueue`."""

    delay: AppState

    def __setitem__(self, name: str, queue: Queue) -> None:
        super().__setitem__(name, queue)
        if isinstance(queue, OriginQueue) or not self.delay.manages(queue):
            return
        if self.delay.dead_letters_elsewhere(queue):
            self.delay.differing.add(name)
        else:
            super().__setitem__(name, OriginQueue.of(queue, self.delay))

    def _add(self, queue: Queue) -> Queue:
        super()._add(queue)
        added: Queue = self[queue.name]
        return added


def compare(app: Celery, name: str, connection: Connection) -> None:
    """Find out whether a queue that the app does not declare rejects into its ladder: see `OriginQueue.compare`."""
    queue = app.amqp.queues.get(name)
    if isinstance(queue, OriginQueue):
        queue.compare(connection)
