"""Redaction of secrets in everything that is shown to people: values, texts, messages of exceptions.

One set of functions for the worker's events, the history files and every page and export of the admin. No I/O. No
function raises an exception for any input, and its run time is bounded by the size of its result.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import islice
from typing import Any
from urllib.parse import urlsplit

from kombu.utils.imports import symbol_by_name

from ..headers import printable
from .forms import CARD, is_card_number, without_known_forms
from .keys import DEFAULT_KEYS, DeniedKeys, is_name, is_value
from .texts import without_values

logger = logging.getLogger(__name__)

#: Replace a secret, and a text for which the user's hook failed.
REDACTED = "[redacted]"
FAILED = "[redaction failed]"
#: Replaces a value that is nested too deep, and all values after the last allowed one.
LEFT_OUT = "[left out]"

MAX_TEXT = 10_000
MAX_DEPTH = 20
MAX_NODES = 5_000
#: The most characters of a key, and the most keys of a record with ``name`` and ``value``.
_KEY = 200
_SHORT_KEY = 12
_RECORD_KEYS = 100


@dataclass(frozen=True)
class Redaction:
    """The rules of redaction: the values of keys that contain one of ``keys`` are replaced, then ``hook`` is applied.

    ``hook`` is the dotted path of a function that takes every text, as redacted so far, and returns it.
    """

    keys: tuple[str, ...] = DEFAULT_KEYS
    hook: str | None = None

    def denies(self, key: object) -> bool:
        """Return whether the value of ``key`` is a secret."""
        return key in self._denied

    def members(self, value: Mapping[Any, Any] | Collection[Any]) -> Iterator[tuple[Any, Any, bool]]:
        """Yield key or index, value, and whether that is a secret, for each member of a mapping or list.

        Secrets are the values of denied keys, and what follows such a key in a pair, a record or a command:
        ``["password", "x"]``, ``{"name": "password", "value": "x"}``, ``["--password", "x"]``.
        """
        denied = self._denied
        if isinstance(value, Mapping):
            first = islice(value.items(), _RECORD_KEYS)
            is_named = any(is_name(key) and denied.name(each) for key, each in first)
            for key, each in value.items():
                yield key, each, key in denied or (is_named and is_value(key))
            return
        is_pair, before = len(value) == 2, None
        for index, each in enumerate(value):
            is_next = denied.option(before) and not (isinstance(each, str) and each.startswith("-"))
            yield index, each, is_next or (is_pair and index == 1 and denied.name(before))
            before = each

    def key(self, key: str) -> str:
        """Return at most 200 characters of a key, without secrets in it. The hook is not applied to keys."""
        if len(key) <= _SHORT_KEY and key.isidentifier():  # most keys: too short for a secret of a known form
            return printable(key)
        return shortened(self._redacted(key, _KEY), _KEY)

    def value(self, value: object) -> Any:
        """Return JSON-like data without secrets: dictionaries, lists, texts, numbers; anything else as its type's name.

        `LEFT_OUT` replaces values deeper than `MAX_DEPTH` and those after the first `MAX_NODES`.
        """
        return _Walk(self).value(value, 0)

    def text(self, text: object, limit: int = MAX_TEXT) -> str:
        """Return at most ``limit`` characters of a text without secrets: a message, a traceback, a ``repr``.

        The values of denied keys are replaced (``key=value``, ``'key': value``, ``--key value``, ``('key', value)``,
        ``{'name': 'key', 'value': value}``, ``<key>value</key>``), and so are tokens of known forms, PEM blocks,
        credentials in URLs, HTTP authorisations, numbers of payment cards (by `CARD`), NUL and characters that UTF-8
        cannot encode.
        """
        try:
            shown = self._redacted(str.__str__(text) if isinstance(text, str) else "", limit)
            return shortened(self._hooked(shown), limit)
        except Exception:  # noqa: BLE001 - a secret is not shown because something failed
            _log_once(self, "own")
            return FAILED[:limit]

    def _redacted(self, text: str, limit: int) -> str:
        # The text is cut before redaction, but far behind the part that stays: no value is separated from its key.
        text = printable(shortened(text, 2 * limit + 1_000))
        lowered = text.lower()
        if len(lowered) != len(text):  # the only letter that becomes longer
            lowered = text.replace("\N{LATIN CAPITAL LETTER I WITH DOT ABOVE}", "I").lower()
        text = without_values(text, lowered, self._denied, REDACTED)
        return without_known_forms(text, lowered, REDACTED)

    def _hooked(self, text: str) -> str:
        if self.hook is None:
            return text
        try:
            hooked = load_hook(str(self.hook))(text)
        except Exception:  # noqa: BLE001 - a secret is not shown because something failed
            _log_once(self, "hook")
            return FAILED
        return printable(hooked) if isinstance(hooked, str) else FAILED

    @cached_property
    def _denied(self) -> DeniedKeys:
        return DeniedKeys(self.keys)


class _Walk:
    """One walk through a value, limited to `MAX_NODES` nodes."""

    def __init__(self, redaction: Redaction) -> None:
        self._redaction = redaction
        self._left = MAX_NODES

    def value(self, value: object, depth: int) -> Any:
        self._left -= 1
        if self._left < 0 or depth > MAX_DEPTH:
            return LEFT_OUT
        if value is None or type(value) in (bool, float):
            return value
        if type(value) is int:
            return _number(value)
        if isinstance(value, str):
            return self._redaction.text(value)
        if isinstance(value, (bytes, bytearray)):
            return f"<{len(value)} bytes>"
        try:
            if isinstance(value, Mapping):
                return {self._name(key): each for key, each in self._members(value, depth)}
            if isinstance(value, (list, tuple, set, frozenset)):
                return [each for _, each in self._members(value, depth)]
        except Exception:  # noqa: BLE001 - a secret is not shown because something failed
            _log_once(self._redaction, "value")
            return FAILED
        return f"<{type(value).__name__}>"

    def _members(self, value: Mapping[Any, Any] | Collection[Any], depth: int) -> Iterator[tuple[Any, Any]]:
        for key, each, is_secret in islice(self._redaction.members(value), self._left + 1):
            yield key, REDACTED if is_secret else self.value(each, depth + 1)
            if self._left < 0:
                return

    def _name(self, key: object) -> str:
        if isinstance(key, str):
            return self._redaction.key(key)
        if type(key) is int:
            return str(_number(key))
        return str(key) if type(key) in (bool, float) else f"<{type(key).__name__}>"


def _number(value: int) -> int | str:
    if is_card_number(value):
        return CARD
    return value if value.bit_length() <= 64 else f"<int of {value.bit_length()} bits>"


#: With the default keys only.
DEFAULT = Redaction()


def shortened(text: str, limit: int) -> str:
    """Return at most ``limit`` characters of ``text``, with an ellipsis where it was cut."""
    return text if len(text) <= limit else f"{text[: max(0, limit - 1)]}…"[:limit]


@lru_cache(maxsize=16)
def load_hook(path: str) -> Callable[[str], object]:
    """Return the function at a dotted path. Raises the errors of its import."""
    hook: Callable[[str], object] = symbol_by_name(path)
    return hook


@lru_cache(maxsize=64)
def _log_once(redaction: Redaction, what: str) -> None:
    """Log the handled error, only the first time, as it may occur for every text."""
    logger.exception("Redaction failed (%s, hook %s): the value is left out", what, redaction.hook)


def without_credentials(url: object) -> str:
    """Return ``url`` without its user and password, for display."""
    text = str(url)
    try:
        parts = urlsplit(text)
        host = parts.netloc.rpartition("@")[2]
    except ValueError:
        return "the given text"
    if parts.scheme and parts.netloc:
        return parts._replace(netloc=host).geturl()
    return text.rpartition("@")[2]
