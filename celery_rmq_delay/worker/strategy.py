"""The consumer's strategy for messages of a `RetryableTask`: decides what to do with a delivery."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

from celery import Celery, Task
from celery.app.task import Context
from celery.bootsteps import CLOSE, TERMINATE  # type: ignore[attr-defined]  # the stubs lack them
from celery.exceptions import InvalidTaskError
from celery.worker.request import create_request_cls
from celery.worker.strategy import default
from kombu.message import Message
from kombu.utils.imports import symbol_by_name

from .. import headers as h
from ..durations import aware_eta, until_ms
from ..exceptions import DelayError, SettingsError
from ..ladders import Ladder
from ..names import quarantine
from ..retry.decision import Action, Arrival, Place, arrive, forgive
from ..retry.delivery import KEY
from .flight import InFlight, Owed, flight_of
from .intake import check_payload
from .queues import ConsumedQueues

logger = logging.getLogger(__name__)

#: The attribute of Celery's consumer that holds its `ConsumedQueues`.
ATTRIBUTE = "rmq_delay"
#: The headers that are not custom ones, as in `celery.app.task.Context`.
_CELERYS = frozenset({*vars(Context), "lang", "task", "argsrepr", "kwargsrepr", "compression"})


def strategy(task: Task[Any, Any], app: Celery, consumer: Any) -> Callable[..., Any]:
    """Return the message handler of ``task``: decides on the delivery, then calls Celery's handler to run it."""
    handle = default(task, app, consumer)
    queues = getattr(consumer, ATTRIBUTE, None)
    if queues is None:
        return handle
    request_class = create_request_cls(
        symbol_by_name(task.Request), task, consumer.pool, consumer.hostname, consumer.event_dispatcher, app=app
    )

    def on_message(message: Message, body: Any, ack: Any, reject: Any, callbacks: Any, **options: Any) -> Any:
        flight = flight_of(message)
        found = _decide(queues, flight, body, task)
        if found is None or found.action is Action.RUN:
            return handle(message, body, ack, reject, callbacks, **options)
        if found.action is Action.ADOPT:
            flight.attempt.adopt(flight, ack, reject)
        if found.action is Action.EXHAUSTED:
            request_class(
                message,
                on_ack=ack,
                on_reject=reject,
                app=app,
                hostname=consumer.hostname,
                eventer=consumer.event_dispatcher,
                task=task,
                connection_errors=consumer.connection_errors,
            ).give_up_crashed(found.crashes)
        return None

    return on_message


def _decide(queues: ConsumedQueues, flight: InFlight, body: Any, task: Task[Any, Any]) -> Arrival | None:
    """Read a delivery: store its attempt count and `Delivery` where Celery and the task read them.

    Returns what to do with it, None if its queue is excluded. A message that is not run or given up is being moved
    to another queue when this returns, or is moved when the worker has stopped.
    """
    message, raw, settling = flight.message, flight.headers, queues.settling
    known = _place(queues, flight, task)
    if known is None:
        if body:
            body.pop(KEY, None)
        return None
    place, ladder = known
    eta = _eta_to_come(queues.consumer.app, (body or {}).get("eta") or raw.get("eta"))
    is_stopping = queues.consumer.blueprint.state in (CLOSE, TERMINATE)  # and not only reconnecting
    redelivered = flight.came["redelivered"]
    found = arrive(
        raw,
        place,
        ladder,
        known=raw.get("retries", (body or {}).get("retries")),
        routing_key=flight.came["routing_key"],
        redelivered=redelivered,
        eta_ahead=bool(eta),
        is_stopping=is_stopping,
        has_room=not place.is_quarantined or queues.quarantine.have_room,
        priority=h.whole_number(message.properties.get("priority")),
    )
    flight.manage(settling, found, raw.get("id", (body or {}).get("id")), task.name)
    found = _of_this_worker(flight, found, came_before=redelivered or place.is_quarantined)
    settling.received(message)
    message.delivery_info["redelivered"] = found.redelivered
    if h.PRIORITY in raw and (priority := h.priority(raw)):
        message.properties["priority"] = message.delivery_info["priority"] = priority
    check_payload(message.payload)
    eta = eta if found.keeps_eta else None
    _show(flight, eta, has_body=bool(body))
    if found.action is Action.QUARANTINE:
        settling.quarantine(flight, found.crashes)
    elif found.action is Action.HOLD:
        # Its publisher did not do so: it does not use this package, or did not know the queue.
        settling.publish(flight, partial(settling.copies.until, flight, eta))
    elif found.action is Action.RETURN and not is_stopping:
        _wait_for_room(queues, flight)
    elif place.is_applied and found.action in (Action.RUN, Action.RETURN):
        # A message to return waits for the end of its consumer: it would be delivered again at once.
        flight.owed, settling.to_return[flight] = Owed.START, None
        if place.is_quarantined:
            queues.quarantine.note_begun()
    return found


