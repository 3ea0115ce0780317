"""Move messages: each is published with confirm before it is acked, a window of them at a time.

A killed run leaves at most a window of messages that are both in the source and in the target. A run keeps no other
state, so the next one continues. Meanwhile the broker moves messages, but only to queues that are emptied later, and a
run ends only after a whole pass without a message to move.
"""

from __future__ import annotations

import struct
import time
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import amqp
from amqp.exceptions import AMQPError, NotFound
from kombu import Connection
from kombu.message import Message

from ...amqp.apply import ready_counts
from ...amqp.capabilities import Capabilities, capabilities
from ...amqp.confirms import CONFIRM_TIMEOUT, ConfirmingPublisher, confirming_channel
from ...amqp.copies import parked_copy
from ...amqp.scan import SCAN_LIMIT, requeue, scanning, work_off
from ...exceptions import OutcomeUnknownError, PublishError
from ..results import Result
from .address import Source
from .targets import _FILTERED, Copier, Copy, LeftError


@dataclass
class Report(Result):
    """Counts of messages.

    ``before`` and ``after``: ready in the source's queues. ``moved``: by destination queue, into the target.
    ``delivered``: by queue, directly there, as they were due. ``poisoned``: not understood, by reason. ``left``: still
    in the source, by reason. ``copies`` were confirmed by the broker; a message for several queues has several.
    ``arrived``: entered the source during the run; None if unknown.
    """

    source: str
    target: str
    dry_run: bool = False
    before: int = 0
    after: int = 0
    moved: Counter[str] = field(default_factory=Counter)
    delivered: Counter[str] = field(default_factory=Counter)
    poisoned: Counter[str] = field(default_factory=Counter)
    left: Counter[str] = field(default_factory=Counter)
    left_on_purpose: int = 0
    taken: int = 0
    copies: int = 0
    arrived: int | None = None
    interrupted: bool = False
    complete: bool = True
    removed: list[str] = field(default_factory=list)

    @property
    def _difference(self) -> int:
        return self.before + (self.arrived or 0) - (0 if self.dry_run else self.taken) - self.after

    @property
    def came_due(self) -> int:
        """How many messages became due and left the source during the run."""
        return max(0, self._difference)

    @property
    def surplus(self) -> int:
        """How many more messages are left in the source than expected."""
        return max(0, -self._difference)

    @property
    def adds_up(self) -> bool:
        """Whether each taken message has a confirmed copy, and no unexplained messages are left."""
        if self.dry_run:
            return not self.surplus
        copied = sum((self.moved + self.delivered + self.poisoned).values())
        return copied == self.copies and self.taken <= self.copies and not self.surplus

    @property
    def needs_a_person(self) -> bool:
        """Whether an operator has to act."""
        return (
            not self.adds_up
            or self.interrupted
            or not self.complete
            or bool(self.poisoned)
            or sum(self.left.values()) > self.left_on_purpose
        )

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        more = {"came_due": self.came_due, "surplus": self.surplus, "adds_up": self.adds_up}
        return {**super().to_json(), **more}


#: The maximum number of unconfirmed copies, and so of the messages that a killed run leaves twice.
WINDOW = 32
#: Seconds without a delivery after which a queue is checked again.
IDLE = 0.1
#: Messages return to the source while it is emptied: from workers that consume a loop, or from their publishers.
MOST_PASSES = 20
#: Seconds in which the broker's counts settle after the last ack.
SETTLE = 3.0


@dataclass
class _Moving:
    message: Message
    copies: list[Copy]
    #: How many of them are unconfirmed.
    waiting: int
    #: Those that were refused, and why.
    refused: list[tuple[Copy, str]] = field(default_factory=list)
    is_poisoned: bool = False


