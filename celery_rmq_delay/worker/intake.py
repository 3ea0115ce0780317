"""Guards on incoming messages: unreadable ones go to the exhausted queue and do not end the worker.

Celery's consumer trusts the shape of headers and bodies. A malformed message raises in its event loop: the worker ends,
and so does the next one that receives it.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from kombu.exceptions import ContentDisallowed, EncodeError

from .. import headers as h
from ..events.failures import type_name
from ..exceptions import UnreadableError
from ..retry.delivery import KEY
from .copies import Failure
from .flight import ATTRIBUTE, InFlight, Owed, flight_of
from .queues import ConsumedQueues
from .shape import check
from .tracebacks import format_exception

if TYPE_CHECKING:
    from kombu.message import Message

logger = logging.getLogger(__name__)

#: Errors from reading a malformed value, as opposed to those of a broker or backend that is down.
_OF_DATA = (
    *(TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError, struct.error, EncodeError),
)


def guard(consumer: Any, queues: ConsumedQueues) -> None:
    """Route unreadable messages to the exhausted queue.

    Also messages that Celery would drop by a reject because their queue has no dead-letter exchange.
    """
    make = consumer.create_task_handler

    def create_task_handler(*args: Any, **options: Any) -> Callable[[Message], Any]:
        handle = make(*args, **options)

        def on_message(message: Message) -> Any:
            if queues.keeps(message, partial(on_message, message)):
                return None
            flight = _arrived(message, queues)
            setattr(message, ATTRIBUTE, flight)
            try:
                check(message.headers)
                _restore_route(flight, queues)
                return handle(message)
            except consumer.connection_errors:
                raise
            except (UnreadableError, *_OF_DATA) as error:
                if message.acknowledged or flight.owed is Owed.COPY:
                    logger.error("A message was settled, but post-processing failed: %s", type_name(error))
                elif flight.owed is Owed.OUTCOME:  # on solo, where it has run here
                    logger.error("A task has run, and its request failed: %s", type_name(error), exc_info=error)
                else:
                    _give_up(flight, queues, error, traceback=format_exception(error, error.__traceback__))
                return None
            finally:
                delattr(message, ATTRIBUTE)  # its request has it, and they would be in a reference cycle

        return on_message

    def on_decode_error(message: Message, error: Exception) -> None:
        _give_up(_arrived(message, queues), queues, error)

    consumer.create_task_handler = create_task_handler
    consumer.on_decode_error = on_decode_error
    for name in ("on_unknown_message", "on_unknown_task", "on_invalid_task"):
        setattr(consumer, name, _keeping(getattr(consumer, name), queues))


def _arrived(message: Message, queues: ConsumedQueues) -> InFlight:
    queue, is_quarantined = queues.queue_of(message.delivery_info.get("consumer_tag", ""))
    return InFlight(message, queue, is_quarantined=is_quarantined)


def _restore_route(flight: InFlight, queues: ConsumedQueues) -> None:
    """Restore the route by which a message first reached its queue, for tasks of any class.

    Celery publishes retries along it: a message from a delay queue would follow objects that may be deleted.
    """
    flight.headers.pop(KEY, None)  # it can only be forged, or copied by a task
    if queues.delay.settings.for_queue(flight.queue) is not None:
        info = flight.came
        exchange, routing_key = h.first_route(flight.headers, flight.queue, info["exchange"], info["routing_key"])
        flight.message.delivery_info = {**info, "exchange": exchange, "routing_key": routing_key}


def _keeping(stock: Callable[..., Any], queues: ConsumedQueues) -> Callable[..., Any]:
    """Return a handler that moves a message to the exhausted queue unless ``stock`` may reject it."""

    def handle(body: Any, message: Message, *error: Exception) -> Any:
        flight, found = flight_of(message), error[0] if error else UnreadableError("It is not a Celery message.")
        is_excluded = queues.delay.settings.for_queue(flight.queue) is None
        rejects = queues.settling.dead_letters(flight.queue)  # a later attempt may read it
        if is_excluded or (rejects and not isinstance(found, ContentDisallowed)):
            return stock(body, message, *error)
        is_unknown = isinstance(found, KeyError) and "id" in message.headers
        _give_up(flight, queues, found, reason="unknown_task" if is_unknown else "undecodable")
        return None

    return handle


def _give_up(
    flight: InFlight,
    queues: ConsumedQueues,
    error: Exception,
    *,
    reason: str = "undecodable",
    traceback: str | None = None,
) -> None:
    """Move an unreadable message to the exhausted queue; Celery would ack it and lose it, or end."""
    message, settling = flight.message, queues.settling
    settling.received(message)
    logger.critical(  # not the error's text, which may quote the body: that is in the message's headers
        "Cannot read a message of %s (%s, %s): %s. It goes to %s.",
        flight.queue,
        message.content_type,
        message.content_encoding,
        type_name(error),
        queues.delay.settings.exhausted_queue,
    )

    def report() -> None:
        if settling.reporter is not None:
            settling.reporter.emit_undecodable(message, flight.headers, flight.queue, error, reason)

    # A separate attempt: earlier reports do not hide where the message is now.
    flight.retries = h.retries(flight.headers, flight.queue)
    settling.exhaust(flight, Failure(reason, error, traceback), before_ack=report)
