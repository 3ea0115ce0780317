"""What a worker waits for when it stops: messages to return, confirms, and acks that quorum queues have to read."""

from __future__ import annotations

import logging
import time
from contextlib import suppress

from celery.worker import state

from ..amqp.confirms import CONFIRM_TIMEOUT
from ..names import quarantine
from .settle import Settling

logger = logging.getLogger(__name__)

#: Seconds to wait for confirms in a cold shutdown, as Celery itself waits for a silent broker.
COLD_TIMEOUT = 5.0
#: How many acks RabbitMQ sends to a quorum queue before it has the queue's replies.
ACKS_AT_ONCE = 32
#: Seconds to wait for these replies, which wait for a disk: minimum and maximum.
ACKS_SHORTEST, ACKS_LONGEST = 1.0, 5.0
#: Minimum seconds without a delivery after which a quorum queue has delivered all messages that the acks allow.
QUIET = 0.2


def disconnect(settling: Settling) -> None:
    """Return the remaining messages, and wait for outstanding confirms; not in an alarm, in which none arrive."""
    if settling.publisher is None:
        return
    for _ in range(2):  # a confirm may release a quarantined task, and a refusal leaves its message
        _return_what_is_left(settling)
        settling.publisher.drain(_patience())
    settling.close()
    if not _is_cold():
        _let_acks_arrive(settling)


def take_the_rest(settling: Settling) -> None:
    """Receive the messages that quorum queues deliver for the acks so far, before their consumers are cancelled.

    A message that such a queue assigns to a consumer during its cancellation reaches no worker, and is redelivered
    as if a worker had died with it. A consumer with a used-up prefetch count is assigned none. Blocks.
    """
    answered = _seconds_to_answer(settling)
    if answered is None:
        return
    quiet, now = max(QUIET, 5 * answered), time.monotonic()
    until, latest, delivered = now + quiet, now + 5 * quiet, settling.delivered
    with suppress(*settling.consumer.connection_errors):
        while (now := time.monotonic()) < min(until, latest):
            with suppress(TimeoutError):
                settling.consumer.connection.drain_events(timeout=until - now)
            if settling.delivered != delivered:
                until, delivered = time.monotonic() + quiet, settling.delivered


def _return_what_is_left(settling: Settling) -> None:
    """Move each message that must be delivered again to the end of its queue.

    Its task has not started, or was ended by a cold shutdown, or its copy was not accepted. Called when the pool has
    stopped. Messages that the broker requeues when the connection closes look like those of a worker that died. In an
    alarm this cannot be avoided: the copies would arrive later, too.
    """
    left = [flight for flight in settling.to_return if not flight.message.acknowledged]
    settling.to_return.clear()
    if left and settling.publisher is not None and not settling.publisher.takes_copies(_patience()):
        logger.warning(
            "RabbitMQ has an alarm, or does not reply: messages that were not started (%d) cannot be returned as "
            "copies. They are delivered again, and run from the quarantine queue",
            len(left),
        )
        return
    for flight in left:
        if flight.is_quarantined:
            settling.copy_to(quarantine(flight.queue), flight, {}, again=False)
        elif not settling.delay.dead_letters_refused(flight.queue):  # else it could be full
            settling.copy_to(flight.queue, flight, {}, again=False)


def _let_acks_arrive(settling: Settling) -> None:
    """Wait until RabbitMQ has sent the acks to its quorum queues: a channel that closes drops the others."""
    if settling.delivered > ACKS_AT_ONCE and (answered := _seconds_to_answer(settling)) is not None:
        time.sleep(min(ACKS_LONGEST, max(ACKS_SHORTEST, 5 * answered)))


def _seconds_to_answer(settling: Settling) -> float | None:
    """Return how long the broker takes to read all acks and to reply; None without a quorum queue."""
    queue = next((name for name in settling.applied if settling.delay.is_quorum(name)), None)
    if queue is None:
        return None
    began = time.monotonic()
    try:
        settling.consumer.task_consumer.channel.queue_declare(queue, passive=True)
    except settling.consumer.connection_errors:
        return None
    return time.monotonic() - began


def _patience() -> float:
    return COLD_TIMEOUT if _is_cold() else CONFIRM_TIMEOUT


def _is_cold() -> bool:
    return state.should_terminate not in (None, False)
