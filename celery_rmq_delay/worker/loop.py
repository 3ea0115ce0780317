"""The worker's part in the topology `loop`: release what is due, and send the rest around again."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from amqp.exceptions import NotFound
from kombu import Consumer, Queue

from .. import headers as h
from ..amqp.copies import copy_of
from ..amqp.route import Route
from ..exceptions import RmqDelayError, TopologyError

if TYPE_CHECKING:
    from kombu.message import Message

    from ..topology.exact.loop import Loop
    from .settle import Settling

logger = logging.getLogger(__name__)

#: How many messages one worker takes at a time: as many confirms are waited for at once.
_PREFETCH = 500


class Releaser:
    """Consumes the wait queue of a loop. Any number of workers may share it."""

    def __init__(self, worker: Settling, loop: Loop) -> None:
        self._worker, self._loop = worker, loop
        self._consumer: Consumer | None = None

    def consume(self, connection: Any) -> None:
        """Begin. Raises `TopologyError` where the queue does not exist."""
        channel = connection.channel()
        channel.basic_qos(0, _PREFETCH, False)
        wait = Queue(self._loop.wait, no_declare=True)
        self._consumer = Consumer(
            channel,
            [wait],
            on_message=self.on_message,
            # It goes on as it is: the consumer of its queue finds the same, and exhausts it.
            on_decode_error=lambda message, _error: self.on_message(message),
            auto_declare=False,
        )
        try:
            self._consumer.consume()
        except NotFound as error:
            raise TopologyError(
                f"The queue {self._loop.wait!r} does not exist: run `celery -A proj rmq-delay apply`."
            ) from error

    def cancel(self) -> None:
        """Take no more messages."""
        if self._consumer is not None:
            self._consumer.cancel()

    def on_message(self, message: Message) -> None:
        """Release a message that is due; reject one that is not, which takes it around again.

        The decision is the clock's, so that time spent in the wait queue counts.
        """
        address = h.exact_address(message.headers)
        if address is None:
            self._give_up(message, f"{h.DUE}={message.headers.get(h.DUE)!r}, {h.TO}={message.headers.get(h.TO)!r}")
            return
        queue, due = address
        if due > h.epoch_ms():
            message.reject_log_error(logger, self._worker.consumer.connection_errors)
        else:
            copy = copy_of(message, h.without_dead_letters(message.headers))
            # Where that queue is missing, rejected: around once more.
            self._worker.publish(message, copy, Route("", queue), may_reject=lambda: True)

    def _give_up(self, message: Message, found: str) -> None:
        error = RmqDelayError(f"A message in {self._loop.wait} says not when it is due, and where: {found}.")
        logger.error("%s It goes to the exhausted queue.", error)
        message.raw_headers = message.headers
        self._worker.exhaust(message, queue="", retries=0, reason="undeliverable", exception=error, traceback=None)
