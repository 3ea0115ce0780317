"""The project's Celery app, and connections to its broker with short timeouts."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING

import kombu
from amqp.exceptions import AMQPError
from celery import Celery
from celery._state import get_current_app
from django.utils.module_loading import import_string
from kombu.exceptions import KombuError

from ...amqp.apply import ready_counts
from ...amqp.connections import tolerant
from ...app.state import AppState, state_of
from ...exceptions import BrokerDownError, SettingsError
from ...names import MAX_NAME_BYTES
from .conf import SETTING, conf

if TYPE_CHECKING:
    from kombu import Connection

#: Errors of a lost connection.
BROKER_ERRORS = (OSError, AMQPError, KombuError)
#: Seconds between two tries of a `Link` to connect.
_PAUSE = 0.5


def celery_app() -> Celery:
    """Return the project's Celery app. Raises `SettingsError` where ``CELERY_APP`` does not name one."""
    path = conf().celery_app
    if path is None:
        current: Celery = get_current_app()
        current.loader.import_default_modules()
        return current
    try:
        app = import_string(path)
    except ImportError as error:
        raise SettingsError(f"{SETTING}['CELERY_APP']", path, f"It cannot be imported: {error}.") from error
    if not isinstance(app, Celery):
        raise SettingsError(f"{SETTING}['CELERY_APP']", path, f"It is a {type(app).__name__}, not a Celery app.")
    return app


def delay() -> AppState:
    """Return the state that `celery_rmq_delay.install` set on the project's app. Raises `RmqDelayError` without it."""
    return state_of(celery_app())


@contextmanager
def connection() -> Iterator[Connection]:
    """Yield a new connection; its timeouts are the setting ``BROKER_TIMEOUT``.

    Raises `OSError` or `amqp.AMQPError` where the broker does not answer, without another attempt.
    """
    seconds = conf().broker_timeout
    info = celery_app().connection_for_write().info()
    # A broker in alarm stops reading from publishers: without timeouts, reads and writes would block until the alarm
    # clears.
    options = {**tolerant(info.get("transport_options")), "read_timeout": seconds, "write_timeout": seconds}
    with kombu.Connection(**{**info, "connect_timeout": seconds, "transport_options": options}) as opened:
        # `connect` would sleep for two seconds and retry.
        hosts = len(opened.alt or [opened.hostname])
        opened.ensure_connection(
            max_retries=hosts - 1, interval_start=0, interval_step=0, reraise_as_library_errors=False
        )
        yield opened


def broker_down(error: BaseException) -> BrokerDownError:
    """Return the `BrokerDownError` for ``error``."""
    text = " ".join(str(error).split()) or type(error).__name__
    return BrokerDownError(f"broker unreachable: {text}")


class Link:
    """One connection; connecting is retried for ``patience`` seconds, with ``pause`` in between."""

    def __init__(self, patience: float, pause: Callable[[float], None]) -> None:
        self._patience, self._pause = patience, pause
        self._stack = ExitStack()
        self._connection: Connection | None = None

    def open(self, prepare: Callable[[Connection], None] = lambda _: None) -> Connection:
        """Return the connection; ``prepare`` is called with a new one. Raises `BrokerDownError`."""
        if self._connection is not None and self._is_alive(self._connection):
            return self._connection
        deadline = time.monotonic() + self._patience
        while True:
            try:
                opened = self._connection = self._stack.enter_context(connection())
                prepare(opened)
                return opened
            except BROKER_ERRORS as error:
                self.drop()
                if time.monotonic() >= deadline:
                    raise broker_down(error) from error
            self._pause(_PAUSE)

    def _is_alive(self, connected: Connection) -> bool:
        """Return whether the connection is up, as far as known; a close by the broker is detected."""
        try:
            with suppress(TimeoutError):
                connected.drain_events(timeout=0.001)
        except BROKER_ERRORS:
            self.drop()
            return False
        return True

    def drop(self) -> None:
        """Drop the connection without AMQP's close: that would wait for a broker that may not answer."""
        if self._connection is not None:
            self._connection.collect()
        self.close()

    def close(self) -> None:
        """Close the connection, also for a long pause; the next `open` makes a new one."""
        with suppress(*BROKER_ERRORS):
            self._stack.close()
        self._stack, self._connection = ExitStack(), None


def queue_problem(queue: str) -> str:
    """Return why no task can be requeued into a queue; an empty text where it exists and is not one of this package."""
    try:
        with connection() as opened:
            return problem_at(opened, queue)
    except BROKER_ERRORS as error:
        return str(broker_down(error))


def problem_at(opened: Connection, queue: str) -> str:
    """Return the same on an open connection."""
    settings = delay().settings
    if queue == settings.exhausted_queue or queue.startswith((f"{settings.names.prefix}.", "amq.")):
        return f"{queue} is not a queue of tasks"
    if len(queue.encode("utf-8", "surrogatepass")) > MAX_NAME_BYTES:
        return f"no queue has a name of more than {MAX_NAME_BYTES} bytes"
    if ready_counts(opened, [queue])[queue] is None:
        return f"there is no queue {queue}"
    return ""
