"""Run a command in a thread, so that SIGTERM and SIGINT never interrupt a call of Java in the middle.

After an interrupted call the connection to Java is useless, and nothing could be tidied up.
"""

from __future__ import annotations

import logging
import os
import signal
import socketserver
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Generic, TypeVar

from py4j.protocol import Py4JError
from pyspark import SparkContext

from ..stopping import handling

_Result = TypeVar("_Result")

#: Seconds between two attempts to cancel the running jobs.
_AGAIN = 0.3


class Stoppable(Generic[_Result]):
    """Work that a signal ends: its running job is cancelled, and `check` raises from then on.

    A second signal ends the process at once.
    """

    def __init__(self, work: Callable[[], _Result]) -> None:
        self._work = work
        self._signal: signal.Signals | None = None
        self._error: BaseException | None = None
        self._results: list[_Result] = []

    def check(self) -> None:
        """Raise `SystemExit` if a signal has come."""
        if self._signal is not None:
            raise SystemExit(128 + self._signal)

    def run(self) -> _Result:
        """Return what the work returns, or raise what it raises; `SystemExit` with 128 + the signal if one came."""
        thread = threading.Thread(target=self._call, daemon=True, name="work")
        with handling(self._stop):
            thread.start()
            while thread.is_alive():
                thread.join(_AGAIN)
                if self._signal is not None:
                    _cancel_jobs()
        self.check()
        if self._error is not None:
            raise self._error
        return self._results[0]

    def _call(self) -> None:
        try:
            self._results.append(self._work())
        except BaseException as error:  # noqa: BLE001 - raised by `run`
            self._error = error

    def _stop(self, number: int, _frame: object) -> None:
        if self._signal is not None:
            os._exit(128 + number)
        self._signal = signal.Signals(number)
        # Java may end, too, if the signal goes to all processes: its libraries would log that, and pyspark's server of
        # accumulators would print that its connection has ended.
        logging.disable()
        setattr(socketserver.BaseServer, "handle_error", _nothing)  # noqa: B010 - this process ends
        sys.stderr.write(f"Stopped by {self._signal.name}: ending the running job.\n")


def _nothing(*_: object) -> None:
    """Report nothing."""


def _cancel_jobs() -> None:
    context = SparkContext._active_spark_context
    with suppress(Py4JError, OSError, TypeError):  # Java may have ended
        if context is not None:
            context.cancelAllJobs()
