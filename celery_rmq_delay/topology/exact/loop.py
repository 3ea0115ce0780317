"""One delay queue of one unit, and a second queue whose consumer checks the due times.

    publish --> delay (TTL: one unit) --> wait --due--> published to its queue
                  ^------ rejected ---------'--not yet

The consumer is part of every worker of the app (`celery_rmq_delay.worker.loop`). A message makes one round per unit, so
the load grows with the number of waiting messages: use `levels` instead wherever possible.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...amqp.objects import Objects, Queue, arguments
from ...amqp.route import Route
from ...durations import MAX_TTL_MS, format_ms
from ..common import managed_queue_arguments, safe_dead_lettering
from .base import Options, due_headers, units

if TYPE_CHECKING:
    from kombu import Connection

    from ...ladders import QueueType


class Loop:
    """Two queues for all delays and destinations, and a consumer in the workers."""

    name = "loop"

    def __init__(self, options: Options) -> None:
        self._sorts = options.sorts
        self.unit_ms = options.unit_ms
        self.max_ms = MAX_TTL_MS // options.unit_ms * options.unit_ms
        base = f"{options.names.prefix}.loop.{format_ms(options.unit_ms)}.{options.queue_type}"
        self.delay, self.wait = f"{base}.delay", f"{base}.wait"
        self.consumed: str | None = self.wait
        self._frame = self._queues(options.queue_type)

    def frame(self) -> Objects:
        """Return both queues."""
        return self._frame

    def arrival(self, queue: str) -> Objects:
        """Return nothing: workers publish due messages to ``queue`` itself."""
        return Objects()

    def _queues(self, kind: QueueType) -> Objects:
        shared = {**dict(managed_queue_arguments(kind)), **safe_dead_lettering(kind), "x-dead-letter-exchange": ""}
        delay = {**shared, "x-message-ttl": self.unit_ms, "x-dead-letter-routing-key": self.wait}
        wait = {**shared, "x-dead-letter-routing-key": self.delay}
        return Objects(queues=(Queue(self.wait, arguments(wait)), Queue(self.delay, arguments(delay))))

    def route(self, delay_ms: int, queue: str) -> Route:
        """Return the route into the loop."""
        return Route(
            exchange="",
            routing_key=self.delay,
            delay_ms=units(delay_ms, self.unit_ms) * self.unit_ms,
            objects=self._frame,
            key=self.delay,
            headers=due_headers(delay_ms, queue),
            sorts=self._sorts,
        )

    def holding(self) -> tuple[str, ...]:
        """Return both queues."""
        return self.delay, self.wait

    def check(self, connection: Connection) -> None:
        """Do nothing: every version of RabbitMQ supports it."""
