"""Redaction of secrets in everything that is shown to people: values, texts, messages of exceptions.

One set of functions for the worker's events, the history files and every page and export of the admin. No I/O. No
function raises an exception for any input, and its run time is bounded by the size of its result.
"""

from __future__ import annotations

from .cards import CARD
from .keys import DEFAULT_KEYS, WHOLE_KEYS
from .rules import (
    DEFAULT,
    FAILED,
    LEFT_OUT,
    MAX_DEPTH,
    MAX_NODES,
    MAX_TEXT,
    REDACTED,
    Redaction,
    load_hook,
    shortened,
    without_credentials,
)

__all__ = [
    "CARD",
    "DEFAULT",
    "DEFAULT_KEYS",
    "FAILED",
    "LEFT_OUT",
    "MAX_DEPTH",
    "MAX_NODES",
    "MAX_TEXT",
    "REDACTED",
    "WHOLE_KEYS",
    "Redaction",
    "load_hook",
    "shortened",
    "without_credentials",
]
