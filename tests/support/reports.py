"""Reports of failures, on a Python that spoils them."""

from __future__ import annotations

import gc
from collections.abc import Generator

import pytest


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Collect no garbage while a report is made.

    A report parses source with `ast`. Where a finalizer interrupts that and parses source itself, or lets a thread run
    that does, CPython 3.11 raises ``SystemError: AST constructor recursion depth mismatch`` (CPython issue 106905),
    which would end the whole run.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return (yield)
    finally:
        if was_enabled:
            gc.enable()
