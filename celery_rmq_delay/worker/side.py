"""The worker's main process: consumers and reading of deliveries; `settle` has the settling of messages."""

from __future__ import annotations

import logging
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from celery.app.task import Context
from celery.bootsteps import CLOSE, TERMINATE  # type: ignore[attr-defined]  # the stubs lack them
from celery.exceptions import InvalidTaskError
from kombu import Consumer, Queue
from kombu.common import ignore_errors
from kombu.exceptions import ContentDisallowed

from .. import headers as h
from ..amqp.apply import Drift, drift
from ..amqp.capabilities import capabilities
from ..amqp.connections import beside
from ..amqp.copies import parked_copy
from ..app.inventory import applied
from ..app.queues import compare
from ..commands import command
from ..durations import aware_eta, until_ms
from ..events.failures import type_name
from ..events.reporter import Reporter
from ..exceptions import (
    BrokerBlockedError,
    DelayError,
    LockTimeoutError,
    OutcomeUnknownError,
    RmqDelayError,
    SettingsError,
    TopologyError,
)
from ..names import quarantine
from ..retry.decision import Action, Arrival, Place, arrive, forgive
from ..retry.delivery import KEY, Delivery
from ..settings.events import check_hook
from ..topology.exact.loop import Loop
from ..topology.native_retry import refusal
from ..topology.transition import apply_plan
from .applying import Applying, Step, ladder_in_force
from .attempts import Key, key_of
from .loop import Releaser
from .quarantine import TAG as QUARANTINE_TAG
from .quarantine import Quarantine
from .requeues import Requeues
from .settle import Settling
from .shape import check_payload

if TYPE_CHECKING:
    from collections.abc import Callable

    from amqp import NotFound
    from celery import Task
    from kombu import Connection
    from kombu.message import Message

    from ..amqp.route import Route
    from ..app.state import AppState
    from ..ladders import Ladder
    from ..topology.ladder import LadderPlan

logger = logging.getLogger(__name__)

#: The headers that are not custom ones, as in `celery.app.task.Context`.
_CELERYS = frozenset({*vars(Context), "lang", "task", "argsrepr", "kwargsrepr", "compression"})
#: Temporary errors, which are not caused by the configuration.
_PASSING = (BrokerBlockedError, LockTimeoutError, OutcomeUnknownError)
_NOT_CONSUMED = "The ladder of queue %s cannot be applied: %s The queue is not consumed until it is. Trying again"
_AS_BEFORE = (
    "The ladder of queue %s cannot be applied: %s The queue is consumed with the ladder that was applied before. "
    "Trying again"
)
#: Seconds between two attempts to declare missing objects again.
_REAPPLY_SECONDS = 10.0
#: Seconds to wait for a record that another process holds: for the first apply of a ladder, and for later ones.
_PATIENCE, _LITTLE_PATIENCE = 30.0, 5.0


