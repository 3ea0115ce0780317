"""Guards on incoming messages: unreadable ones go to the exhausted queue and do not end the worker.

Celery's consumer trusts the shape of headers and bodies. A malformed message raises in its event loop: the worker ends,
and so does the next one that receives it.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kombu.exceptions import EncodeError

from ..events.failures import type_name
from ..exceptions import UnreadableError
from .shape import check
from .tracebacks import format_exception

if TYPE_CHECKING:
    from kombu.message import Message

    from .side import WorkerSide

logger = logging.getLogger(__name__)

#: Errors from reading a malformed value, as opposed to those of a broker or backend that is down.
_OF_DATA = (
    *(TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError, struct.error, EncodeError),
)


def guard(consumer: Any, worker: WorkerSide) -> None:
    """Route unreadable messages to the exhausted queue.

    Also messages that Celery would drop by a reject because their queue has no dead-letter exchange.
    """
    make = consumer.create_task_handler

    def create_task_handler(*args: Any, **options: Any) -> Callable[[Message], Any]:
        handle = make(*args, **options)

        def on_message(message: Message) -> Any:
            try:
                if worker.hold(message, on_message):
                    return None
                check(message.headers)
                worker.restore_route(message)
                return handle(message)
            except consumer.connection_errors:
                raise
            except (UnreadableError, *_OF_DATA) as error:
                if message.acknowledged or getattr(message, "rmq_delay_moves", False):
                    logger.error("A message was settled, but post-processing failed: %s", type_name(error))
                elif getattr(message, "rmq_delay_has_started", False):  # on solo, where it has run here
                    logger.error("A task has run, and its request failed: %s", type_name(error), exc_info=error)
                else:
                    text = format_exception(error, error.__traceback__)
                    worker.on_decode_error(message, error, traceback=text)
                return None

        return on_message

    consumer.create_task_handler = create_task_handler
    consumer.on_decode_error = worker.on_decode_error
    for name in ("on_unknown_message", "on_unknown_task", "on_invalid_task"):
        setattr(consumer, name, _keeping(getattr(consumer, name), worker))


def _keeping(stock: Callable[..., Any], worker: WorkerSide) -> Callable[..., Any]:
    """Return a handler that moves a message to the exhausted queue unless ``stock`` may reject it."""

    def handle(body: Any, message: Message, *error: Exception) -> Any:
        found = error[0] if error else UnreadableError("It is not a Celery message.")
        if worker.may_reject(message, found):
            return stock(body, message, *error)
        is_unknown = isinstance(found, KeyError) and "id" in message.headers
        worker.on_decode_error(message, found, reason="unknown_task" if is_unknown else "undecodable")
        return None

    return handle
