"""The queues that a worker consumes: their ladders, their quarantined tasks, and their due messages.

A queue is consumed once its ladder is applied.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from amqp.exceptions import NotFound
from kombu import Connection, Consumer, Queue
from kombu.common import ignore_errors
from kombu.message import Message

from .. import headers as h
from ..amqp.apply import drift
from ..amqp.connections import beside
from ..amqp.copies import copy_of
from ..amqp.route import Route
from ..app.state import AppState
from ..commands import command
from ..events.reporter import Reporter
from ..exceptions import BrokerBlockedError, LockTimeoutError, OutcomeUnknownError, RmqDelayError, TopologyError
from ..ladders import Ladder
from ..retry.decision import Place
from ..settings.parser import check_hook
from ..topology.exact.alternatives import Loop
from .applying import Applying, Step, apply_ladder, ladder_in_force, not_as_planned, plan_of
from .copies import Copy, Failure
from .flight import InFlight
from .quarantine import TAG as QUARANTINE_TAG
from .quarantine import Quarantine
from .settle import Settling
from .shutdown import take_the_rest

logger = logging.getLogger(__name__)

#: Temporary errors, which are not caused by the configuration.
_PASSING = (BrokerBlockedError, LockTimeoutError, OutcomeUnknownError)
_NOT_CONSUMED = "The ladder of queue %s cannot be applied: %s The queue is not consumed until it is. Trying again"
_AS_BEFORE = (
    "The ladder of queue %s cannot be applied: %s The queue is consumed with the ladder that was applied before. "
    "Trying again"
)
#: Seconds between two attempts to declare missing objects again.
_REAPPLY_SECONDS = 10.0


class ConsumedQueues:
    """The queues of one consumer; created once, and connected with every new connection."""

    #: The consumer of quarantined tasks, and the steps to try again, on the last connection.
    quarantine: Quarantine
    _applying: Applying

    def __init__(self, consumer: Any, delay: AppState) -> None:
        self.consumer, self.delay = consumer, delay
        self.settling = Settling(consumer, delay, self.on_missing)
        #: By consumer tag: the origin queue, and whether its quarantined tasks are consumed.
        self._tags: dict[str, tuple[str, bool]] = {}
        #: The facts of deliveries that the strategy has found on this connection.
        self.places: dict[tuple[object, ...], tuple[Place, Ladder] | None] = {}
        self._releasers: list[Releaser] = []
        #: The queues whose ladders this process has applied, on any connection.
        self._known: set[str] = set()
        #: The queues to consume once their ladders are applied.
        self._postponed: set[str] = set()
        #: Whether the worker is starting, and so ends on a configuration error.
        self._starts = True
        self._reapply_at = 0.0
        self._was_connected = False

    # -- connecting ----------------------------------------------------------------------------------------------

    def connect(self) -> None:
        """Apply the ladders of the consumed queues and start to consume quarantined tasks. Blocks."""
        connection = self.consumer.connection
        publisher = self.settling.open(connection)
        handle = self.consumer.create_task_handler()
        self.quarantine = Quarantine(self.consumer, publisher, handle, self.consumer.on_decode_error)
        self.places.clear()
        self._tags.clear()
        self._postponed.clear()
        self._applying, self._was_connected = Applying(self.consumer, publisher), True
        self.delay.on_declared = self.add_queue
        for name in list(self.consumer.app.amqp.queues.consume_from):
            self.add_queue(name)
        self._limit_each_consumer()
        self._connect_exact(connection)  # after the steps that may refuse this worker
        self._connect_events()
        consumer = self.consumer.task_consumer
        consumer.add_queue = partial(self._add_to, consumer, consumer.add_queue)
        self._starts = False
        self.consumer.call_soon(self.quarantine.start)

    def _limit_each_consumer(self) -> None:
        """Apply the prefetch count per consumer if a quorum queue differs from its plan, for RabbitMQ before 4.0."""
        consumer, differing = self.consumer, self.delay.differing
        if any(self.delay.is_quorum(name) for name in differing.intersection(consumer.app.amqp.queues.consume_from)):
            consumer.task_consumer.qos(prefetch_count=0, apply_global=True)
            consumer.qos.callback = partial(consumer.task_consumer.qos, apply_global=False)
            consumer.qos_global = False
            consumer.qos.set(consumer.qos.value)

    def _connect_exact(self, connection: Any) -> None:
        self._releasers = []
        step = self._exact_step
        try:
            step.act(connection)
            step.done()
        except RmqDelayError as error:
            if self._starts or self.delay.settings.strict:
                raise
            logger.error("%s cannot be applied: %s Trying again", step.what, error)
            self._applying.later(step)

    @property
    def _exact_step(self) -> Step:
        return Step("The topology of exact delays", self._declare_exact, self._release)

    def _declare_exact(self, connection: Any) -> None:
        exact = self.delay.exact
        self.settling.copies.choose(connection)
        if self.delay.settings.apply_on_start:
            exact.declare(connection)
        elif missing := drift(connection, exact.topology(connection).frame()):
            raise TopologyError(not_as_planned("Exact delays", missing))

    def _release(self) -> None:
        if self._releasers:
            return
        releasers = [Releaser(self.settling, each) for each in self.delay.exact.topologies if isinstance(each, Loop)]
        for releaser in releasers:
            releaser.consume(self.consumer.connection)
        self._releasers = releasers

    def _connect_events(self) -> None:
        settling = self.settling
        if settling.reporter is None and self.delay.settings.events.on:
            check_hook(self.delay.settings.redaction, self.delay.setting)
            settling.reporter = Reporter(self.consumer, self.delay)
        if settling.reporter is not None:
            settling.reporter.start()

    def add_queue(self, name: str) -> None:
        """Apply the ladder of a consumed queue and consume its quarantined tasks; bind a queue that has no ladder.

        If that is not possible now, it is tried again. Meanwhile the queue is consumed only if a ladder was applied
        before: without one, rejected messages are lost.
        """
        if not self.settling.in_loop():
            return
        if not self._is_consumed(name):
            self._bind(name)
            return
        if name in self.settling.applied:
            if not self.quarantine.takes(name):  # its consumer was cancelled since
                self._take(name)
            return
        step = self._step(name)
        try:
            with beside(self.consumer.connection) as connection:
                step.act(connection)
        except (RmqDelayError, *self.consumer.connection_errors) as error:
            self._postpone(name, step, error)
        else:
            self._take(name)

    def _bind(self, name: str) -> None:
        """Route due messages to a consumed queue that cannot have a ladder: its retries have exact delays."""
        app, settings = self.consumer.app, self.delay.settings
        queue = app.amqp.queues.consume_from.get(name)
        # Only its own connection may bind an exclusive queue.
        if queue is None or queue.exclusive or settings.for_queue(name) is None or not settings.apply_on_start:
            return
        step = Step(f"The binding of queue {name}", partial(self.delay.exact.bind, queue=name), lambda: None)
        try:
            with beside(self.consumer.connection) as connection:
                step.act(connection)
        except (RmqDelayError, *self.consumer.connection_errors, *self.consumer.channel_errors) as error:
            logger.warning("%s cannot be applied yet: %s", step.what, error)
            self._applying.later(step)

    def cancel_queue(self, cancel: Callable[[str], object], name: str) -> None:
        """Cancel the consumer of a queue with Celery's ``cancel``, and that of its quarantined tasks."""
        self._read_tags()  # of deliveries in transit
        take_the_rest(self.settling)
        cancel(name)
        self.quarantine.cancel_queue(name)

    def _is_consumed(self, name: str) -> bool:
        return name in self.consumer.app.amqp.queues.consume_from and name in self.delay.origin_queues()

    def _step(self, name: str) -> Step:
        def act(connection: Connection) -> None:
            apply_ladder(connection, self.delay, name, self.settling.copies.broker, known=name in self._known)
            self._known.add(name)

        return Step(f"The ladder of queue {name}", act, partial(self._resume, name))

    def _postpone(self, name: str, step: Step, error: BaseException) -> None:
        """Consume a queue whose ladder cannot be applied now, or postpone it; raise an error that needs an operator."""
        is_passing = isinstance(error, _PASSING) or not isinstance(error, RmqDelayError)
        if self.delay.settings.strict or (self._starts and not is_passing):
            raise error
        self._applying.later(step)
        plan = plan_of(self.delay, name, self.settling.copies.broker)
        found = ladder_in_force(self.consumer.connection, plan, known=name in self._known)
        level, text = (logging.ERROR, _NOT_CONSUMED) if found is None else (logging.WARNING, _AS_BEFORE)
        logger.log(level, text, name, str(error) or repr(error), extra={"queue": name})
        if found is None:
            self._postponed.add(name)
            self._read_tags()  # of deliveries in transit
            self.consumer.task_consumer.cancel_by_queue(name)
            return
        if name in self.delay.differing and name not in self._known:
            self.delay.learn(name, found.adoption)
        self._take(name)

    def _add_to(self, consumer: Consumer, add: Callable[[Queue], Queue], queue: Queue) -> Queue:
        """Add a queue to the consumer, for the command `add_consumer`, unless it has to wait for its ladder."""
        queues = self.consumer.app.amqp.queues
        if queue.name not in queues.consume_from:
            queues.select_add(queue)  # as Celery does since 5.7 for a known queue
        added = add(queue)  # declares it, and so applies its ladder, unless it is known to differ
        if added.name not in self._postponed:
            self.add_queue(added.name)
        if added.name in self._postponed:
            consumer.cancel_by_queue(added.name)
        return added

    def _take(self, name: str) -> None:
        """Consume the quarantined tasks of a queue whose ladder is applied; let its rejected messages advance."""
        self.settling.applied.add(name)
        self._postponed.discard(name)
        self.quarantine.add(name)

    def _resume(self, name: str) -> None:
        if name in self.settling.applied or not self._is_consumed(name):
            return
        self._take(name)
        self.consumer.add_task_queue(name)

    def on_missing(self, route: Route | None = None) -> None:
        """Declare the objects of ``route``, which may be deleted; apply all ladders again, every 10 s at most."""
        if route is not None and any(route.objects) and self.delay.settings.apply_on_start:
            declare = partial(self.delay.exact.prepare, route=route)
            self._applying.later(Step(f"The route to {route.where}", declare, lambda: None))
        if time.monotonic() < self._reapply_at:
            return
        self._reapply_at = time.monotonic() + _REAPPLY_SECONDS
        logger.warning("An exchange or queue for copies is missing: applying the ladders of all queues again")
        self._applying.later(self._exact_step)
        for name in list(self.settling.applied):
            self._applying.later(self._step(name))

    def _apply_no_more(self) -> None:
        """Stop applying ladders until `connect`: Celery's next consumer declares its queues before that."""
        self.delay.on_declared = None
        self._applying.stop()

    def stop_taking(self) -> None:
        """Stop consuming quarantined tasks, and stop releasing messages."""
        if not self._was_connected:
            return
        self._read_tags()  # for messages that arrive while a consumer is cancelled
        self._apply_no_more()
        take_the_rest(self.settling)
        self.quarantine.let_go()
        ignore_errors(self.consumer, self.quarantine.cancel)  # a broker may not reply
        for each in self._releasers:
            ignore_errors(self.consumer, each.cancel)

    def lose(self) -> None:
        """Leave unsettled messages to the broker: the consumer's connection is lost, and its copies with it."""
        if self._was_connected:
            self._apply_no_more()
            self.quarantine.forget()
        self.settling.close()

    # -- deliveries ------------------------------------------------------------------------------------------------

    def queue_of(self, tag: str) -> tuple[str, bool]:
        """Return (origin queue, whether the delivery comes from its quarantine queue) for a consumer tag."""
        if tag not in self._tags:
            self._read_tags()
        return self._tags.get(tag) or ("", tag.startswith(QUARANTINE_TAG))

    def keeps(self, message: Message, receive: Callable[[], object]) -> bool:
        """Return whether a delivery is held while a quarantined task waits for the pool; ``receive`` comes later."""
        tag = message.delivery_info.get("consumer_tag", "")
        if not self.quarantine.holds or tag.startswith(QUARANTINE_TAG):
            return False
        self.quarantine.hold(receive)
        self.settling.received(message)
        return True

    def _read_tags(self) -> None:
        if consumer := self.consumer.task_consumer:
            self._tags.update({tag: (queue, False) for queue, tag in consumer._active_tags.items()})
        of_quarantine = self.quarantine.tags.items()
        self._tags.update({tag: (queue.removesuffix(".quarantine"), True) for queue, tag in of_quarantine})


