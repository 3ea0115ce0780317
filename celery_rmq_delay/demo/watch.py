"""What the demo shows: counts from the broker, from the worker's replies, and from Celery's events."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from amqp.exceptions import AMQPError
from kombu.exceptions import KombuError

from ..exceptions import RmqDelayError
from ..operations.status import TierStatus, queue_status

if TYPE_CHECKING:
    from celery import Celery
    from kombu import Connection

#: Seconds in which the worker has to reply, and events have to be consumed.
REPLY_TIMEOUT, START_TIMEOUT = 2.0, 30.0


@dataclass(frozen=True)
class Seen:
    """The state at one moment.

    ``held`` counts the messages that the worker holds, of which ``running`` are attempts that run; both are None if it
    did not reply. ``queued`` wait in the origin queue, others in ``tiers``. The rest have ended.
    """

    held: int | None
    running: int | None
    queued: int
    tiers: tuple[TierStatus, ...]
    at_once: int
    recovered: int
    exhausted: int

    @property
    def parked(self) -> int:
        """How many tasks wait in the delay queues."""
        return sum(tier.parked for tier in self.tiers)

    @property
    def ended(self) -> int:
        """How many tasks have ended."""
        return self.at_once + self.recovered + self.exhausted


class Outcomes:
    """The outcomes of tasks, from the events of Celery's worker, which a thread receives. A context manager."""

    def __init__(self, app: Celery) -> None:
        self._app = app
        self._retried: set[str] = set()
        self._ended: dict[str, str] = {}
        self._receiver: Any = None
        self._error: Exception | None = None
        self._listens = threading.Event()
        self._thread = threading.Thread(target=self._receive, name="demo-events", daemon=True)

    def __enter__(self) -> Outcomes:
        """Start the thread, and wait until it receives. Raises `RmqDelayError` if that takes too long."""
        self._thread.start()
        if not self._listens.wait(START_TIMEOUT):
            raise RmqDelayError(f"RabbitMQ did not let the demo consume events within {START_TIMEOUT:g} s.")
        return self

    def __exit__(self, *_: object) -> None:
        """End the thread."""
        if self._receiver is not None:
            self._receiver.should_stop = True
        self._thread.join(timeout=5)

    def counts(self) -> tuple[int, int, int]:
        """Return how many tasks succeeded at once, recovered and were exhausted. Raises a lost connection's error."""
        if self._error is not None:
            raise self._error
        ended = dict(self._ended)
        exhausted = sum(kind == "task-failed" for kind in ended.values())
        recovered = sum(kind == "task-succeeded" and task in self._retried for task, kind in ended.items())
        return len(ended) - exhausted - recovered, recovered, exhausted

    def _receive(self) -> None:
        try:
            with self._app.connection_for_read() as connection:
                self._receiver = self._app.events.Receiver(connection, handlers={"*": self._note})
                self._receiver.on_consume_ready = lambda *_, **__: self._listens.set()
                self._receiver.capture(limit=None, timeout=None, wakeup=False)
        except (AMQPError, KombuError, OSError) as error:
            self._error = error

    def _note(self, event: dict[str, Any]) -> None:
        if event["type"] == "task-retried":
            self._retried.add(event["uuid"])
        elif event["type"] in ("task-succeeded", "task-failed"):
            self._ended[event["uuid"]] = event["type"]


def observe(app: Celery, connection: Connection, outcomes: Outcomes) -> Seen:
    """Return the present state."""
    (queue,) = queue_status(app, connection)
    held, running = _held(app)
    return Seen(held, running, queue.ready or 0, queue.tiers, *outcomes.counts())


def _held(app: Celery) -> tuple[int | None, int | None]:
    """Return how many messages the only worker holds, and how many of them run."""
    inspect = app.control.inspect(timeout=REPLY_TIMEOUT, limit=1)
    replies = [inspect.active(), inspect.reserved(), inspect.scheduled()]
    if not all(replies):
        return None, None
    counts = [sum(map(len, reply.values())) for reply in replies if reply]
    return sum(counts), counts[0]