class Mover:
    """Empties the queues of a source.

    ``limit``: how many messages at most. ``stopped`` is called often; when it returns true, the run finishes the window
    and ends. ``progress`` is called with the number of messages that were just handled.
    """

    def __init__(
        self, connection: Connection, source: Source, copier: Copier, report: Report, *, window: int = WINDOW,
        limit: int | None = None, stopped: Callable[[], bool] = bool, progress: Callable[[int], object] = bool,
    ) -> None:  # fmt: skip
        self._connection, self._source, self._copier, self._report = connection, source, copier, report
        self._window, self._limit, self._stopped, self._progress = window, limit, stopped, progress
        self._left: dict[str, Counter[str]] = {}
        self._planned = 0

    def run(self) -> None:
        """Move all messages that can be moved. Fills in the report."""
        report = self._report
        publisher = ConfirmingPublisher(confirming_channel(self._connection))
        for _ in range(MOST_PASSES):
            before = report.taken
            for queue in self._source.queues:
                if self._new(queue) and not self._finished:
                    drain = _Drain(self, queue, publisher)
                    self._left[queue] = drain.left
                    drain.run()
            if report.taken == before or self._finished:
                break
        else:
            report.complete = False
        report.left = sum(self._left.values(), Counter())
        report.left_on_purpose = report.left[_FILTERED]
        report.interrupted = self._stopped()

    def _new(self, queue: str) -> int:
        """Return how many messages of a queue were not left there by an earlier pass."""
        count = ready_counts(self._connection, [queue])[queue] or 0
        return max(0, count - sum(self._left.get(queue, Counter()).values()))

    @property
    def _finished(self) -> bool:
        return self._stopped() or (self._limit is not None and self._planned >= self._limit)

    @property
    def first_window(self) -> int:
        """How many messages to fetch first: few more than are moved, as a quorum queue requeues the rest at its end."""
        return self._window if self._limit is None else max(1, min(self._window, self._limit - self._planned))

    def inspect(self) -> None:
        """Count what would happen to each message, and requeue it to its place."""
        for queue in self._source.queues:
            if not self._new(queue) or self._finished:
                continue
            with scanning(self._connection, queue, SCAN_LIMIT, is_delay_queue=True) as scan:
                for message in scan:
                    self._inspect(queue, message)
                    self._progress(1)
                    if self._finished:
                        break
        self._report.left_on_purpose = self._report.left[_FILTERED]

    def _inspect(self, queue: str, message: Message) -> None:
        self._copier.check_inspections(message)
        try:
            copies = self._copier.copies(queue, message)
        except LeftError as error:
            self._report.left[str(error)] += 1
            return
        self._planned += 1
        self._report.taken += 1
        self.count(copies)

    def count(self, copies: list[Copy]) -> None:
        """Add the copies of one message to the report."""
        for copy in copies:
            getattr(self._report, copy.counted)[copy.by] += 1


