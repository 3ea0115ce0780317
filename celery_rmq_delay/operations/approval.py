"""Whether a task may be requeued: asks the receivers of `before_requeue`, and reports a failed requeue to others."""

from __future__ import annotations

from typing import Any

import amqp
from celery import Task

from ..amqp.bodies import UndecodableError, decode
from ..signals import before_requeue, requeue_failed


def objection(message: amqp.Message, queue: str) -> str:
    """Return why a receiver of `before_requeue` keeps the task of ``message`` exhausted; an empty text if none does.

    An exception of a receiver counts as an objection. ``message`` is the one that would be published to ``queue``.
    """
    if not before_requeue.receivers:
        return ""
    try:
        answers = before_requeue.send(**_facts(message, queue))
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:  # noqa: BLE001 - Celery catches an `Exception` only
        return f"a receiver of before_requeue raised {type(error).__name__}: {error}"
    for receiver, answer in answers:
        if isinstance(answer, Exception):
            return f"{_name(receiver)} raised {type(answer).__name__}: {answer}"
        if answer:
            return str(answer)
    return ""


def report_failed(message: amqp.Message, queue: str) -> None:
    """Send `requeue_failed`: there was no objection, but the broker has not taken the message."""
    if requeue_failed.receivers:
        requeue_failed.send(**_facts(message, queue))


def has_own_call(task: Task[Any, Any] | None) -> bool:
    """Return whether a task's class has an ``apply_async`` of its own, which no requeue calls."""
    return task is not None and type(task).apply_async is not Task.apply_async


def _facts(message: amqp.Message, queue: str) -> dict[str, Any]:
    headers = message.headers or {}

    def arguments() -> tuple[list[Any], dict[str, Any]]:
        call = decode(message.body, message.properties, headers)
        return call.args, call.kwargs

    try:
        facts = headers if "task" in headers else decode(message.body, message.properties, headers).facts
    except UndecodableError:
        facts = {}
    return {"sender": facts.get("task"), "task_id": facts.get("id"), "queue": queue, "arguments": arguments}


def _name(receiver: Any) -> str:
    return str(getattr(receiver, "__qualname__", receiver))
