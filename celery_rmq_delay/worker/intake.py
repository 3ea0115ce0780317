"""Guards on incoming messages: unreadable ones go to the exhausted queue and do not end the worker.

Celery's consumer trusts the shape of headers and bodies. A malformed message raises in its event loop: the worker ends,
and so does the next one that receives it.
"""

from __future__ import annotations

import logging
import math
import struct
from collections.abc import Callable
from functools import partial
from typing import Any

from kombu.exceptions import ContentDisallowed, EncodeError
from kombu.message import Message

from .. import headers as h
from ..events.fingerprint import type_name
from ..exceptions import UnreadableError
from ..headers import PROPERTIES
from ..retry.delivery import KEY
from .copies import Failure
from .flight import ATTRIBUTE, InFlight, Owed, flight_of
from .queues import ConsumedQueues
from .trace import format_exception

logger = logging.getLogger(__name__)

#: Errors from reading a malformed value, as opposed to those of a broker or backend that is down.
_OF_DATA = (
    *(TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError, struct.error, EncodeError),
)


def guard(consumer: Any, queues: ConsumedQueues) -> None:
    """Route unreadable messages to the exhausted queue, also those that Celery would drop by a reject."""
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
    """Restore the route by which a message first reached its queue: Celery publishes retries of any task along it."""
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


def check(headers: Any) -> None:
    """Raise `UnreadableError` for unreadable headers, or headers on which Celery would fail later."""
    if PROPERTIES in headers:
        raise UnreadableError("Its properties cannot be decoded.")
    _check_limits(headers.get("timelimit"))
    stamped, stamps = headers.get("stamped_headers"), headers.get("stamps")
    if stamped and not (isinstance(stamped, (list, tuple)) and all(isinstance(each, str) for each in stamped)):
        raise UnreadableError("Its stamped_headers are not a list of names.")
    if stamps and not isinstance(stamps, dict):
        raise UnreadableError("Its stamps have no names.")


def check_payload(payload: Any) -> None:
    """Raise `UnreadableError` for a body of protocol 1 or 2 that cannot call a task: to Celery it is a success."""
    if isinstance(payload, dict):
        _check_limits(payload.get("timelimit"))
    elif not (isinstance(payload, (list, tuple)) and len(payload) == 3 and isinstance(payload[1], dict)):
        raise UnreadableError("Its body is not [args, kwargs, embed].")


def _check_limits(limits: object) -> None:
    # The pool would fail only when the task already runs.
    if limits is not None and not (
        isinstance(limits, (list, tuple)) and len(limits) in (0, 2) and all(map(_is_limit, limits))
    ):
        raise UnreadableError("Its time limits are not two numbers of seconds, or None.")


def _is_limit(limit: Any) -> bool:
    return limit is None or (type(limit) in (int, float) and math.isfinite(limit) and limit >= 0)
