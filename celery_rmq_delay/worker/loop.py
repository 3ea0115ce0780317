"""The worker's part in the topology `loop`: release due messages, and send the rest around again."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from amqp.exceptions import NotFound
from kombu import Consumer, Queue

from .. import headers as h
from ..amqp.copies import copy_of
from ..amqp.route import Route
from ..commands import command
from ..exceptions import RmqDelayError, TopologyError
from .copies import Copy, Failure
from .flight import InFlight
from .settle import Settling

if TYPE_CHECKING:
    from kombu.message import Message

    from ..topology.exact.loop import Loop

logger = logging.getLogger(__name__)

#: The prefetch count of one worker, and so its maximum number of outstanding confirms.
_PREFETCH = 500


class Releaser:
    """Consumes the wait queue of a loop. Any number of workers may share it."""

    def __init__(self, settling: Settling, loop: Loop) -> None:
        self._settling, self._loop = settling, loop
        self._consumer: Consumer | None = None

    def consume(self, connection: Any) -> None:
        """Start consuming. Raises `TopologyError` if the queue does not exist."""
        channel = connection.channel()
        channel.basic_qos(0, _PREFETCH, False)
        wait = Queue(self._loop.wait, no_declare=True)
        self._consumer = Consumer(
            channel,
            [wait],
            on_message=self.on_message,
            # It is forwarded as it is: the consumer of its queue fails, too, and moves it to exhausted.
            on_decode_error=lambda message, _error: self.on_message(message),
            auto_declare=False,
        )
        try:
            self._consumer.consume()
        except NotFound as error:
            raise TopologyError(f"The queue {self._loop.wait!r} does not exist: run `{command('apply')}`.") from error

    def cancel(self) -> None:
        """Stop consuming."""
        if self._consumer is not None:
            self._consumer.cancel()

    def on_message(self, message: Message) -> None:
        """Release a message that is due; reject any other, which sends it around again.

        The clock decides, so that time spent in the wait queue counts.
        """
        address = h.exact_address(message.headers)
        if address is None:
            self._give_up(message, f"{h.DUE}={message.headers.get(h.DUE)!r}, {h.TO}={message.headers.get(h.TO)!r}")
            return
        queue, due = address
        if due > h.epoch_ms():
            message.reject_log_error(logger, self._settling.consumer.connection_errors)
        else:
            copy = Copy(copy_of(message, h.without_dead_letters(message.headers)), Route("", queue))
            # If that queue is missing, the message is rejected and goes around again.
            # Each round would add a message to the exhausted queue where that queue dead-letters what it refuses.
            again = self._settling.delay.dead_letters_refused(queue)
            self._settling.publish(InFlight(message), lambda: copy, may_reject=lambda: True, again=again)

    def _give_up(self, message: Message, found: str) -> None:
        error = RmqDelayError(f"A message in {self._loop.wait} has no valid due time and queue: {found}.")
        logger.error("%s It goes to the exhausted queue.", error)
        self._settling.exhaust(InFlight(message), Failure("undeliverable", error))
