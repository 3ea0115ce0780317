"""What the demo shows: counts from the broker, the worker and Celery's events, as a table or as lines."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, TextIO

from amqp.exceptions import AMQPError
from celery import Celery
from kombu import Connection
from kombu.exceptions import KombuError

from ..durations import format_ms
from ..exceptions import RmqDelayError
from ..operations.status import TierStatus, queue_status
from ..tables import table
from .orders import ORDERS, TIERS

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


class Screen:
    """Shows states on ``out``."""

    def __init__(self, out: TextIO = sys.stdout) -> None:
        self._out, self._shown, self._lines = out, "", 0

    def show(self, seen: Seen, seconds: float) -> None:
        """Show a state, ``seconds`` after the tasks were published."""
        if not self._out.isatty():
            if (text := line(seen)) != self._shown:
                self._write(f"{seconds:4.1f} s  {text}\n")
            self._shown = text
            return
        lines = [f"{seconds:4.1f} s   Ctrl-C ends the demo", *picture(seen).splitlines()]
        up = f"\x1b[{self._lines}A" if self._lines else ""
        self._write(up + "".join(f"\x1b[2K{each}\n" for each in lines))
        self._lines = len(lines)

    def _write(self, text: str) -> None:
        self._out.write(text)
        self._out.flush()


def picture(seen: Seen, now: datetime | None = None) -> str:
    """Return the table of a state."""
    now = now or datetime.now(timezone.utc)
    tiers = [(f"parked, tier {tier.tier_index} ({format_ms(tier.delay_ms)})", tier.parked, due(tier, now))
             for tier in seen.tiers]  # fmt: skip
    rows = [
        ("held by the worker", seen.held, f"{seen.running or 0} running"),
        ("waiting for the worker", seen.queued, ""),
        *tiers,
        ("succeeded at once", seen.at_once, ""),
        ("recovered", seen.recovered, ""),
        ("exhausted", seen.exhausted, ""),
    ]
    return table(("", "TASKS", ""), rows)


def due(tier: TierStatus, now: datetime) -> str:
    """Return when the next task of a tier is due."""
    if not tier.parked:
        return ""
    if tier.oldest_due is None:
        return f"next due within {format_ms(tier.due_within_ms or tier.delay_ms)}"
    return f"next due in {max(0.0, (tier.oldest_due - now).total_seconds()):.0f} s"


def line(seen: Seen) -> str:
    """Return a state in one line, without times."""
    tiers = " + ".join(str(tier.parked) for tier in seen.tiers)
    held = "?" if seen.held is None else seen.held
    return (
        f"worker holds {held}, queued {seen.queued}, parked {tiers}, "
        f"succeeded {seen.at_once}, recovered {seen.recovered}, exhausted {seen.exhausted}"
    )


def summary(seen: Seen, waited: Seen | None, seconds: float) -> Iterator[str]:
    """Yield what was seen. ``waited``: the state with the most parked tasks while the worker held the fewest."""
    yield ""
    yield (
        f"All {len(ORDERS)} tasks have ended after {seconds:.0f} s: {seen.at_once} succeeded at once, "
        f"{seen.recovered} recovered after 1 to {len(TIERS)} retries, {seen.exhausted} are exhausted."
    )
    if waited is not None:
        yield f"Meanwhile the worker held {waited.held} tasks while {waited.parked} waited in RabbitMQ."


NEXT = f"""
Your app needs three things:

  app.conf.rmq_delay = {{"tiers": ["{'", "'.join(TIERS)}"]}}
  celery_rmq_delay.install(app)
  @app.task(base=celery_rmq_delay.RetryableTask)

Commands to try next:

  celery -A YOUR_APP rmq-delay plan
  celery -A YOUR_APP rmq-delay doctor
  celery -A YOUR_APP rmq-delay status
  celery -A celery_rmq_delay.demo.worker rmq-delay capacity --rate 100/s --failure-rate 2%"""
