"""The consumer's strategy for messages of a `RetryableTask`."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from celery.worker.request import create_request_cls
from celery.worker.strategy import default
from kombu.utils.imports import symbol_by_name

from ..retry.decision import Action

if TYPE_CHECKING:
    from celery import Celery, Task
    from kombu.message import Message

logger = logging.getLogger(__name__)

#: The attribute of Celery's consumer that holds the `WorkerSide`.
ATTRIBUTE = "rmq_delay"


def strategy(task: Task[Any, Any], app: Celery, consumer: Any) -> Callable[..., Any]:
    """Return the message handler of ``task``: reads the delivery, then calls Celery's handler."""
    handle = default(task, app, consumer)
    worker = getattr(consumer, ATTRIBUTE, None)
    if worker is None:
        return handle
    request_class = create_request_cls(
        symbol_by_name(task.Request), task, consumer.pool, consumer.hostname, consumer.event_dispatcher, app=app
    )

    def on_message(message: Message, body: Any, ack: Any, reject: Any, callbacks: Any, **options: Any) -> Any:
        found = worker.receive(message, body, task)
        if found is None or found.action is Action.RUN:
            return handle(message, body, ack, reject, callbacks, **options)
        if found.action is Action.ADOPT:
            message.rmq_delay_attempt.adopt(message, ack, reject)
        if found.action is Action.EXHAUSTED:
            request_class(
                message,
                on_ack=ack,
                on_reject=reject,
                app=app,
                hostname=consumer.hostname,
                eventer=consumer.event_dispatcher,
                task=task,
                connection_errors=consumer.connection_errors,
            ).give_up_crashed(found.crashes)
        return None

    return on_message
