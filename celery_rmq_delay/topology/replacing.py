"""Replacement of the record and the quarantine queue, under the same names, when the origin queue's type changes."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from ..amqp.apply import Drift, declare_queue, drift
from ..amqp.objects import Objects

if TYPE_CHECKING:
    from kombu import Connection

    from ..amqp.record import Record
    from .ladder import LadderPlan

logger = logging.getLogger(__name__)


def ensure_quarantine(connection: Connection, plan: LadderPlan, record: Record) -> bool:
    """Declare the quarantine queue; return whether it needs no replacement.

    False where it has the other type and cannot be replaced yet, as it has messages or a consumer. A queue with the
    arguments of another prefix is kept.
    """
    wanted, other = plan.quarantine_queue(), plan.of_other_type.quarantine_queue()
    if declare_queue(connection, wanted) or not declare_queue(connection, other):
        return True
    if record.delete_unused(connection, other) and declare_queue(connection, wanted):
        return True
    logger.info(
        "The queue %s is not a %s queue yet: it has messages or a consumer. It is used as it is, until an "
        "apply or a worker start finds it empty and unused, and replaces it",
        wanted.name,
        plan.queue_type,
        extra={"queue": plan.queue},
    )
    return False


def to_replace(connection: Connection, plan: LadderPlan) -> tuple[Drift, ...]:
    """Return the record and the quarantine queue where they have the other type. Changes nothing."""
    other = plan.of_other_type
    return tuple(
        Drift("queue", wanted.name, f"It is a {other.queue_type} queue. An apply replaces it{when}.")
        for wanted, found, when in (
            (plan.record_queue(), other.record_queue(), ""),
            (plan.quarantine_queue(), other.quarantine_queue(), " when it is empty and no worker consumes it"),
        )
        if drift(connection, Objects(queues=(wanted,))) and not drift(connection, Objects(queues=(found,)))
    )