class _Drain:
    """One pass over one queue with a consumer: quorum queues deliver much faster to a consumer than by basic.get."""

    def __init__(self, mover: Mover, queue: str, publisher: ConfirmingPublisher) -> None:
        self._mover, self._queue, self._publisher = mover, queue, publisher
        self._connection: Connection = mover._connection
        self._report, self._copier, self._window = mover._report, mover._copier, mover._window
        self._broker = capabilities(self._connection)
        self._channel: Any = self._connection.channel()
        self._channel.auto_decode = False
        self._backlog: deque[amqp.Message] = deque()
        self._held: dict[int, None] = {}
        #: Messages whose copies were accepted by some queues and refused by others.
        self._partly: deque[_Moving] = deque()
        self._moving = 0
        self._prefetch = 0
        self._handled = 0
        #: Numbers of messages left, by reason.
        self.left: Counter[str] = Counter()
        self._tag = ""

    def run(self) -> None:
        """Handle as many messages as are ready at the start, and no more."""
        there = self._ready()
        try:
            self._consume(self._mover.first_window)
            while self._handled < there and not self._mover._finished:
                if self._backlog and self._moving < self._window:
                    self._handle(self._backlog.popleft())
                elif not self._wait() and not self._moving and not self._backlog and not self._ready():
                    break
        finally:
            if self._connection.connected and self._channel.is_open:
                self._finish()
                self._channel.close()

    def _finish(self) -> None:
        """Wait for the confirms of published copies, ack their messages, and requeue the other fetched messages."""
        self._cancel()
        while self._moving:
            self._wait()
        with suppress(NotFound):  # a queue of `hold` expired while its last messages were unacked
            work_off(self._channel, self._queue, self._backlog.append)
            kept = sorted([*self._held, *(raw.delivery_tag for raw in self._backlog)])
            requeue(self._channel, self._queue, kept)

    def _consume(self, prefetch: int) -> None:
        self._prefetch = prefetch
        self._channel.basic_qos(0, prefetch, False)
        self._tag = self._channel.basic_consume(self._queue, callback=self._backlog.append)

    def _cancel(self) -> None:
        if self._tag:
            self._channel.basic_cancel(self._tag)
            self._channel.callbacks.pop(self._tag, None)
        self._tag = ""

    def _handle(self, raw: amqp.Message) -> None:
        self._handled += 1
        self._held[raw.delivery_tag] = None
        message = self._channel.message_to_python(raw)
        try:
            copies = self._copier.copies(self._queue, message)
            made = [_made(message, copy, self._broker) for copy in copies]
        except LeftError as error:
            self._hold(message, str(error))
            return
        for copy in copies:
            self._copier.prepare(copy)
        del self._held[raw.delivery_tag]
        self._mover._planned += 1
        self._moving += 1
        moving = _Moving(message, copies, len(copies))
        for copy, each in zip(copies, made, strict=True):
            self._publisher.publish(each, copy.route, partial(self._done, moving, copy))

    def _done(self, moving: _Moving, copy: Copy, error: PublishError | None) -> None:
        if error is None:
            self._report.copies += 1
        else:
            moving.refused.append((copy, f"refused: {error}"))
        moving.waiting -= 1
        if not moving.waiting:
            self._settle(moving)

    def _settle(self, moving: _Moving) -> None:
        taken = len(moving.copies) - len(moving.refused)
        if moving.refused and taken and not moving.is_poisoned:
            self._partly.append(moving)
            return
        self._moving -= 1
        if moving.refused:
            self._report.copies -= taken
            others = [copy.by for copy in moving.copies if copy.counted != "poisoned"] if moving.is_poisoned else []
            reason = moving.refused[0][1]
            if others:
                reason += f"; {', '.join(others)} already have it, and get it again in the next run"
            self._hold(moving.message, reason)
            return
        self._channel.basic_ack(moving.message.delivery_tag)
        self._report.taken += 1
        self._mover.count(moving.copies)
        self._mover._progress(1)

    def _poison_the_rest(self) -> None:
        """Publish refused copies to the poison queue if other queues have theirs, so that none gets a message twice."""
        while self._partly:
            moving = self._partly.popleft()
            rest = [self._copier.poisoned(self._queue, moving.message, copy, why) for copy, why in moving.refused]
            refused = [copy for copy, _ in moving.refused]
            moving.copies = [copy for copy in moving.copies if copy not in refused] + rest
            moving.refused, moving.waiting, moving.is_poisoned = [], len(rest), True
            for copy in rest:
                self._copier.prepare(copy)
                made = _made(moving.message, copy, self._broker)
                self._publisher.publish(made, copy.route, partial(self._done, moving, copy))

    def _hold(self, message: Message, reason: str) -> None:
        """Keep a message unacked until the end, and raise the prefetch count for others."""
        self.left[reason] += 1
        self._held[message.delivery_tag] = None
        self._mover._progress(1)
        if self._tag and len(self._held) > self._prefetch - self._window // 2:
            self._cancel()
            self._consume(2 * len(self._held) + self._window)

    def _wait(self) -> bool:
        """Wait for deliveries and confirms; return whether any arrived."""
        self._poison_the_rest()
        began = time.monotonic()
        while True:
            with suppress(TimeoutError):
                self._connection.drain_events(timeout=IDLE)
                return True
            if not self._moving:
                return False
            if time.monotonic() - began > CONFIRM_TIMEOUT:
                raise OutcomeUnknownError(
                    f"No confirm in {CONFIRM_TIMEOUT:g} s for {self._moving} messages of {self._queue!r}. They stay "
                    "there, and may be in the target, too."
                )

    def _ready(self) -> int:
        return ready_counts(self._connection, [self._queue])[self._queue] or 0


def _made(message: Message, copy: Copy, broker: Capabilities) -> amqp.Message:
    """Return a copy ready to publish. Raises `LeftError` if AMQP cannot encode its headers."""
    made = parked_copy(message, copy.headers, copy.route, broker)
    try:
        made._serialize_properties()
    except (AMQPError, AttributeError, TypeError, ValueError, struct.error) as error:
        raise LeftError(f"its headers cannot be written ({error})") from error
    return made
