"""Remote-control commands of workers: a queue was adopted or detached; list tasks that requeue in a loop.

A command runs in the worker's consumer loop, so it only stores its arguments and returns known facts.
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


@control_command(name=COMMAND, visible=False)  # only with facts of the record
def adoption_changed(state: Any, queue: str, adoption: Mapping[str, Any], **_: Any) -> dict[str, Any]:
    """Store the adoption that is on record for ``queue`` (used by ``rmq-delay adopt``)."""
    consumer = state.consumer
    queues = getattr(consumer, ATTRIBUTE, None)
    if queues is None or queue not in consumer.app.amqp.queues.consume_from:
        return {"ok": "does not consume this queue", "consumes": False}
    received, known = Adoption.from_json(adoption), queues.delay.adopted.get(queue)
    if received is not None and (known is None or known.generation <= received.generation):
        queues.delay.learn(queue, received)
        if known is None or known.in_force != received.in_force:
            logger.info(
                "Queue %s %s",
                queue,
                f"is adopted by the policy {received.policy}: its failed tasks are rejected from now on"
                if received.in_force
                else "is no longer adopted: its failed tasks are forwarded from now on",
                extra={"queue": queue},
            )
    rejects = queues.settling.dead_letters(queue)
    return {
        "ok": "rejects" if rejects else "forwards",
        "consumes": True,
        "rejects": rejects,
        "generation": queues.delay.adopted[queue].generation if queue in queues.delay.adopted else 0,
        "address": _address(consumer),
    }


@inspect_command(name=REQUEUES, visible=False)
def requeues(state: Any, **_: Any) -> list[dict[str, Any]]:
    """Return the tasks that requeue messages in a loop (used by ``rmq-delay doctor``)."""
    queues = getattr(state.consumer, ATTRIBUTE, None)
    return [] if queues is None else [vars(loop) for loop in queues.settling.requeues.loops()]


def _address(consumer: Any) -> str | None:
    """Return local host and port of the worker's broker connection, as the management API shows them."""
    try:
        host, port = consumer.connection.connection.transport.sock.getsockname()[:2]
    except (AttributeError, OSError, ValueError):
        return None
    return f"{host}:{port}"
