"""Origin queues: the app's own queues, declared with a dead-letter exchange by whoever declares them first."""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING, Any

from amqp import Channel as AMQPChannel
from amqp.exceptions import AccessRefused, ChannelError, NotFound, PreconditionFailed
from celery.app.amqp import Queues
from kombu.entity import Queue

from ..amqp.apply import look
from ..amqp.connections import beside
from ..amqp.record import peek_record
from ..exceptions import TopologyError
from ..topology.common import origin_arguments
from ..topology.transition import Applied

if TYPE_CHECKING:
    from celery import Celery
    from kombu import Connection

    from ..ladders import QueueType
    from .state import AppState

logger = logging.getLogger(__name__)

_DELETE = "delete it with `celery -A proj rmq-delay delete-queue {}` and start a worker: it declares it again."

#: How RabbitMQ tells the argument of a queue that differs from what is declared.
_HAS = re.compile(
    r"inequivalent arg '(?P<name>[^']+)' .* current is the value "
    r"('(?P<text>.*)' of type 'longstr'|'(?P<bool>true|false)' of type 'bool'|'(?P<number>-?\d+)' of type '\w+')",
    re.DOTALL,
)


class OriginQueue(Queue):
    """A queue of the app whose rejected messages advance through a ladder.

    A queue that exists without the dead-letter exchange cannot be given one by declaring it. It is then used as it is,
    and its retries are forwarded instead of rejected.
    """

    delay: AppState | None = None
    no_declare: bool | None

    @classmethod
    def of(cls, queue: Queue, delay: AppState) -> OriginQueue:
        """Return ``queue`` with the dead-letter arguments of its ladder."""
        origin = cls(**queue.as_dict())
        origin.delay = delay
        kind = delay.queue_type(queue.name, queue)
        native = delay.native_retry(queue.name, queue)
        origin.queue_arguments = {
            **origin_arguments(delay.settings.names, queue.name, kind),
            **(native.arguments() if native else {}),
            **(queue.queue_arguments or {}),
        }
        return origin

    def __copy__(self) -> OriginQueue:
        copied: OriginQueue = super().__copy__()
        copied.delay = self.delay
        return copied

    def queue_declare(self, nowait: bool = False, passive: bool = False, channel: Any = None) -> Any:
        """Declare the queue, on a channel of its own first: a refusal closes the channel it happens on."""
        channel = channel or self.channel
        delay = self.delay
        if delay is None or passive or not isinstance(channel, AMQPChannel):
            return super().queue_declare(nowait=nowait, passive=passive, channel=channel)
        if self.name in delay.unmanaged:
            try:
                return self._look_at_it(channel)
            except NotFound:  # somebody has deleted it
                delay.forget(self.name)
        declared = self._declare(delay, channel)
        if delay.on_declared is not None:
            delay.on_declared(self.name)
        return declared

    def compare(self, connection: Connection) -> None:
        """Find out whether a queue that the app does not declare (``no_declare``) rejects into its ladder. Blocks.

        One that does not exist is not made. Raises `TopologyError` for one that does not reject, where ``strict``.
        """
        delay = self.delay
        if not self.no_declare or delay is None or self.name in delay.unmanaged or look(connection, self.name) is None:
            return
        with connection.channel() as channel:
            self._declare(delay, channel)

    def _declare(self, delay: AppState, channel: Any) -> Any:
        try:
            with channel.connection.channel() as probe:
                return super().queue_declare(nowait=False, channel=probe)
        except PreconditionFailed as error:
            self._found_foreign(delay, error, channel.connection.client)
            if kind := self._find_type(channel):
                delay.unmanaged_type[self.name] = kind
        except AccessRefused as error:
            if not self.no_declare:
                raise
            self._found_foreign(delay, error, channel.connection.client)
        return self._look_at_it(channel)

    def _found_foreign(self, delay: AppState, error: ChannelError, connection: Connection) -> None:
        goal = f"have them rejected to {delay.settings.names.dlx(self.name)!r}"
        adopt = f"run `celery -A proj rmq-delay adopt --queue {self.name}`, or "
        if delay.has_native_retry(self.name):
            goal, adopt = "have them wait in the queue itself", ""
        what, hint = (
            ("exists with other arguments", _DELETE.format(self.name))
            if isinstance(error, PreconditionFailed)
            else ("has arguments that this user may not compare", "let the user configure the queue.")
        )
        text = (
            f"The queue {self.name!r} {what} ({error.reply_text}). Unless it is adopted, its failed tasks are "
            f"forwarded to their delay queues with a publish each. To {goal} instead, {adopt}{hint}"
        )
        if delay.settings.strict and not _is_adopted(delay, self.name, connection):
            raise TopologyError(text) from error
        delay.unmanaged.add(self.name)
        logger.warning(text)

    def _find_type(self, channel: Any) -> QueueType | None:
        """Return the type of a queue, which the broker's refusals tell; None where they do not.

        They name one argument after the other, with the value that the queue has: declared as a quorum queue with all
        of them, it is one, or the type is what is refused.
        """
        arguments: dict[str, Any] = {"x-queue-type": "quorum"}
        while True:
            try:
                with channel.connection.channel() as probe:
                    probe.queue_declare(self.name, durable=True, auto_delete=False, arguments=arguments)
            except PreconditionFailed as error:
                refused = str(error.reply_text)
            else:
                return "quorum"
            if "'x-queue-type'" in refused:
                return "classic"
            found = _HAS.search(refused)
            if found is None or found["name"] in arguments:
                return None
            arguments[found["name"]] = _value(found)

    def _look_at_it(self, channel: Any) -> Any:
        """Ask for the queue as it is, with arguments that nobody needs to guess. Raises `NotFound` where it is gone."""
        with channel.connection.channel() as probe:
            return super().queue_declare(passive=True, channel=probe)


def _value(found: re.Match[str]) -> str | int | bool:
    if found["bool"]:
        return found["bool"] == "true"
    return int(found["number"]) if found["number"] else found["text"]


def _is_adopted(delay: AppState, queue: str, source: Connection) -> bool:
    plan = delay.plan(queue, reason_routing=True, tasks=False)
    with beside(source) as connection:
        adoption = Applied.from_json(peek_record(connection, plan.record_queue())).adoption
    return adoption is not None and adoption.in_force


class OriginQueues(Queues):
    """The app's queues: each that can have a ladder becomes an `OriginQueue`."""

    delay: AppState

    def __setitem__(self, name: str, queue: Queue) -> None:
        super().__setitem__(name, queue)
        if isinstance(queue, OriginQueue) or not self.delay.manages(queue):
            return
        if self.delay.dead_letters_elsewhere(queue):
            self.delay.unmanaged.add(name)
        else:
            super().__setitem__(name, OriginQueue.of(queue, self.delay))

    def _add(self, queue: Queue) -> Queue:
        super()._add(queue)
        added: Queue = self[queue.name]
        return added


def compare(app: Celery, name: str, connection: Connection) -> None:
    """Find out how a queue of the app that it does not declare settles what is rejected: see `OriginQueue.compare`."""
    queue = app.amqp.queues.get(name)
    if isinstance(queue, OriginQueue):
        queue.compare(connection)


def queues_class(delay: AppState) -> type[OriginQueues]:
    """Return the class of queue maps that an app with ``delay`` uses."""
    return type("OriginQueues", (OriginQueues,), {"delay": delay})
