"""The bootstep that adds ladders to a worker."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

from amqp.exceptions import ConsumerCancelled, NotFound, PreconditionFailed, RecoverableConnectionError
from celery import bootsteps
from celery.bootsteps import RUN  # type: ignore[attr-defined]  # its stubs lack it

from ..amqp.apply import is_timed_out
from ..amqp.frames import tolerant
from ..app.state import AppState, state_of
from ..exceptions import RmqDelayError, TransportError, UnknownVersionError
from . import control, hooks  # noqa: F401 - `control` registers the command of workers
from .heartbeats import wait_for_nothing
from .intake import guard
from .pools import keep_written, report_untraced
from .queues import ConsumedQueues
from .shutdown import disconnect
from .strategy import ATTRIBUTE

logger = logging.getLogger(__name__)

_TAKEN_BACK = (
    "RabbitMQ has taken back the unacknowledged messages of this worker: %s. The worker reconnects. Tasks that run go "
    "on, and their messages are not run again here. Set RabbitMQ's consumer_timeout (30 minutes by default) to more "
    "than your longest task takes."
)


class LadderStep(bootsteps.StartStopStep):
    """Applies the ladders of the consumed queues before the worker takes its first message."""

    requires = (
        "celery.worker.consumer.tasks:Tasks",
        "celery.worker.consumer.control:Control",
        "celery.worker.consumer.gossip:Gossip",
        "celery.worker.consumer.heart:Heart",
    )

    def __init__(self, c: Any, **options: Any) -> None:
        super().__init__(c, **options)
        delay = state_of(c.app)
        delay.check_tasks()
        queues = self._consumed_queues(c, delay)
        setattr(c, ATTRIBUTE, queues)
        self.enabled = queues is not None  # otherwise Celery calls nothing of this step
        if queues is None:
            return
        self._queues = queues
        c.app.conf.broker_transport_options = tolerant(c.app.conf.broker_transport_options)
        wait_for_nothing(c)
        guard(c, queues)
        c.perform_pending_operations = partial(_perform, c, c.perform_pending_operations)
        c.loop = partial(_loop, c.loop, queues)
        restore = c._restore_prefetch_count_after_connection_restart
        c._restore_prefetch_count_after_connection_restart = partial(queues.settling.restore_prefetch, restore)
        c.cancel_task_queue = partial(queues.cancel_queue, c.cancel_task_queue)

    def _consumed_queues(self, c: Any, delay: AppState) -> ConsumedQueues | None:
        """Return the package's part of the worker; None if the worker cannot support it and ``strict`` is off."""
        driver = c.conninfo.transport.driver_type
        error: RmqDelayError | None = None
        if driver != "amqp":
            error = TransportError(
                f"The broker's transport is {driver!r}: only RabbitMQ can hold delays, so retries wait in the worker, "
                "as in stock Celery. Use an amqp:// broker_url, or do not install celery_rmq_delay."
            )
        elif text := hooks.complaint():
            error = UnknownVersionError(text)
        if error is None:
            return ConsumedQueues(c, delay)
        if delay.settings.strict:
            raise error
        logger.warning(error)
        return None

    def start(self, c: Any) -> None:
        """Set up the consumer's new connection."""
        keep_written(c.pool)
        report_untraced(c.pool)
        self._queues.connect()

    def stop(self, c: Any) -> None:
        """Stop consuming; running tasks may still finish, unless the connection is lost."""
        if _is_lost(c):
            self._queues.lose()
        else:
            self._queues.stop_taking()

    def shutdown(self, c: Any) -> None:
        """Return messages that were not started, and wait for outstanding confirms, before the connection closes."""
        settling = self._queues.settling
        if not _is_lost(c):
            disconnect(settling)
        if settling.reporter is not None:
            settling.reporter.close()


def _loop(loop: Callable[..., object], queues: ConsumedQueues, *args: Any) -> None:
    """Run Celery's loop; where the broker has ended a channel or a consumer that a reconnect restores, reconnect."""
    _forget_reads(queues.consumer.hub)
    try:
        loop(*args)
    except NotFound as error:
        if not queues.misses_quarantine(error):
            raise
        raise RecoverableConnectionError(f"A quarantine queue was deleted: {error}") from error
    except PreconditionFailed as error:
        if not is_timed_out(error):
            raise
        logger.warning(_TAKEN_BACK, error.reply_text)
        raise RecoverableConnectionError(str(error.reply_text)) from error
    except ConsumerCancelled as error:
        logger.warning(_TAKEN_BACK, f"a consumer was cancelled, or its queue was deleted ({error})")
        raise


def _forget_reads(hub: Any) -> None:
    """Remove the reads of a lost connection that are still scheduled: they would end the loop of the next one.

    Celery calls what is scheduled when it resets the hub, and a read that still finds a frame schedules the next
    (kombu's ``Transport._make_reader``).
    """
    for each in list(getattr(hub, "_ready", ())):
        if getattr(getattr(each, "fun", None), "__qualname__", "").startswith("Transport._make_reader."):
            hub._ready.discard(each)


def _perform(c: Any, perform: Callable[[], None]) -> None:
    """Perform pending operations, and raise if the connection was lost meanwhile.

    A worker without an event loop (gevent, eventlet, threads on Windows) logs what a callback raises, and continues to
    read: kombu then opens another connection, without consumers.
    """
    perform()
    if c.blueprint.state == RUN and _is_lost(c):
        raise RecoverableConnectionError("The connection was lost while the worker waited for a reply.")


def _is_lost(c: Any) -> bool:
    """Whether a consumer has lost its connection. Celery before 5.7 stops its steps before it drops a lost one."""
    return c.connection is None or not c.connection.connected
