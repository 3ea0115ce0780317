"""Redaction of secrets in everything that is shown to people: values, texts, messages of exceptions.

One set of functions for the worker's events, the history files and every page and export of the admin. No I/O. No
function raises an exception for any input, and its run time is bounded by the size of its result.
"""

from __future__ import annotations

import logging
import re
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import islice
from typing import Any
from urllib.parse import urlsplit

from kombu.utils.imports import symbol_by_name

from .headers import printable

logger = logging.getLogger(__name__)

#: Replace a secret, and a text for which the user's hook failed.
REDACTED = "[redacted]"
FAILED = "[redaction failed]"
#: Replaces a value that is nested too deep, and all values after the last allowed one.
LEFT_OUT = "[left out]"

#: A key that contains one of these is denied. Case, ``_``, ``-`` and spaces do not count.
DEFAULT_KEYS = (
    "password", "passwd", "passphrase", "pwd", "secret", "token", "authorization", "credential", "cookie", "session",
    "api_key", "access_key", "private_key", "signature", "card", "cvv", "cvc", "iban", "ssn",
)  # fmt: skip

MAX_TEXT = 10_000
MAX_DEPTH = 20
MAX_NODES = 5_000

_IGNORED = re.compile(r"[\s_-]+")
# A password may contain "/"; a port and its path must not be taken for one.
_URL_CREDENTIALS = re.compile(r"(://)(?:[^\s/'\"<>]{1,1000}|[^\s/:@'\"<>]{0,200}:(?!\d{1,5}/)[^\s@'\"<>]{1,200})@")
_BEARER = re.compile(r"\b(bearer|basic)\s+[\w.~+/-]{8,}=*", re.IGNORECASE)
# The text between a denied word and its value: the rest of the key, its closing quote or bracket, a sign.
_SIGN = re.compile(
    r"""([\w.-]{0,200}(?:\s(?:number|no\.?|id|key|value|code))?)\\?["'\])]{0,3}\s{0,8}(?:=>|[=:])\s{0,8}""",
    re.IGNORECASE,
)
#: The text after a denied column's name as PostgreSQL quotes a key: ``Key (password, email)=(...)``.
_COLUMNS = re.compile(r"[\w.,\" ]{0,200}\)=(?=\()")
#: ``--password VALUE``, in a command and in a list of its words: the text before the denied word, and after it.
_OPTION_BEGINS = re.compile(r"(?:^|[\s'\"=])--?(?:\w{1,30}[.-]){0,5}$")
_OPTION_ENDS = re.compile(r"(?:[.-]?\w{1,30}){0,5}(?:['\"],)?\s{1,8}(?!-)")
#: ``InvalidTokenError: text`` is a type and its message, not a key and its value.
_TYPE_ENDS = ("Error", "Exception", "Warning")
#: So is ``shop.gateway.InvalidCard: text`` at the start of a line, as a traceback ends.
_TYPE = re.compile(r"^(?:\w+\.)+[A-Z]\w*(?=: )", re.MULTILINE)
_PREFIX = re.compile(r"(?:bearer|basic|digest|token)\s+|[bru]{1,2}(?=['\"])", re.IGNORECASE)
_PLAIN = re.compile(r"[0-9][0-9 -]*[0-9]|[^\s,;&)}\]>'\"]+")
_CLOSES = {"{": "}", "[": "]", "(": ")", "<": ">"}


