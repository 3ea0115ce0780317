"""Secrets that their own form reveals, without a key: tokens of services, PEM blocks, credentials in URLs.

The beginning of a secret is sufficient: a text can be cut anywhere.
"""

from __future__ import annotations

import re

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
    """Return a text in which secrets of known forms are replaced."""
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
    return text


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