def _place(queues: ConsumedQueues, flight: InFlight, task: Task[Any, Any]) -> tuple[Place, Ladder] | None:
    """Return the place of a delivery, and its task's ladder; None if its queue is excluded. Cached for a connection."""
    queue, is_applied = flight.queue, flight.queue in queues.settling.applied
    known = (flight.is_quarantined, queue, task.name, is_applied, queues.delay.learned(queue))  # all that can change
    try:
        return queues.places[known]
    except KeyError:
        found = queues.places[known] = _find_place(queues, flight, task, is_applied=is_applied)
        return found


def _find_place(
    queues: ConsumedQueues, flight: InFlight, task: Task[Any, Any], *, is_applied: bool
) -> tuple[Place, Ladder] | None:
    delay, settling, queue = queues.delay, queues.settling, flight.queue
    broker = settling.copies.broker
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
        flight.is_quarantined,
        is_applied=is_applied,
        is_planned=delay.is_planned(queue, task),
        own_tiers_of=None if delay.settings.task_ladder(queue, task) is None else task.name,
        counts=is_quorum,
        broker=broker,
        rejects=delay.rejects(queue),
        rejections_allowed=delay.rejections_allowed(queue),
        flags_returned=broker.flags_returned and not is_quorum,
        sorts=broker.sorts_quorum and delay.queue_type(queue) == "quorum",
        has_single_consumer=delay.has_single_consumer(queue),
        native_retry=None if flight.is_quarantined else settling.native_retry(queue),
        max_crashes=settings.max_crashes,
    )
    return place, delay.ladder(queue, task)


def _of_this_worker(flight: InFlight, found: Arrival, *, came_before: bool) -> Arrival:
    """Return what to do with a message that may have been delivered before, for an attempt of this worker."""
    attempts = flight.settling.attempts
    if not came_before:
        if found.action is Action.RUN:
            attempts.meet(flight.key)
        return found
    flight.attempt = attempts.of(flight.key)
    if flight.attempt is not None:
        return found._replace(action=Action.ADOPT)
    return forgive(found, flight.headers) if attempts.was_cancelled(flight.key) else found


def _show(flight: InFlight, eta: Any, *, has_body: bool) -> None:
    """Set the headers from which Celery makes the task's request."""
    raw = flight.headers
    shown = h.of_task({name: value for name, value in raw.items() if name not in _CELERYS})
    nested = raw.get("headers")  # of a tracing tool; Celery shows a task these, without the others
    seen = {**shown, **h.of_task(nested)} if isinstance(nested, dict) else shown
    facts = {"retries": flight.retries, KEY: flight.delivery, "eta": eta, "headers": seen}
    # Protocol 1 has the task's facts in the body; Celery overrides them with the headers.
    flight.message.headers = {**(shown if has_body else raw), **facts}


def _wait_for_room(queues: ConsumedQueues, flight: InFlight) -> None:
    """Move a quarantined task that would wait for the pool to the end of its queue, until the pool has room.

    If its worker is killed meanwhile, it would look like the task that killed it.
    """
    task_id, queue = flight.headers.get("id"), flight.queue
    text = "The pool has no free process: the task %r goes to the end of %s until it has one"
    logger.info(text, task_id, quarantine(queue), extra={"queue": queue, "task_id": task_id})
    queues.quarantine.wait_for_room(queue)
    queues.settling.copy_to(quarantine(queue), flight, {})


def _eta_to_come(app: Celery, eta: Any) -> Any:
    """Return the eta of a message, unless it is past. Raises Celery's `InvalidTaskError` for an invalid one."""
    if not eta:
        return None
    try:
        return eta if until_ms(aware_eta(app, eta)) else None
    except DelayError as error:
        raise InvalidTaskError(str(error)) from error