@dataclass(frozen=True)
class Redaction:
    """The rules of redaction: the values of keys that contain one of ``keys`` are replaced, then ``hook`` is applied.

    ``hook`` is the dotted path of a function that takes every text, as redacted so far, and returns it.
    """

    keys: tuple[str, ...] = DEFAULT_KEYS
    hook: str | None = None

    def denies(self, key: object) -> bool:
        """Return whether the value of ``key`` is a secret."""
        return isinstance(key, str) and _denied(self._squashed, key[:MAX_TEXT])

    def value(self, value: object) -> Any:
        """Return JSON-like data without secrets: dictionaries, lists, texts, numbers; anything else as its type's name.

        `LEFT_OUT` replaces values deeper than `MAX_DEPTH` and those after the first `MAX_NODES`.
        """
        return _Walk(self).value(value, 0)

    def text(self, text: object, limit: int = MAX_TEXT) -> str:
        """Return at most ``limit`` characters of a text without secrets: a message, a traceback, a ``repr``.

        The values of denied keys (``key=value``, ``'key': value``, ``key: value``), credentials in URLs and HTTP
        authorisations are replaced, and so are NUL and characters that UTF-8 cannot encode.
        """
        try:
            return self._text(str.__str__(text) if isinstance(text, str) else "", limit)
        except Exception:  # noqa: BLE001 - a secret is not shown because something failed
            _log_once(self, "own")
            return FAILED[:limit]

    def _text(self, text: str, limit: int) -> str:
        # The text is cut before redaction, but far behind the part that stays: no value is separated from its key.
        text = printable(text[: 2 * limit + 1_000])
        lowered = text.lower()
        for word in self._first_words:
            if word in lowered:
                text = self._without_denied(text)
                break
        if "://" in text:
            text = _URL_CREDENTIALS.sub(rf"\1{REDACTED}@", text)
        if "bearer" in lowered or "basic" in lowered:
            text = _BEARER.sub(rf"\1 {REDACTED}", text)
        if self.hook is not None:
            text = self._hooked(text)
        return shortened(text, limit)

    def _without_denied(self, text: str) -> str:
        parts, at = [], 0
        types = deque(each.span() for each in _TYPE.finditer(text))
        for found in self._words.finditer(text):
            while types and types[0][1] <= found.start():
                types.popleft()
            if found.start() < at or (types and types[0][0] <= found.start()):
                continue
            begin = _value_begin(text, found)
            end = _value_end(text, begin)
            if end > begin:
                parts += [text[at:begin], REDACTED]
                at = end
        return "".join(parts) + text[at:]

    def _hooked(self, text: str) -> str:
        try:
            hooked = load_hook(str(self.hook))(text)
        except Exception:  # noqa: BLE001 - a secret is not shown because something failed
            _log_once(self, "hook")
            return FAILED
        return printable(hooked) if isinstance(hooked, str) else FAILED

    @cached_property
    def _squashed(self) -> tuple[str, ...]:
        return tuple(filter(None, (_squash(key) for key in self.keys)))

    @cached_property
    def _first_words(self) -> tuple[str, ...]:
        words = {_IGNORED.split(key.lower().strip("_- "))[0] for key in self.keys}
        return tuple(sorted(words - {""}))

    @cached_property
    def _words(self) -> re.Pattern[str]:
        keys = sorted(filter(None, (key.strip("_- ") for key in self.keys)), key=len, reverse=True)
        return re.compile("|".join(r"[\s_-]?".join(map(re.escape, _IGNORED.split(key))) for key in keys), re.IGNORECASE)


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
            return value if value.bit_length() <= 64 else f"<int of {value.bit_length()} bits>"
        if isinstance(value, str):
            return self._redaction.text(value)
        if isinstance(value, (bytes, bytearray)):
            return f"<{len(value)} bytes>"
        try:
            if isinstance(value, Mapping):
                return self._mapping(value, depth)
            if isinstance(value, (list, tuple, set, frozenset)):
                return self._items(value, depth)
        except Exception:  # noqa: BLE001 - a secret is not shown because something failed
            _log_once(self._redaction, "value")
            return FAILED
        return f"<{type(value).__name__}>"

    def _mapping(self, value: Mapping[Any, Any], depth: int) -> dict[str, Any]:
        found = {}
        for key, each in islice(value.items(), self._left + 1):
            name = shortened(printable(key), 200) if isinstance(key, str) else f"<{type(key).__name__}>"
            name = str(key) if type(key) in (int, bool, float) else name
            found[name] = REDACTED if self._redaction.denies(key) else self.value(each, depth + 1)
            if self._left < 0:
                break
        return found

    def _items(self, value: Iterable[Any], depth: int) -> list[Any]:
        found = []
        for each in value:
            found.append(self.value(each, depth + 1))
            if self._left < 0:
                break
        return found


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


@lru_cache(maxsize=4096)
def _denied(squashed: tuple[str, ...], key: str) -> bool:
    found = _squash(key)
    return any(word in found for word in squashed)


def _squash(key: str) -> str:
    return _IGNORED.sub("", key.lower())


def _value_begin(text: str, word: re.Match[str]) -> int:
    """Return where the value of a denied word begins; the end of the text where the word is not a key."""
    sign = _SIGN.match(text, word.end())
    if sign is not None:
        return len(text) if sign[1].endswith(_TYPE_ENDS) else sign.end()
    sign = _COLUMNS.match(text, word.end())
    if sign is None and _OPTION_BEGINS.search(text, max(0, word.start() - 100), word.start()):
        sign = _OPTION_ENDS.match(text, word.end())
    return len(text) if sign is None else sign.end()


def _value_end(text: str, start: int) -> int:
    """Return where the value that begins at ``start`` ends: a quoted text, a bracket with its contents, or a word."""
    prefix = _PREFIX.match(text, start)
    start = prefix.end() if prefix else start
    escaped = text.startswith("\\", start)
    first = text[start + escaped : start + escaped + 1]
    if first in ("'", '"'):
        quote = ("\\" if escaped else "") + first
        return _quote_end(text, start + len(quote), quote)
    if first in _CLOSES:
        return _bracket_end(text, start)
    plain = _PLAIN.match(text, start)
    return plain.end() if plain else start


def _quote_end(text: str, at: int, quote: str) -> int:
    while (found := text.find(quote, at)) >= 0:
        behind = found
        while behind > 0 and text[behind - 1] == "\\":
            behind -= 1
        if (found - behind) % 2 == 0:
            return found + len(quote)
        at = found + 1
    return len(text)


def _bracket_end(text: str, start: int) -> int:
    opens, closes, depth, at = text[start], _CLOSES[text[start]], 0, start
    while at < len(text):
        if text[at] in "'\"":
            at = _quote_end(text, at + 1, text[at])
            continue
        depth += (text[at] == opens) - (text[at] == closes)
        at += 1
        if not depth:
            return at
    return len(text)


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
