"""The bootstep that adds ladders to a worker: what it changes in Celery's consumer, pool and remote control."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial, wraps
from typing import Any

import kombu
from amqp.exceptions import ConsumerCancelled, NotFound, PreconditionFailed, RecoverableConnectionError
from celery import Celery, bootsteps
from celery.bootsteps import RUN  # type: ignore[attr-defined]  # its stubs lack it
from celery.worker.control import control_command, inspect_command
from kombu import Connection

from ..amqp.apply import is_timed_out
from ..amqp.connections import tolerant
from ..amqp.link import Link
from ..app.state import AppState, state_of
from ..exceptions import RmqDelayError, TransportError, UnknownVersionError
from ..names import quarantine
from ..topology.applied import COMMAND, REQUEUES, Adoption
from . import hooks
from .flight import InFlight
from .intake import guard
from .queues import ConsumedQueues
from .shutdown import disconnect
from .strategy import ATTRIBUTE
from .trace import unreported

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
        if not any(f"'{quarantine(name)}'" in str(error.reply_text) for name in queues.settling.applied):
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
    """Remove the scheduled reads of a lost connection (kombu's ``_make_reader``), which would end the next loop."""
    for each in list(getattr(hub, "_ready", ())):
        if getattr(getattr(each, "fun", None), "__qualname__", "").startswith("Transport._make_reader."):
            hub._ready.discard(each)


def _perform(c: Any, perform: Callable[[], None]) -> None:
    """Perform pending operations; raise if they lost the connection, which Celery without an event loop only logs."""
    perform()
    if c.blueprint.state == RUN and _is_lost(c):
        raise RecoverableConnectionError("The connection was lost while the worker waited for a reply.")


def _is_lost(c: Any) -> bool:
    """Whether a consumer has lost its connection. Celery before 5.7 stops its steps before it drops a lost one."""
    return c.connection is None or not c.connection.connected


def wait_for_nothing(consumer: Any) -> None:
    """Keep the events and the remote control of ``consumer``'s worker from waiting for a broker with an alarm.

    Celery sends both from the event loop. In an alarm RabbitMQ stops reading from a connection that has published. The
    loop would block at the next confirm, a full buffer of the kernel or a method's reply, until the alarm is over; and
    no message is consumed that could end it.
    """

    def connection_for_write(url: str | None = None, heartbeat: float | None = None) -> Connection:
        return _Dropping(consumer.app, consumer.ensure_connected, url=url, heartbeat=heartbeat).connection

    consumer.connection_for_write = connection_for_write
    consumer.app.control.mailbox.producer_pool = _Producers(consumer)


class _Dropping(Link):
    """A link for Celery, whose publishes do not wait: messages are dropped while the broker does not take them."""

    def __init__(self, app: Celery, connect: Callable[[Connection], object], **options: Any) -> None:
        super().__init__(app.connection_for_write(**options), connect, patience=1.0)
        line: Any = self.connection  # the stubs do not allow replacing a method
        channel: Any = line.default_channel
        self._publish = channel.basic_publish
        channel.basic_publish, line.close = self.publish, self.end

    def publish(self, *arguments: Any, **options: Any) -> None:
        if not self.takes_more:
            self.turn()
        if self.takes_more:
            self._publish(*arguments, **options)


class _Producers:
    """Replaces remote control's pool of producers: one connection, and a new one if that is blocked."""

    def __init__(self, consumer: Any) -> None:
        self._consumer, self._lock = consumer, threading.Lock()
        self._link: _Dropping | None = None

    @contextmanager
    def acquire(self, *_: Any, **__: Any) -> Iterator[kombu.Producer]:
        with self._lock:
            yield kombu.Producer(self._usable().connection, auto_declare=False)

    def _usable(self) -> _Dropping:
        link = self._link
        if link is not None and link.connection.connected:
            try:
                link.turn()
            except self._consumer.connection_errors:
                link.drop()
        if link is None or not link.takes_more or not link.connection.connected:
            if link is not None:
                link.drop()
            link = self._link = _Dropping(self._consumer.app, kombu.Connection.connect)
        return link


def report_untraced(pool: Any) -> None:
    """Let a pool without processes report a body that is no call as a failed attempt: Celery does not trace it."""
    if not (hasattr(getattr(pool, "_pool", None), "outbound_buffer") or isinstance(pool.on_apply, partial)):
        pool.on_apply = partial(_apply, pool.on_apply)


def _apply(on_apply: Callable[..., Any], target: Callable[..., Any], *given: Any, **options: Any) -> Any:
    @wraps(target)
    def reporting(*args: Any, **more: Any) -> Any:
        try:
            return target(*args, **more)
        except Exception as error:  # noqa: BLE001 - reported as the end of the attempt
            return 1, unreported(error), 0.0

    flight = getattr(getattr(options.get("callback"), "__self__", None), "flight", None)
    is_managed = isinstance(flight, InFlight) and flight.is_managed
    return on_apply(reporting if is_managed else target, *given, **options)


def keep_written(pool: Any) -> None:
    """Make a pool settle each task that it has written to a process, even when it closes or the connection is lost.

    Celery's `AsynPool.flush` forgets those whose start was not reported yet, and before Celery 5.6 all others, too.
    They run nevertheless: the broker would deliver their messages again, their process would wait 30 s at its end for
    its results to be read, and before Celery 5.7 the pool would send it another task meanwhile, as if it were free.
    Other pools start tasks at once, and are not changed.
    """
    inner = getattr(pool, "_pool", None)
    if hasattr(inner, "outbound_buffer"):
        pool.flush = partial(_flush, inner)


def _flush(pool: Any) -> None:
    jobs = tuple(pool._cache.values())
    busy = {pid for job in jobs if job._accepted for pid in job.worker_pids()}
    for job in jobs:
        process = job._write_to
        if job._accepted or process is None or job in pool.outbound_buffer:
            continue
        writer = getattr(job, "_writer", bool)()  # a weak reference
        if writer in pool._active_writers:
            if process.pid in busy:  # with -O fast; it would read the rest only after its present task
                continue
            pool._flush_writer(process, writer)
        if process._is_alive():
            job._accepted = True
    running = {number: job for number, job in pool._cache.items() if job._accepted and not job.ready()}
    pool.flush()
    for number, job in running.items():
        if not job.ready() and job._write_to is not None and job._write_to._is_alive():
            pool._cache.setdefault(number, job)
            pool._busy_workers.add(job._write_to.inqW_fd)


@control_command(name=COMMAND, visible=False)  # only with facts of the record
def adoption_changed(state: Any, queue: str, adoption: Mapping[str, Any], **_: Any) -> dict[str, Any]:
    """Store the adoption that is on record for ``queue`` (used by ``rmq-delay adopt``)."""
    consumer = state.consumer
    queues = getattr(consumer, ATTRIBUTE, None)
    if queues is None or queue not in consumer.app.amqp.queues.consume_from:
        return {"ok": "does not consume this queue", "consumes": False}
    received, known = Adoption.from_json(adoption), queues.delay.adopted.get(queue)
    if received is not None and (known is None or known.generation <= received.generation):
        queues.delay.learn(queue, received)
        if known is None or known.in_force != received.in_force:
            adopted = f"is adopted by the policy {received.policy}: its failed tasks are rejected from now on"
            detached = "is no longer adopted: its failed tasks are forwarded from now on"
            logger.info("Queue %s %s", queue, adopted if received.in_force else detached, extra={"queue": queue})
    rejects = queues.settling.dead_letters(queue)
    return {
        "ok": "rejects" if rejects else "forwards",
        "consumes": True,
        "rejects": rejects,
        "generation": queues.delay.adopted[queue].generation if queue in queues.delay.adopted else 0,
        "address": _address(consumer),
    }


@inspect_command(name=REQUEUES, visible=False)
def requeues(state: Any, **_: Any) -> list[dict[str, Any]]:
    """Return the tasks that requeue messages in a loop (used by ``rmq-delay doctor``)."""
    queues = getattr(state.consumer, ATTRIBUTE, None)
    return [] if queues is None else queues.settling.requeues.loops()


def _address(consumer: Any) -> str | None:
    """Return local host and port of the worker's broker connection, as the management API shows them."""
    try:
        host, port = consumer.connection.connection.transport.sock.getsockname()[:2]
    except (AttributeError, OSError, ValueError):
        return None
    return f"{host}:{port}"