#: The prefetch count of one worker, and so its maximum number of outstanding confirms.
_PREFETCH = 500


class Releaser:
    """Consumes the wait queue of a loop. Any number of workers may share it."""

    def __init__(self, settling: Settling, loop: Loop) -> None:
        self._settling, self._loop = settling, loop
        self._consumer: Consumer | None = None

    def consume(self, connection: Any) -> None:
        """Start consuming. Raises `TopologyError` if the queue does not exist."""
        channel = connection.channel()
        channel.basic_qos(0, _PREFETCH, False)
        wait = Queue(self._loop.wait, no_declare=True)
        self._consumer = Consumer(
            channel,
            [wait],
            on_message=self.on_message,
            # It is forwarded as it is: the consumer of its queue fails, too, and moves it to exhausted.
            on_decode_error=lambda message, _error: self.on_message(message),
            auto_declare=False,
        )
        try:
            self._consumer.consume()
        except NotFound as error:
            raise TopologyError(f"The queue {self._loop.wait!r} does not exist: run `{command('apply')}`.") from error

    def cancel(self) -> None:
        """Stop consuming."""
        if self._consumer is not None:
            self._consumer.cancel()

    def on_message(self, message: Message) -> None:
        """Release a message that is due by the clock; reject any other, which sends it around again."""
        address = h.exact_address(message.headers)
        if address is None:
            self._give_up(message, f"{h.DUE}={message.headers.get(h.DUE)!r}, {h.TO}={message.headers.get(h.TO)!r}")
            return
        queue, due = address
        if due > h.epoch_ms():
            message.reject_log_error(logger, self._settling.consumer.connection_errors)
        else:
            copy = Copy(copy_of(message, h.without_dead_letters(message.headers)), Route("", queue))
            # If that queue is missing, the message is rejected and goes around again.
            # Each round would add a message to the exhausted queue where that queue dead-letters what it refuses.
            again = self._settling.delay.dead_letters_refused(queue)
            self._settling.publish(InFlight(message), lambda: copy, may_reject=lambda: True, again=again)

    def _give_up(self, message: Message, found: str) -> None:
        error = RmqDelayError(f"A message in {self._loop.wait} has no valid due time and queue: {found}.")
        logger.error("%s It goes to the exhausted queue.", error)
        self._settling.exhaust(InFlight(message), Failure("undeliverable", error))
