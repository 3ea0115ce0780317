"""Where the values of denied keys are in a text: a message, a traceback, a ``repr``, JSON in a text, XML."""

from __future__ import annotations

import re
from collections import deque

from .keys import NAMES, DeniedKeys, without_spans

#: A quotation mark, also one in a text that was quoted again, once or several times.
_QUOTE = r"(?:\\{0,15}['\"]|&(?:quot|apos|#34|#39|#x22|#x27);)"
_SPACE = r"(?:\s|\\{1,15}[nrt]){0,40}"
_NAME = rf"(?:{'|'.join(NAMES)})"
_SECOND_WORD = r"(?:\s(?:number|no\.?|id|key|value|code))?"
_BETWEEN = rf"(?:{_SPACE},{_SPACE}|\s{{1,40}})"
_SIMPLE_VALUE = rf"(?:{_QUOTE}[^'\"\\&]{{0,100}}{_QUOTE}|[\w.-]{{1,40}})"
_SIMPLE = rf"{_QUOTE}?\w{{1,40}}{_QUOTE}?\s{{0,8}}[=:]\s{{0,8}}{_SIMPLE_VALUE}"

# What follows a denied word and the rest of its key begins with none of the characters of a key: a pattern that began
# with them would try each shorter rest.
_REST = re.compile(r"[\w.-]{0,200}")
#: The closing quote or bracket of a key, and a sign.
_SIGN = re.compile(rf"{_SECOND_WORD}(?:{_QUOTE}|[\])]){{0,3}}{_SPACE}(?:=>|:=|={{1,3}}|:){_SPACE}", re.IGNORECASE)
#: The text after a denied column's name as PostgreSQL quotes a key: ``Key (password, email)=(...)``.
_COLUMNS = re.compile(r"(?:[,\"][\w.,\" ]{0,200})?\)=(?=\()")
#: ``--password VALUE``, in a command and in a list of its words: the text before the denied word, and after it.
_OPTION_BEGINS = re.compile(r"(?:^|[\s'\"=])--?[\w.-]{0,100}$")
_OPTION_ENDS = re.compile(rf"(?:{_QUOTE}\s{{0,8}},\s{{0,8}}|\s{{1,8}})(?!{_QUOTE}?-)")
#: ``('password', VALUE)``
_PAIR_BEGINS = re.compile(rf"[\[(]{_SPACE}[bru]{{0,2}}{_QUOTE}[\w.-]{{0,100}}$")
_PAIR_ENDS = re.compile(rf"{_SECOND_WORD}{_QUOTE}{_SPACE},{_SPACE}", re.IGNORECASE)
_AFTER_PAIR = re.compile(rf"{_SPACE},?{_SPACE}(?:[\])]|\Z|…|\.\.\.)")
#: ``{"name": "password", "value": VALUE}``, also as attributes of XML, and in the other order.
_RECORD_BEGINS = re.compile(
    rf"(?<![\w]){_NAME}{_QUOTE}?{_SPACE}[=:]{_SPACE}[bru]{{0,2}}{_QUOTE}?[\w.-]{{0,100}}$", re.IGNORECASE
)
_RECORD_ENDS = re.compile(
    rf"{_SECOND_WORD}{_QUOTE}?(?:{_BETWEEN}{_SIMPLE}){{0,8}}?{_BETWEEN}"
    rf"{_QUOTE}?(?:\w{{0,20}}values?|val|v){_QUOTE}?{_SPACE}[=:]{_SPACE}",
    re.IGNORECASE,
)
_VALUE = re.compile(r"value(?:[\\'\"=]|&[#aq])")
_RECORD_VALUE = re.compile(
    rf"(?:{_QUOTE}\w{{0,20}}value{_QUOTE}{_SPACE}:{_SPACE}|\bvalue=)(?=[bru]{{0,2}}{_QUOTE})", re.IGNORECASE
)
_RECORD_NAME = re.compile(
    rf"{_BETWEEN}(?:{_SIMPLE}{_BETWEEN}){{0,8}}?{_QUOTE}?{_NAME}{_QUOTE}?{_SPACE}[=:]{_SPACE}"
    rf"[bru]{{0,2}}{_QUOTE}?([\w.…-]{{1,200}})",
    re.IGNORECASE,
)
#: The end of a text in which the name of a record can still follow its value.
_NAME_IS_CUT = re.compile(
    rf"(?:{_SPACE},[^\])}}>]{{0,300}}|\s{{1,8}}\w{{0,40}}(?:={_QUOTE}?[\w.-]{{0,100}})?)?\s{{0,8}}(?:…|\.\.\.)?\Z"
)
#: ``<password>VALUE</password>``, ``<entry key="password">VALUE</entry>``,
#: ``<key>password</key><string>VALUE</string>``
_ELEMENT_BEGINS = re.compile(r"<(?:[\w-]{1,50}:)?[\w.-]{0,100}$")
_ELEMENT_ENDS = re.compile(r"(?:\s[^<>]{0,300})?(?<!/)>")
_NAMED_ELEMENT_ENDS = re.compile(rf"{_QUOTE}[^<>]{{0,300}}(?<!/)>(?=[^\s<])")
_NAME_ELEMENT_BEGINS = re.compile(r"<[\w:]{1,40}>\s{0,8}[\w.-]{0,100}$")
_NAME_ELEMENT_ENDS = re.compile(r"\s{0,8}</[\w:]{1,40}>\s{0,40}<[\w:]{1,40}>")
_USAGE = re.compile(r"[\s@:/,.;)\]}'\"|]|\Z")

