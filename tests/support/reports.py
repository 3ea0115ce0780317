"""Uninterrupted reports of failures: an error in a report would end the whole run."""

import gc
import signal
from collections.abc import Generator

import pytest


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Collect no garbage, and stop the clock of pytest-timeout, while a report is made.

    A report parses source with `ast`. Where a finalizer interrupts that and parses source itself, or lets a thread run
    that does, CPython 3.11 raises ``SystemError: AST constructor recursion depth mismatch`` (CPython issue 106905). And
    pytest-timeout raises its failure wherever its signal comes, also in the report of a test that failed just before.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    left, interval = signal.setitimer(signal.ITIMER_REAL, 0)
    try:
        return (yield)
    finally:
        if left:
            signal.setitimer(signal.ITIMER_REAL, left, interval)
        if was_enabled:
            gc.enable()
