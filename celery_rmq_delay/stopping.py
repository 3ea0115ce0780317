"""Handling of SIGTERM and SIGINT, also where the process inherited them as ignored or blocked.

Shells and many CI runners start background jobs with SIGINT ignored, and Python installs no handler for an ignored
signal: a command that ends on Ctrl-C has to install its own. Some supervisors start commands with blocked signals,
which reach no handler.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any
from weakref import WeakKeyDictionary

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)

#: What to shorten before an exception interrupts the process: by connection, how.
_waits: WeakKeyDictionary[Any, Callable[[Any], object]] = WeakKeyDictionary()

Handler = Callable[[int, FrameType | None], object] | signal.Handlers


@contextmanager
def handling(handler: Handler, *numbers: signal.Signals) -> Iterator[None]:
    """Handle signals (SIGTERM and SIGINT) with ``handler`` in the block. Does nothing outside the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in numbers or STOP_SIGNALS}
    blocked = None if sys.platform == "win32" else signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        if blocked is not None:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, before)  # a signal that waits reaches its handler here
        yield
    finally:
        if blocked is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        for number, earlier in before.items():
            signal.signal(number, earlier)


@contextmanager
def stop_requested() -> Iterator[threading.Event]:
    """Yield an event that SIGTERM and SIGINT set: the command finishes its current work and ends."""
    stop = threading.Event()
    # Not set in the handler itself, which may interrupt the main thread while that holds the event's lock.
    with handling(lambda *_: threading.Thread(target=stop.set).start()):
        yield stop


def shorten_at_stop(connection: Any, shorten: Callable[[Any], object]) -> None:
    """Call ``shorten(connection)`` before a signal ends the process by an exception, while the connection exists.

    The exception may come in the middle of a frame of the broker. What undoes the unfinished work then waits for a
    reply that cannot be read any more.
    """
    _waits[connection] = shorten


def exit_at_once(number: int, _frame: object) -> None:
    """Exit by an exception, so that unfinished work is undone; the exit code is 128 + the signal, as in shells."""
    _shorten_waits()
    raise SystemExit(128 + number)


@contextmanager
def interrupted_in_time() -> Iterator[None]:
    """Let Ctrl-C raise KeyboardInterrupt as usual, but also shorten the waits of what undoes unfinished work."""
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:  # ignored, or somebody else's
        yield
        return
    with handling(_interrupt, signal.SIGINT):
        yield


def _interrupt(_number: int, _frame: object) -> None:
    _shorten_waits()
    raise KeyboardInterrupt


def _shorten_waits() -> None:
    for connection, shorten in list(_waits.items()):
        shorten(connection)


def stop_behind(error: BaseException) -> BaseException | None:
    """Return the SystemExit or KeyboardInterrupt during whose cleanup ``error`` was raised, or None."""
    before: BaseException | None = error
    while before is not None and not isinstance(before, (SystemExit, KeyboardInterrupt)):
        before = before.__context__
    return before