#: ``InvalidTokenError: text`` is a type and its message, not a key and its value.
_TYPE_ENDS = ("Error", "Exception", "Warning")
#: So is ``shop.gateway.InvalidCard: text`` at the start of a line, as a traceback ends.
_TYPE = re.compile(r"^(?:\w+\.)+[A-Z]\w*(?=: )", re.MULTILINE)
_PREFIX = re.compile(r"(?:bearer|basic|digest|token)\s+|[bru]{1,2}(?=\\{0,15}['\"])", re.IGNORECASE)
_PLAIN = re.compile(r"[0-9][0-9 -]*[0-9](?![^\s,;&)}\]>'\"])|[^\s,;&(){}\[\]<>'\"\\]+|\\(?!['\"])|[(\[{]")
_OPENS = {"(", "[", "{"}
_COOKIES = re.compile(r"(?:;\s{0,4}[^\s;,'\"]+)*")
_ESCAPED_QUOTE = re.compile(r"\\*(?:'|\"|&(?:quot|apos|#34|#39|#x22|#x27);)")
_CLOSES = {"{": "}", "[": "]", "(": ")", "<": ">"}
_STRUCTURE = re.compile(r"\\*['\"]|[()\[\]{}<>]")


def without_values(text: str, lowered: str, keys: DeniedKeys, replacement: str) -> str:
    """Return a text in which the values of denied keys are replaced."""
    spans = _values_before_names(text, keys) if "value" in lowered and _VALUE.search(lowered) else []
    if words := keys.words(text, lowered):
        spans += _values_after_words(text, words)
    return without_spans(text, spans, replacement) if spans else text


def _values_after_words(text: str, words: list[tuple[int, int, bool]]) -> list[tuple[int, int]]:
    found, at = [], 0
    types: deque[tuple[int, int]] | None = None
    for start, end, is_whole in words:
        if start < at:
            continue
        span = _value_span(text, start, end, is_whole=is_whole)
        if span is None or span[1] <= span[0]:
            continue
        if types is None:
            types = deque(each.span() for each in _TYPE.finditer(text))
        while types and types[0][1] <= start:
            types.popleft()
        if not types or types[0][0] > start:
            found.append(span)
            at = span[1]
    return found


