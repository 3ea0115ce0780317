"""The queue that a requeue publishes into instead of the tasks' origin queues."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .....amqp.apply import ready_counts
from .....names import MAX_NAME_BYTES
from ...broker import connection, delay
from .link import BROKER_ERRORS, broker_down

if TYPE_CHECKING:
    from kombu import Connection


def queue_problem(queue: str) -> str:
    """Return why no task can be requeued into a queue; an empty text where it exists and is not one of this package."""
    try:
        with connection() as opened:
            return problem_at(opened, queue)
    except BROKER_ERRORS as error:
        return str(broker_down(error))


def problem_at(opened: Connection, queue: str) -> str:
    """Return the same on an open connection."""
    settings = delay().settings
    if queue == settings.exhausted_queue or queue.startswith((f"{settings.names.prefix}.", "amq.")):
        return f"{queue} is not a queue of tasks"
    if len(queue.encode("utf-8", "surrogatepass")) > MAX_NAME_BYTES:
        return f"no queue has a name of more than {MAX_NAME_BYTES} bytes"
    if ready_counts(opened, [queue])[queue] is None:
        return f"there is no queue {queue}"
    return ""
