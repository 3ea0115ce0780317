"""Handling of SIGTERM and SIGINT, also where the process inherited them as ignored or blocked.

Shells and many CI runners start background jobs with SIGINT ignored, and Python installs no handler for an ignored
signal: a command that ends on Ctrl-C has to install its own. Some supervisors start commands with blocked signals,
which reach no handler.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)

Handler = Callable[[int, FrameType | None], object] | signal.Handlers


@contextmanager
def handling(handler: Handler, *numbers: signal.Signals) -> Iterator[None]:
    """Handle these signals, by default SIGTERM and SIGINT, with ``handler`` during the block.

    Has no effect outside the main thread, where Python allows no handlers.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in numbers or STOP_SIGNALS}
    try:
        with _unblocked(before):
            yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


@contextmanager
def _unblocked(numbers: Iterable[int]) -> Iterator[None]:
    if sys.platform == "win32":
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def stop_requested() -> Iterator[threading.Event]:
    """Yield an event that SIGTERM and SIGINT set: the command finishes its current work and ends."""
    stop = threading.Event()
    # Not set in the handler itself, which may interrupt the main thread while that holds the event's lock.
    with handling(lambda *_: threading.Thread(target=stop.set).start()):
        yield stop


def exit_at_once(number: int, _frame: object) -> None:
    """Exit by an exception, so that unfinished work is undone; the exit code is 128 + the signal, as in shells."""
    raise SystemExit(128 + number)
