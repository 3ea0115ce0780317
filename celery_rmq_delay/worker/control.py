"""Remote-control commands of workers: that a queue was adopted or given back, and which tasks requeue in a loop.

A command arrives in the worker's consumer loop, so it only takes over what it brings and returns what is known.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from celery.worker.control import control_command, inspect_command

from ..topology.adoption import COMMAND, Adoption
from .requeues import COMMAND as REQUEUES
from .strategy import ATTRIBUTE

logger = logging.getLogger(__name__)


@control_command(name=COMMAND, visible=False)  # only with what the record says
def adoption_changed(state: Any, queue: str, adoption: Mapping[str, Any], **_: Any) -> dict[str, Any]:
    """Take over what the record of ``queue`` says of its adoption (used by ``rmq-delay adopt``)."""
    consumer = state.consumer
    worker = getattr(consumer, ATTRIBUTE, None)
    if worker is None or queue not in consumer.app.amqp.queues.consume_from:
        return {"ok": "does not take this queue", "consumes": False}
    told, known = Adoption.from_json(adoption), worker.delay.adopted.get(queue)
    if told is not None and (known is None or known.generation <= told.generation):
        worker.delay.learn(queue, told)
        if known is None or known.in_force != told.in_force:
            logger.info(
                "Queue %s %s",
                queue,
                f"is adopted by the policy {told.policy}: its failed tasks are rejected from now on"
                if told.in_force
                else "is adopted no more: its failed tasks are forwarded from now on",
                extra={"queue": queue},
            )
    rejects = worker.dead_letters(queue)
    return {
        "ok": "rejects" if rejects else "forwards",
        "consumes": True,
        "rejects": rejects,
        "generation": worker.delay.adopted[queue].generation if queue in worker.delay.adopted else 0,
        "address": _address(consumer),
    }


@inspect_command(name=REQUEUES, visible=False)
def requeues(state: Any, **_: Any) -> list[dict[str, Any]]:
    """Return the tasks that requeue messages in a loop (used by ``rmq-delay doctor``)."""
    worker = getattr(state.consumer, ATTRIBUTE, None)
    return [] if worker is None else [vars(loop) for loop in worker.requeues.loops()]


def _address(consumer: Any) -> str | None:
    """Return host and port of the worker's end of its broker connection, which the management API shows, too."""
    try:
        host, port = consumer.connection.connection.transport.sock.getsockname()[:2]
    except (AttributeError, OSError, ValueError):
        return None
    return f"{host}:{port}"
