"""Receivers of Celery's signals for the time of a test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from celery.utils.dispatch import Signal


@contextmanager
def receiving(signal: Signal, receiver: Callable[..., Any]) -> Iterator[None]:
    """Connect a receiver within the block."""
    signal.connect(receiver, weak=False)
    try:
        yield
    finally:
        signal.disconnect(receiver)