class WorkerSide(Settling):
    """The package's state for one consumer; created once, and connected with every new connection."""

    def __init__(self, consumer: Any, delay: AppState) -> None:
        super().__init__(consumer, delay)
        self._tags: dict[str, str] = {}
        #: Cached facts of queues, by everything that can change on one connection.
        self._places: dict[tuple[object, ...], tuple[Place, Ladder] | None] = {}
        self._quarantine: Quarantine | None = None
        self._releasers: list[Releaser] = []
        #: The messages to move to the end of their queue if the worker stops now, by identity, with their retries:
        #: their tasks have not started, or a cold shutdown has ended them.
        self._to_return: dict[int, tuple[Message, int]] = {}
        self.requeues = Requeues()
        #: The queues whose ladders this process has applied, on any connection.
        self._known: set[str] = set()
        #: The queues to consume once their ladders are applied.
        self._postponed: set[str] = set()
        #: Whether the worker is starting, and so ends on a configuration error.
        self._starts = True
        self._applying: Applying | None = None
        self._reapply_at = 0.0

    # -- connecting ----------------------------------------------------------------------------------------------

    def connect(self) -> None:
        """Apply the ladders of the consumed queues and start to consume quarantined tasks. Blocks."""
        connection = self.consumer.connection
        self.attempts.connect()
        self._broker = capabilities(connection)
        publisher = self.open(connection)
        handle = self.consumer.create_task_handler()
        self._quarantine = Quarantine(self.consumer, publisher, handle, self.on_decode_error)
        self._tags.clear()
        self._places.clear()
        self._to_return.clear()
        self._waiting.clear()
        self._postponed.clear()
        self.applied.clear()
        self._applying = Applying(self.consumer, publisher)
        self.delay.on_declared = self.add_queue
        for name in list(self.consumer.app.amqp.queues.consume_from):
            self.add_queue(name)
        self._limit_each_consumer()
        self._connect_exact(connection)  # after the steps that may refuse this worker
        self._connect_events()
        consumer = self.consumer.task_consumer
        consumer.add_queue = partial(self._add_to, consumer, consumer.add_queue)
        self._starts = False
        self.consumer.call_soon(self._quarantine.start)

    def _limit_each_consumer(self) -> None:
        """Apply the prefetch count per consumer, not per channel, if a quorum queue differs from its plan.

        Otherwise RabbitMQ before 4.0 refuses to consume it. Celery does the same if the app declares a quorum queue.
        """
        consumer, differing = self.consumer, self.delay.differing
        if any(self.delay.is_quorum(name) for name in differing.intersection(consumer.app.amqp.queues.consume_from)):
            consumer.task_consumer.qos(prefetch_count=0, apply_global=True)
            consumer.qos.callback = partial(consumer.task_consumer.qos, apply_global=False)
            consumer.qos_global = False
            consumer.qos.set(consumer.qos.value)

    def misses_quarantine(self, error: NotFound) -> bool:
        """Whether a quarantine queue does not exist, which the next connection declares."""
        return any(f"'{quarantine(name)}'" in str(error.reply_text) for name in self.applied)

    @property
    def _is_stopping(self) -> bool:
        """Whether the worker is shutting down, and not only reconnecting."""
        return self.consumer.blueprint.state in (CLOSE, TERMINATE)

    def _connect_exact(self, connection: Any) -> None:
        self._releasers = []
        try:
            self._declare_exact(connection)
            self._release()
        except RmqDelayError as error:
            if self._starts or self.delay.settings.strict:
                raise
            logger.error("The topology of exact delays cannot be applied: %s Trying again", error)
            self._applying_now.later(self._exact_step)

    @property
    def _exact_step(self) -> Step:
        return Step("The topology of exact delays", self._declare_exact, self._release)

    def _declare_exact(self, connection: Any) -> None:
        exact = self.delay.exact
        self.choose(connection)
        if self.delay.settings.apply_on_start:
            exact.declare(connection)
        elif missing := drift(connection, exact.topology(connection).frame()):
            raise TopologyError(_not_as_planned("Exact delays", missing))

    def _release(self) -> None:
        """Start to release the due messages of the loops."""
        if self._releasers:
            return
        releasers = [Releaser(self, each) for each in self.delay.exact.topologies if isinstance(each, Loop)]
        for releaser in releasers:
            releaser.consume(self.consumer.connection)
        self._releasers = releasers

    def _connect_events(self) -> None:
        if self.reporter is None and self.delay.settings.events.on:
            check_hook(self.delay.settings.redaction, self.delay.setting)
            self.reporter = Reporter(self.consumer, self.delay)
        if self.reporter is not None:
            self.reporter.start()

    def add_queue(self, name: str) -> None:
        """Apply the ladder of a consumed queue and consume its quarantined tasks; bind a queue that has no ladder.

        If that is not possible now, it is tried again. Meanwhile the queue is consumed only if a ladder was applied
        before: without one, rejected messages are lost.
        """
        if not self._in_loop():
            return
        if not self._is_consumed(name):
            self._bind(name)
            return
        if name in self.applied:
            if not self._quarantine_now.takes(name):  # its consumer was cancelled since
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
            self._applying_now.later(step)

    def cancel_queue(self, cancel: Callable[[str], object], name: str) -> None:
        """Cancel the consumer of a queue with Celery's ``cancel``, and that of its quarantined tasks."""
        self._read_tags()  # of deliveries in transit
        self.take_the_rest()
        cancel(name)
        self._quarantine_now.cancel_queue(name)

    def _is_consumed(self, name: str) -> bool:
        return name in self.consumer.app.amqp.queues.consume_from and name in self.delay.origin_queues()

    def _step(self, name: str) -> Step:
        return Step(f"The ladder of queue {name}", partial(self._apply, name), partial(self._resume, name))

    def _plan(self, name: str) -> LadderPlan:
        return self.delay.plan(name, reason_routing=self._broker.reports_death_reason)

    def _apply(self, name: str, connection: Connection) -> None:
        """Apply the ladder of a queue, in any thread. Blocks."""
        compare(self.consumer.app, name, connection)
        quorum = self.delay.is_quorum(name) and self.delay.queue_type(name) == "quorum"
        if self.delay.has_native_retry(name) and (refused := refusal(name, self._broker, quorum=quorum)):
            raise TopologyError(refused)
        plan = self._plan(name)
        if self.delay.settings.apply_on_start:
            if apply_plan(connection, plan, _LITTLE_PATIENCE if name in self._known else _PATIENCE, quick=True):
                logger.info("Applied the ladder of queue %s", name, extra={"queue": name})
        elif missing := self._missing(connection, plan):
            raise TopologyError(_not_as_planned(f"Queue {name!r}", missing))
        if name in self.delay.differing:
            self._read_adoption(connection, plan)
        else:
            self.delay.adopted.pop(name, None)
        if self.delay.settings.apply_on_start:
            self.delay.exact.bind(connection, name)
        self._known.add(name)

    def _postpone(self, name: str, step: Step, error: BaseException) -> None:
        """Consume a queue whose ladder cannot be applied now, or postpone it; raise an error that needs an operator."""
        is_passing = isinstance(error, _PASSING) or not isinstance(error, RmqDelayError)
        if self.delay.settings.strict or (self._starts and not is_passing):
            raise error
        self._applying_now.later(step)
        found = ladder_in_force(self.consumer.connection, self._plan(name), known=name in self._known)
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
        self.applied.add(name)
        self._postponed.discard(name)
        self._quarantine_now.add(name)

    def _resume(self, name: str) -> None:
        """Consume a queue that had to wait for its ladder."""
        if name in self.applied or not self._is_consumed(name):
            return
        self._take(name)
        self.consumer.add_task_queue(name)

    def on_missing(self, route: Route | None = None) -> None:
        """Declare the objects of ``route``; also apply all ladders again, at most every `_REAPPLY_SECONDS` seconds.

        An operator may have deleted some of them.
        """
        if route is not None and any(route.objects) and self.delay.settings.apply_on_start:
            declare = partial(self.delay.exact.prepare, route=route)
            self._applying_now.later(Step(f"The route to {route.where}", declare, lambda: None))
        if time.monotonic() < self._reapply_at:
            return
        self._reapply_at = time.monotonic() + _REAPPLY_SECONDS
        logger.warning("An exchange or queue for copies is missing: applying the ladders of all queues again")
        self._applying_now.later(self._exact_step)
        for name in list(self.applied):
            self._applying_now.later(self._step(name))

    @property
    def _applying_now(self) -> Applying:
        assert self._applying is not None  # noqa: S101 - `connect` made it
        return self._applying

    @property
    def _quarantine_now(self) -> Quarantine:
        assert self._quarantine is not None  # noqa: S101 - `connect` made it
        return self._quarantine

    def _read_adoption(self, connection: Connection, plan: LadderPlan) -> None:
        adoption = applied(connection, plan).adoption
        self.delay.learn(plan.queue, adoption)
        if adoption is not None and adoption.in_force:
            logger.info(
                "Queue %s is adopted by the policy %s: its failed tasks are rejected",
                plan.queue,
                adoption.policy,
                extra={"queue": plan.queue},
            )

    def _missing(self, connection: Any, plan: LadderPlan) -> list[Drift]:
        own = quarantine(plan.queue)  # declared by the first process
        return [each for each in drift(connection, plan.objects()) if each.name != own or each.problem == "missing"]

    def _apply_no_more(self) -> None:
        """Stop applying ladders until `connect`: Celery's next consumer declares its queues before that."""
        self.delay.on_declared = None
        if self._applying is not None:
            self._applying.stop()

    def stop_taking(self) -> None:
        """Stop consuming quarantined tasks, and stop releasing messages."""
        self._read_tags()  # for messages that arrive while a consumer is cancelled
        self._apply_no_more()
        self.take_the_rest()
        if self._quarantine is not None:
            self._quarantine.let_go()
            ignore_errors(self.consumer, self._quarantine.cancel)  # a broker may not reply
        for each in self._releasers:
            ignore_errors(self.consumer, each.cancel)

    def started(self, message: Message) -> None:
        """Record that the task of a message runs, or that the message is settled without running it."""
        message.rmq_delay_has_started = True
        self._to_return.pop(id(message), None)

    def abandon(self, message: Message, retries: int) -> None:
        """Record that a cold shutdown has ended the process of a task: its message returns as if it had not run."""
        self._to_return[id(message)] = message, retries

    def return_what_is_left(self) -> None:
        """Move each message that must be delivered again to the end of its queue.

        Its task has not started, or was ended by a cold shutdown, or its copy was not accepted. Called at shutdown,
        when the pool has stopped. Messages that the broker requeues when the connection closes look like those of a
        worker that died. In an alarm this cannot be avoided: the copies would arrive later, too.
        """
        waiting = ((message, message.headers["retries"]) for message in self._waiting.values())
        found = [*self._to_return.values(), *waiting]
        self._to_return.clear()
        self._waiting.clear()
        left = [(message, retries) for message, retries in found if not message.acknowledged]
        if left and self._publisher is not None and not self._publisher.takes_copies(self.patience):
            logger.warning(
                "RabbitMQ has an alarm, or does not reply: messages that were not started (%d) cannot be returned as "
                "copies. They are delivered again, and run from the quarantine queue",
                len(left),
            )
            return
        for message, retries in left:
            queue, is_quarantined = self._queue_of(message.delivery_info["consumer_tag"])
            if not is_quarantined and self.delay.dead_letters_refused(queue):
                continue  # it could be full: the broker delivers the message again
            self._copy_to(quarantine(queue) if is_quarantined else queue, message, retries, {})

    def requeue(
        self, message: Message, delivery: Delivery, retries: int, task: str, before_ack: Callable[[], object]
    ) -> None:
        """Move a message that its task rejects with ``requeue=True`` to the end of its origin queue.

        As a copy: requeued, it would look like a message of a worker that died.
        """
        times = h.whole_number(message.raw_headers.get(h.REQUEUED)) + 1
        self.requeues.add(delivery.queue, task, times)
        self._copy_back(message, delivery.queue, retries, times, before_ack)

    def _copy_back(
        self, message: Message, queue: str, retries: int, times: int, before_ack: Callable[[], object]
    ) -> None:
        again = partial(self._copy_back, message, queue, retries, times, before_ack)
        self._copy_to(queue, message, retries, {h.REQUEUED: times, h.CRASHES: None}, again, before_ack)

    def lose(self) -> None:
        """Leave unsettled messages to the broker: the consumer's connection is lost, and its copies with it."""
        self._apply_no_more()
        if self._quarantine is not None:
            self._quarantine.forget()
        self.close()

    # -- receiving -----------------------------------------------------------------------------------------------

    def restore_route(self, message: Message) -> None:
        """Restore the route by which a message first reached its queue, for tasks of any class.

        Celery publishes retries along it: a message from a delay queue would follow objects that may be deleted.
        """
        info = message.arrived = message.delivery_info
        message.headers.pop(KEY, None)  # it can only be forged, or copied by a task
        queue, _ = self._queue_of(info.get("consumer_tag", ""))
        if self.delay.settings.for_queue(queue) is not None:
            exchange, routing_key = h.first_route(message.headers, queue, info["exchange"], info["routing_key"])
            message.delivery_info = {**info, "exchange": exchange, "routing_key": routing_key}

    def receive(self, message: Message, body: Any, task: Task[Any, Any]) -> Arrival | None:
        """Read a delivery: store its attempt count and `Delivery` where Celery and the task read them.

        Returns what to do with it, None if its queue is excluded. A message that is not run or given up is being moved
        to another queue when this returns, or is moved when the worker has stopped.
        """
        info, raw = message.arrived, message.headers
        known = self._place(info["consumer_tag"], task)
        if known is None:
            if body:
                body.pop(KEY, None)
            return None
        place, ladder = known
        eta = self._eta_to_come((body or {}).get("eta") or raw.get("eta"))
        found = arrive(
            raw,
            place,
            ladder,
            known=raw.get("retries", (body or {}).get("retries")),
            routing_key=info["routing_key"],
            redelivered=info["redelivered"],
            eta_ahead=bool(eta),
            is_stopping=self._is_stopping,
            has_room=not place.is_quarantined or self._quarantine_now.have_room,
            priority=h.whole_number(message.properties.get("priority")),
        )
        key = key_of(raw.get("id", (body or {}).get("id")), task.name, found.retries, raw, message.body)
        found = self._of_this_worker(message, key, found, came_before=info["redelivered"] or place.is_quarantined)
        self.delivered = max(self.delivered, message.delivery_tag)  # quarantined tasks have a separate channel
        message.rmq_delay = self
        message.raw_headers = raw
        message.delivery_info["redelivered"] = found.redelivered
        if h.PRIORITY in raw and (priority := h.priority(raw)):
            message.properties["priority"] = message.delivery_info["priority"] = priority
        check_payload(message.payload)
        eta = eta if found.keeps_eta else None
        shown = h.of_task({name: value for name, value in raw.items() if name not in _CELERYS})
        nested = raw.get("headers")  # of a tracing tool; Celery shows a task these, without the others
        seen = {**shown, **h.of_task(nested)} if isinstance(nested, dict) else shown
        facts = {"retries": found.retries, KEY: found.delivery, "eta": eta, "headers": seen}
        # Protocol 1 has the task's facts in the body; Celery overrides them with the headers.
        message.headers = {**(shown if body else raw), **facts}
        if found.action is Action.QUARANTINE:
            self._move_to_quarantine(message, found.delivery, found.retries, found.crashes)
        elif found.action is Action.HOLD:
            self._hold(message, found.delivery, found.retries, eta)
        elif found.action is Action.RETURN and not self._is_stopping:
            self._wait_for_room(message, place.queue, found.retries)
        elif place.is_applied and found.action in (Action.RUN, Action.RETURN):
            # A message to return waits for the end of its consumer: it would be delivered again at once.
            self._to_return[id(message)] = message, found.retries
            if place.is_quarantined:
                self._quarantine_now.note_begun()
        return found

    def _of_this_worker(self, message: Message, key: Key, found: Arrival, *, came_before: bool) -> Arrival:
        """Return what to do with a message that may have been delivered before, for an attempt of this worker."""
        if not came_before:
            if found.action is Action.RUN:
                self.attempts.meet(key)
            return found
        if attempt := self.attempts.of(key):
            message.rmq_delay_attempt = attempt
            return found._replace(action=Action.ADOPT)
        return forgive(found, message.headers) if self.attempts.was_cancelled(key) else found

    def hold(self, message: Message, receive: Callable[[Message], object]) -> bool:
        """Hold a delivery while a quarantined task waits for the pool; return whether it is held."""
        held = self._quarantine
        if held is None or not held.holds or message.delivery_info.get("consumer_tag", "").startswith(QUARANTINE_TAG):
            return False
        held.hold(partial(receive, message))
        self.delivered = max(self.delivered, message.delivery_tag)
        return True

    def _wait_for_room(self, message: Message, queue: str, retries: int) -> None:
        """Move a quarantined task that would wait for the pool to the end of its queue, until the pool has room.

        If its worker is killed meanwhile, it would look like the task that killed it.
        """
        task_id = message.raw_headers.get("id")
        logger.info(
            "The pool has no free process: the task %r goes to the end of %s until it has one",
            task_id,
            quarantine(queue),
            extra={"queue": queue, "task_id": task_id},
        )
        self._quarantine_now.wait_for_room(queue)
        self._put_back(message, quarantine(queue), retries)

    def _put_back(self, message: Message, queue: str, retries: int) -> None:
        self._copy_to(queue, message, retries, {}, partial(self._put_back, message, queue, retries))

    def _place(self, tag: str, task: Task[Any, Any]) -> tuple[Place, Ladder] | None:
        """Return the facts of a delivery's queue, and its task's ladder; None if the queue is excluded."""
        queue, is_quarantined = self._queue_of(tag)
        known = (is_quarantined, queue, task.name, queue in self.applied, self.delay.learned(queue))
        try:
            return self._places[known]
        except KeyError:
            found = self._places[known] = self._find_place(queue, is_quarantined, task)
            return found

    def _find_place(self, queue: str, is_quarantined: bool, task: Task[Any, Any]) -> tuple[Place, Ladder] | None:
        delay = self.delay
        settings = delay.settings.for_queue(queue)
        if settings is None:
            return None
        try:
            delay.check_borrowed(task)
        except SettingsError as error:
            logger.error("%s It was declared by another app, and is run here as far as possible.", error)
        is_quorum = delay.is_quorum(queue)
        place = Place(
            queue,
            is_quarantined,
            is_applied=queue in self.applied,
            is_planned=delay.is_planned(queue, task),
            own_tiers_of=None if delay.settings.task_ladder(queue, task) is None else task.name,
            counts=is_quorum,
            broker=self._broker,
            rejects=delay.rejects(queue),
            rejections_allowed=delay.rejections_allowed(queue),
            flags_returned=self._broker.flags_returned and not is_quorum,
            sorts=self._broker.sorts_quorum and delay.queue_type(queue) == "quorum",
            has_single_consumer=delay.has_single_consumer(queue),
            native_retry=self._native_retry(queue, is_quarantined),
            max_crashes=settings.max_crashes,
        )
        return place, delay.ladder(queue, task)

    def _eta_to_come(self, eta: Any) -> Any:
        """Return the eta of a message, unless it is past.

        Raises `InvalidTaskError`, as Celery does, for an invalid one.
        """
        if not eta:
            return None
        try:
            return eta if until_ms(aware_eta(self.consumer.app, eta)) else None
        except DelayError as error:
            raise InvalidTaskError(str(error)) from error

    def _hold(self, message: Message, delivery: Delivery, retries: int, eta: Any) -> None:
        """Move a message with a future eta into the delay queues.

        Its publisher did not do so: it does not use this package, or did not know the queue.
        """
        exact = self.delay.exact
        left = until_ms(aware_eta(self.consumer.app, eta))
        if not left:  # it became due before it could be moved
            message.reject_log_error(logger, self.consumer.connection_errors, requeue=True)
            return
        held = min(left, exact.longest_ms)
        route = exact.along(self._topology, held, delivery.queue, "eta", eta)
        headers = self._forwarded(message, retries, route.headers)
        if held == left and "eta" in headers:
            headers["eta"] = None  # the broker's clock counts; a longer eta is held again
        # Requeued, it would be delivered again at once, and look like a message of a worker that died.
        again = partial(self._hold, message, delivery, retries, eta)
        copy = parked_copy(message, headers, route, self._broker)
        self.publish(message, copy, route, is_exact=True, again=again)

    def _queue_of(self, tag: str) -> tuple[str, bool]:
        """Return (origin queue, whether the delivery comes from its quarantine queue)."""
        if tag not in self._tags:
            self._read_tags()
        queue = self._tags.get(tag, "")
        return (queue.removesuffix(".quarantine"), True) if tag.startswith(QUARANTINE_TAG) else (queue, False)

    def _read_tags(self) -> None:
        consumer = self.consumer.task_consumer
        for tags in (consumer._active_tags if consumer else {}, self._quarantine.tags if self._quarantine else {}):
            self._tags.update({tag: queue for queue, tag in tags.items()})

    def may_reject(self, message: Message, error: Exception) -> bool:
        """Whether Celery may reject an unreadable message: a later attempt may read it, or its queue is excluded."""
        queue, _ = self._queue_of(message.delivery_info.get("consumer_tag", ""))
        if self.delay.settings.for_queue(queue) is None:
            return True
        return self.dead_letters(queue) and not isinstance(error, ContentDisallowed)

    def on_decode_error(
        self, message: Message, error: Exception, *, reason: str = "undecodable", traceback: str | None = None
    ) -> None:
        """Move an unreadable message to the exhausted queue; Celery would ack it and lose it, or end."""
        self.delivered = max(self.delivered, message.delivery_tag)
        queue, _ = self._queue_of(message.delivery_info.get("consumer_tag", ""))
        logger.critical(  # not the error's text, which may quote the body: that is in the message's headers
            "Cannot read a message of %s (%s, %s): %s. It goes to %s.",
            queue,
            message.content_type,
            message.content_encoding,
            type_name(error),
            self.delay.settings.exhausted_queue,
        )
        message.raw_headers = getattr(message, "raw_headers", message.headers)

        def report() -> None:
            if self.reporter is not None:
                self.reporter.emit_undecodable(message, queue, error, reason)

        # A separate attempt: earlier reports do not hide where the message is now.
        retries = h.retries(message.raw_headers, queue)
        self.move_to_exhausted(
            message,
            queue=queue,
            retries=retries,
            reason=reason,
            exception=error,
            traceback=traceback,
            before_ack=report,
        )


def _not_as_planned(what: str, missing: list[Drift]) -> str:
    listed = ", ".join(f"{each.kind} {each.name} ({each.problem})" for each in missing[:5])
    return (
        f"{what}: {len(missing)} objects are not as planned: {listed}. Messages would be lost: run "
        f"`{command('apply')}`, or set apply_on_start=True."
    )
