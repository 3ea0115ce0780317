"""Shared by ladders and topologies for exact delays: queue arguments, and the exchange for undeliverable messages."""

from __future__ import annotations

from ..amqp.objects import UNLIMITED_DELIVERIES, Binding, Exchange, Objects, arguments
from ..ladders import QueueType
from ..names import Names


def managed_queue_arguments(queue_type: QueueType) -> tuple[tuple[str, object], ...]:
    """Return the arguments of a managed queue that only stores messages."""
    limit = {"x-delivery-limit": UNLIMITED_DELIVERIES} if queue_type == "quorum" else {}
    return arguments({"x-queue-type": queue_type, **limit})


def origin_arguments(names: Names, queue: str, queue_type: QueueType) -> dict[str, object]:
    """Return the arguments by which rejected messages advance through the ladder of the origin queue ``queue``."""
    kind = {"x-queue-type": queue_type} if queue_type == "quorum" else {}
    return {"x-dead-letter-exchange": names.dlx(queue), **safe_dead_lettering(queue_type), **kind}


def safe_dead_lettering(queue_type: QueueType) -> dict[str, object]:
    """Return the arguments for at-least-once dead-lettering, which only quorum queues support."""
    if queue_type == "classic":
        return {}
    return {"x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish"}


def undeliverable(names: Names) -> str:
    """Return the exchange that routes messages for a deleted queue to the exhausted queue."""
    return f"{names.prefix}.undeliverable"


def safety_net(names: Names, exhausted: str) -> Objects:
    """Return the objects that route messages for a deleted queue to the queue ``exhausted``."""
    name = undeliverable(names)
    return Objects(exchanges=(Exchange(name, "fanout"),), bindings=(Binding(name, exhausted),))
