"""A connection to the broker that is opened on demand, and again after it was lost."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING

from amqp.exceptions import AMQPError
from kombu.exceptions import KombuError

from .....exceptions import BrokerDownError
from ...broker import connection

if TYPE_CHECKING:
    from kombu import Connection

#: Errors of a lost connection.
BROKER_ERRORS = (OSError, AMQPError, KombuError)
_PAUSE = 0.5


def broker_down(error: BaseException) -> BrokerDownError:
    """Return the `BrokerDownError` for ``error``."""
    text = " ".join(str(error).split()) or type(error).__name__
    return BrokerDownError(f"broker unreachable: {text}")


class Link:
    """Holds one connection.

    ``patience`` are the seconds for which connecting is retried; ``pause`` waits in between.
    """

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