def _value_span(text: str, start: int, end: int, *, is_whole: bool) -> tuple[int, int] | None:
    """Return where the value of a denied word is; None where the word is not a key."""
    rest = _REST.match(text, end)
    assert rest is not None  # noqa: S101 - for mypy: it can be empty
    end = rest.end()
    if sign := _SIGN.match(text, end):
        if rest[0].endswith(_TYPE_ENDS) or (is_whole and "." in rest[0]):
            return None
        begin = sign.end()
        stop = _value_end(text, begin)
        if text.startswith(("cookie", "Cookie", "COOKIE"), start) and (cookies := _COOKIES.match(text, stop)):
            stop = cookies.end()
        return begin, stop
    if sign := _COLUMNS.match(text, end):
        return sign.end(), _value_end(text, sign.end())
    before = max(0, start - 200)
    for begins, ends in ((_OPTION_BEGINS, _OPTION_ENDS), (_RECORD_BEGINS, _RECORD_ENDS)):
        if (sign := ends.match(text, end)) and begins.search(text, before, start):
            return sign.end(), _value_end(text, sign.end())
    if (sign := _PAIR_ENDS.match(text, end)) and _PAIR_BEGINS.search(text, before, start):
        stop = _value_end(text, sign.end())
        return (sign.end(), stop) if _AFTER_PAIR.match(text, stop) else None
    return _element_span(text, start, end) if "<" in text[before:start] else None


def _element_span(text: str, start: int, end: int) -> tuple[int, int] | None:
    before = max(0, start - 200)
    if (sign := _ELEMENT_ENDS.match(text, end)) and (begin := _ELEMENT_BEGINS.search(text, before, start)):
        name = re.split(r"[\s>]", text[begin.start() + 1 : sign.end()], maxsplit=1)[0]
        close = text.find(f"</{name}", sign.end())
        if close >= 0:
            return sign.end(), close
        if text.startswith("<", sign.end()):  # a nested element that is cut
            return sign.end(), len(text)
        return None if _USAGE.match(text, sign.end()) else (sign.end(), _element_end(text, sign.end()))
    for begins, ends in ((_RECORD_BEGINS, _NAMED_ELEMENT_ENDS), (_NAME_ELEMENT_BEGINS, _NAME_ELEMENT_ENDS)):
        if (sign := ends.match(text, end)) and begins.search(text, before, start):
            return sign.end(), _element_end(text, sign.end())
    return None


def _element_end(text: str, begin: int) -> int:
    end = text.find("</" if text.startswith("<![CDATA[", begin) else "<", begin)
    return end if end >= 0 else len(text)


def _values_before_names(text: str, keys: DeniedKeys) -> list[tuple[int, int]]:
    """Return the values of records whose name follows them, or is cut off."""
    found, at = [], 0
    for sign in _RECORD_VALUE.finditer(text):
        begin = sign.end()
        if begin < at:
            continue
        end = _value_end(text, begin)
        name = _RECORD_NAME.match(text, end)
        is_whole = name is not None and name.end() < len(text) and not name[1].endswith(("...", "…"))
        if keys.name(name[1]) if name and is_whole else _NAME_IS_CUT.match(text, end):
            found.append((begin, end))
            at = end
    return found


def _value_end(text: str, start: int) -> int:
    """Return where the value that begins at ``start`` ends: a quoted text, a bracket with its contents, or a word."""
    prefix = _PREFIX.match(text, start)
    start = prefix.end() if prefix else start
    quote = _ESCAPED_QUOTE.match(text, start)
    if quote is not None:
        return _quote_end(text, quote.end(), quote[0])
    if text[start : start + 1] in _CLOSES:
        return _bracket_end(text, start)
    at = start
    while plain := _PLAIN.match(text, at):
        at = _bracket_end(text, at) if plain[0] in _OPENS else plain.end()
    return at


def _quote_end(text: str, at: int, quote: str) -> int:
    """Return where a quoted text ends. A mark behind fewer backslashes than ``quote`` ends the text around it."""
    if quote.endswith(";"):
        found = text.find(quote, at)
        return len(text) if found < 0 else found + len(quote)
    mark, level = quote[-1], len(quote) - 1
    while (found := text.find(mark, at)) >= 0:
        behind = found
        while behind > at and text[behind - 1] == "\\":
            behind -= 1
        count = found - behind
        if count < level:
            return behind
        if (count - level) % (2 * level + 2) == 0:
            return found + 1
        at = found + 1
    return len(text)


def _bracket_end(text: str, start: int) -> int:
    opens, closes, depth, at = text[start], _CLOSES[text[start]], 0, start
    while found := _STRUCTURE.search(text, at):
        at, sign = found.end(), found[0]
        if sign[-1] in "'\"":
            at = _quote_end(text, at, sign)
            continue
        depth += (sign == opens) - (sign == closes)
        if not depth:
            return at
    return len(text)
