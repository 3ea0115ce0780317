"""Secrets that their own form reveals, without a key: tokens of services, PEM blocks, credentials in URLs, cards.

The beginning of a secret is sufficient: a text can be cut anywhere.
"""

from __future__ import annotations

import re

from .keys import without_spans

_ENDS = r"(?:\Z|…|\.\.\.)"


def _token(pattern: str) -> re.Pattern[str]:
    return re.compile(rf"(?<![\w-])(?:{pattern})")


#: A text that is in every match, and the pattern of the forms.
_MARKED = (
    ("eyJ", _token(r"eyJ[\w-]{5,}(?:\.[\w-]*){0,4}")),  # JSON Web Tokens, and other JSON in base64
    ("AKIA", _token(r"AKIA[A-Z0-9]{6,}")),  # AWS
    ("ASIA", _token(r"ASIA(?:[A-Z2-7]{16}\b|(?!PAC|N)[A-Z0-9]{6,})")),
    ("AIza", _token(r"AIza[\w-]{12,}")),  # Google
    ("Q~", _token(r"[\w.~]{3}\dQ~[\w.~-]{10,}")),  # Azure
)
#: The same for texts with "_", "-" or ".": whether a text can have one of the forms, and their pattern.
_SIGNED = (
    (
        re.compile(r"_(?:(?<=gh[pousr]_)|(?<=_pat_)|(?<=_live_)|(?<=_test_)|(?<=whsec_)|(?<=npm_))"),
        _token(  # GitHub, Stripe, npm
            r"gh[pousr]_[A-Za-z0-9]{12,}|github_pat_\w{6,}|[rs]k_(?:live|test)_\w{8,}|whsec_[\w+/=]{3,}"
            r"|npm_(?=[A-Za-z]{0,30}[0-9])[A-Za-z0-9]{10,}"
        ),
    ),
    (
        re.compile(r"-(?:(?<=xox[a-z]-)|(?<=xapp-)|(?<=glpat-)|(?<=GOCSPX-)|(?<=pypi-))"),
        _token(
            r"xox[a-z]-[\w-]{6,}|xapp-[\w-]{6,}|glpat-[\w-]{2,}|GOCSPX-[\w-]{2,}|pypi-AgE[\w-]{4,}"
        ),  # Slack, GitLab
    ),
    (
        re.compile(r"\.(?:(?<=SG\.)|(?<=ya29\.)|com/services/)"),
        _token(r"SG\.[\w-]{10,}(?:\.[\w-]*)?|ya29\.[\w-]{8,}|(?<=//)hooks\.slack\.com/services/[\w/-]+"),  # SendGrid
    ),
)

_PEM = re.compile(r"-----BEGIN [A-Z0-9 ]{1,60}-----.*?(?:-----END [A-Z0-9 ]{1,60}-----|\Z)", re.DOTALL)
_PEM_LINE = re.compile(r"[\w+/=]{0,100}\r?")
# A password may contain "/"; a port and its path must not be taken for one.
_URL = re.compile(
    r"(://)(?:(?:[^\s/'\"<>]{1,1000}|[^\s/:@'\"<>]{0,200}:(?!\d{1,5}/)[^\s@'\"<>]{1,200})@"
    # without "@", as the text is cut in the password
    rf"|[^\s/:@'\"<>\[\]{{}}%$]{{1,200}}:(?!\d{{1,5}}(?:[/?#]|{_ENDS}))[^\s@'\"<>{{}}]{{1,200}}?(?={_ENDS}))"
)
# Words such as "Basic authentication" are no credentials.
_HTTP = re.compile(
    r"\b((?i:bearer|basic))\s{1,8}"
    r"(?=[\w.~+/-]{0,40}?(?:[0-9+/_=~]|[a-z][A-Z]|[A-Z]{2})|[\w.~+/-]{20})[\w.~+/-]{6,}=*"
)


def without_known_forms(text: str, lowered: str, replacement: str) -> str:
    """Return a text in which secrets of known forms are replaced, card numbers by `CARD`."""
    if "-----" in text:
        text = _without_pem(text, replacement)
    for mark, pattern in _MARKED:
        if mark in text:
            text = pattern.sub(replacement, text)
    for signs, pattern in _SIGNED:
        if signs.search(text):
            text = pattern.sub(replacement, text)
    if "://" in text:
        text = _URL.sub(rf"\1{replacement}@", text)
    if "bearer" in lowered or "basic" in lowered:
        text = _HTTP.sub(rf"\1 {replacement}", text)
    return _without_card_numbers(text)


def _without_pem(text: str, replacement: str) -> str:
    text = _PEM.sub(replacement, text)
    end = text.find("-----END ")
    if end < 0:
        return text
    # The beginning of the text is cut off: the lines of the block are those before its end.
    begin = end
    while begin > 0:
        line = text.rfind("\n", 0, begin - 1) + 1
        if not _PEM_LINE.fullmatch(text, line, begin - (text[begin - 1] == "\n")):
            break
        begin = line
    return text if begin == end else text[:begin] + replacement + text[end:]


# -- numbers of payment cards, by the issuer's first digits, the length and the check digit --------------------------

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


def _without_card_numbers(text: str) -> str:
    """Replace card numbers, also those that are cut before an ellipsis."""
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
