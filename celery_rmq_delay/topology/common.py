"""What ladders and topologies for exact delays share: arguments of queues, and the exchange of the undeliverable."""

from __future__ import annotations

from ..amqp.objects import UNLIMITED_DELIVERIES, Binding, Exchange, Objects, arguments
from ..ladders import QueueType
from ..names import Names


def own_queue_arguments(queue_type: QueueType) -> tuple[tuple[str, object], ...]:
    """Return the arguments of a queue of ours in which messages only rest."""
    limit = {"x-delivery-limit": UNLIMITED_DELIVERIES} if queue_type == "quorum" else {}
    return arguments({"x-queue-type": queue_type, **limit})


def origin_arguments(names: Names, queue: str, queue_type: QueueType) -> dict[str, object]:
    """Return the arguments by which rejected messages advance through the ladder of the origin queue ``queue``."""
    kind = {"x-queue-type": queue_type} if queue_type == "quorum" else {}
    return {"x-dead-letter-exchange": names.dlx(queue), **safe_dead_lettering(queue_type), **kind}


def safe_dead_lettering(queue_type: QueueType) -> dict[str, object]:
    """Return the arguments by which a queue gives up no dead letter before another queue has it, where it can."""
    if queue_type == "classic":
        return {}
    return {"x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish"}


def undeliverable(names: Names) -> str:
    """Return the exchange of messages that come back to a queue that is gone: they go to the exhausted queue."""
    return f"{names.prefix}.undeliverable"


def safety_net(names: Names, exhausted: str) -> Objects:
    """Return what catches messages that come back to a queue that is gone."""
    name = undeliverable(names)
    return Objects(exchanges=(Exchange(name, "fanout"),), bindings=(Binding(name, exhausted),))
