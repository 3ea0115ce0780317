"""Receivers of Celery's signals for the time of a test."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from celery.utils.dispatch import Signal


@contextmanager
def receiving(signal: Signal, receiver: Callable[..., Any]) -> Iterator[None]:
    signal.connect(receiver, weak=False)
    try:
        yield
    finally:
        signal.disconnect(receiver)
