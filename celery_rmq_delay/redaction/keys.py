"""Which keys are denied: in structures, and where their words are in a text."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache

#: A key that contains one of these is denied. Case, ``_``, ``-`` and spaces do not count.
DEFAULT_KEYS = (
    "password", "passwd", "passphrase", "passcode", "pwd", "secret", "token", "authorization", "credential", "cookie",
    "session", "api_key", "access_key", "account_key", "private_key", "signature", "card", "cvv", "cvc", "iban", "ssn",
)  # fmt: skip

#: A key with one of these as a whole word is denied: ``db_pass``, ``userPin``, ``X-Auth``; not ``author`` or ``spin``.
WHOLE_KEYS = ("auth", "pass", "pin", "sig")

#: Keys of a record that have the name of another value, and the keys of that value: ``{"name": ..., "value": ...}``.
NAMES = ("name", "key", "field", "header", "param", "parameter", "variable", "option", "property", "attribute", "k")
VALUES = ("value", "values", "val", "v")

#: The longest key that is examined.
MAX_KEY = 10_000

_IGNORED = re.compile(r"[\s_-]+")
#: A text that can be a key, not a sentence with one of the words.
_KEY = re.compile(r"-{0,2}[\w.:\[\]-]{1,200}(?:\s(?:number|no\.?|id|key|value|code))?", re.IGNORECASE)
_OPTION = re.compile(r"--?[A-Za-z][\w.-]{0,200}")
#: Where one of them is a word: in a snake_case or kebab-case key, in capitals, in camelCase.
_WHOLE = re.compile(
    "|".join(
        rf"(?<![A-Za-z]){word}(?![a-z])|(?<![A-Za-z]){word.upper()}(?![A-Za-z])"
        rf"|(?:(?<![A-Za-z])|(?<=[a-z0-9])){word.title()}(?![a-z])"
        for word in WHOLE_KEYS
    )
)


class DeniedKeys:
    """The denied keys: those that contain one of ``keys``, and those with one of `WHOLE_KEYS` as a word."""

    def __init__(self, keys: Sequence[str]) -> None:
        self._squashed = tuple(filter(None, (_squash(key) for key in keys)))
        self._finders: dict[str, list[tuple[str, re.Pattern[str]]]] = {}
        for key in dict.fromkeys(key.lower().strip("_- ") for key in keys):
            if key:
                words = _IGNORED.split(key)
                pattern = re.compile(r"[\s_-]?".join(map(re.escape, words)))
                self._finders.setdefault(_common(words), []).append((words[0], pattern))
        for word in WHOLE_KEYS:
            self._finders.setdefault(word, [])

    def __contains__(self, key: object) -> bool:
        """Return whether the value of ``key`` is a secret."""
        if isinstance(key, (bytes, bytearray)):
            key = bytes(key[:MAX_KEY]).decode("latin-1")
        return isinstance(key, str) and _is_denied(self._squashed, key[:MAX_KEY])

    def name(self, text: object) -> bool:
        """Return whether a text is a denied key, and no sentence that contains one."""
        return isinstance(text, str) and len(text) <= 250 and bool(_KEY.fullmatch(text)) and text in self

    def option(self, text: object) -> bool:
        """Return whether a text is an option such as ``--password``, whose value is the next text."""
        return isinstance(text, str) and text[:1] == "-" and bool(_OPTION.fullmatch(text)) and text in self

    def words(self, text: str, lowered: str) -> list[tuple[int, int, bool]]:
        """Return start, end and "is one of `WHOLE_KEYS`" of each denied word in a text, in order."""
        found = []
        for common, finders in self._finders.items():
            if common not in lowered:  # the usual case
                continue
            for first, pattern in finders:
                found += [(*match.span(), False) for match in _each(lowered, first, pattern, lowered)]
            if common in WHOLE_KEYS:
                found += [(*match.span(), True) for match in _each(lowered, common, _WHOLE, text)]
        found.sort()
        return found


def is_name(key: object) -> bool:
    """Return whether a key of a record has the name of the record's value."""
    return isinstance(key, str) and key.lower() in NAMES


def is_value(key: object) -> bool:
    """Return whether a key of a record has its value: ``value``, ``stringValue``, ``new_value``."""
    return isinstance(key, str) and (key.lower() in VALUES or key[-8:].lower().endswith(("value", "values")))


def _common(words: Sequence[str]) -> str:
    """Return a text that several keys have in common, and that a text with one of them contains."""
    return words[-1] if len(words) > 1 else next(filter(words[0].startswith, WHOLE_KEYS), words[0])


def _each(lowered: str, first: str, pattern: re.Pattern[str], text: str) -> Iterator[re.Match[str]]:
    """Yield the matches of a pattern in ``text`` that begin where ``lowered`` has ``first``: a fast search."""
    at = lowered.find(first)
    while at >= 0:
        if match := pattern.match(text, at):
            yield match
        at = lowered.find(first, at + 1)


@lru_cache(maxsize=4096)
def _is_denied(squashed: tuple[str, ...], key: str) -> bool:
    found = _squash(key)
    return any(word in found for word in squashed) or _WHOLE.search(key) is not None


def _squash(key: str) -> str:
    return _IGNORED.sub("", key.lower())


def without_spans(text: str, spans: list[tuple[int, int]], replacement: str) -> str:
    """Return a text in which the spans are replaced, without those that begin in another one."""
    parts, at = [], 0
    for begin, end in sorted(spans):
        if begin >= at and end > begin:
            parts += [text[at:begin], replacement]
            at = end
    return "".join(parts) + text[at:]
