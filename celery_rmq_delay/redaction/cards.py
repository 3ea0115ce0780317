"""Numbers of payment cards, recognised without a key by the issuer's first digits, the length and the check digit."""

from __future__ import annotations

import re

from .keys import without_spans

#: Replaces a card number. It has no denied word: the text can be redacted again.
CARD = "[redacted digits]"

#: The first digits of issuers' numbers, by the length of the number.
_ISSUERS = {
    14: re.compile(r"3(?:0[0-5]|095|[689])"),  # Diners Club
    15: re.compile(r"3[47]"),  # American Express
    16: re.compile(
        r"4|5[1-5]|2(?:22[1-9]|2[3-9]|[3-6]|7[01]|720)"  # Visa, Mastercard
        r"|60|6[25]|64[4-9]|35(?:2[89]|[3-8])|220[0-4]"  # Discover and RuPay, UnionPay, JCB, Mir
        r"|50(?:18|20|38)|5893|6304|67(?:59|6[1-3])"  # Maestro
    ),
    19: re.compile(r"62"),  # UnionPay
}
#: With up to this many digits, the rest of a card number is unknown.
_FEW = 8
_NO_DIGIT = re.compile(r"[^0-9]")
_LEAST, _MOST = 10**13, 10**19
_GAP = "[ -]"

#: The beginning of every number: a faster search, as most texts have none.
_BEGINS = re.compile(rf"[2-6][0-9]{{3}}{_GAP}?[0-9]{{4}}")
# A match has the first digit only: a number may begin within what looks like another one.
_FIRST = re.compile(
    # Not within a word, numbers with "-" between, or a decimal. In a quoted text, the "n" of "\n" is no word.
    r"[2-6](?:(?<![\w+-].)(?<![0-9]\..)|(?<=\\[nrt].))"
    rf"(?=(?P<cut>[0-9](?:{_GAP}?[0-9]){{{_FEW - 1},17}}{_GAP}?)(?:…|\.\.\.)"
    r"|(?P<whole>(?:[0-9]{13,18}"
    rf"|[0-9]{{3}}(?P<gap>{_GAP})(?:[0-9]{{4}}(?P=gap)[0-9]{{4}}(?P=gap)[0-9]{{4}}(?P<more>(?P=gap)[0-9]{{3}})?"
    r"|[0-9]{6}(?P=gap)[0-9]{4,5}))(?!\w|-\w|\.[0-9])))"
)


def is_card_number(number: int) -> bool:
    """Return whether a whole number is the number of a card."""
    return _LEAST <= number < _MOST and _is_card(str(number))


def without_card_numbers(text: str) -> str:
    """Return a text in which card numbers are replaced by `CARD`, also those that are cut before an ellipsis."""
    if not _BEGINS.search(text):
        return text
    spans = [span for first in _FIRST.finditer(text) if (span := _span(text, first))]
    return without_spans(text, spans, CARD) if spans else text


def _span(text: str, first: re.Match[str]) -> tuple[int, int] | None:
    begin = first.start()
    if first["cut"]:
        end = first.end("cut")
        return (begin, end) if _is_card(text[begin:end], is_cut=True) else None
    # A number may be followed by three digits that do not belong to it.
    ends = [first.end("whole"), *([first.start("more")] if first["more"] else [])]
    return next(((begin, end) for end in ends if _is_card(text[begin:end])), None)


def _is_card(number: str, *, is_cut: bool = False) -> bool:
    digits = _NO_DIGIT.sub("", number)
    if is_cut and any(len(digits) < length and issuer.match(digits) for length, issuer in _ISSUERS.items()):
        return True
    issuer = _ISSUERS.get(len(digits))
    return issuer is not None and bool(issuer.match(digits)) and _has_check_digit(digits)


def _has_check_digit(digits: str) -> bool:
    """Return whether the last digit is the check digit of the others (Luhn, ISO/IEC 7812)."""
    doubled = [sum(divmod(2 * int(digit), 10)) for digit in digits[-2::-2]]
    return (sum(doubled) + sum(map(int, digits[-1::-2]))) % 10 == 0
