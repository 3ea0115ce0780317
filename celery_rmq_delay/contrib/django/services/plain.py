"""Text that came with a message, as a page can show it."""

from __future__ import annotations

import re

from ....headers import printable
from ....redaction import shortened

#: Maximum characters of a text on a page of its own.
ON_PAGE = 20_000

# Control characters that a page cannot show; line ends and tabs stay.
_CONTROLS = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")


def plain(text: object, limit: int = ON_PAGE) -> str:
    """Return at most ``limit`` characters of a text, control characters replaced; not escaped yet."""
    return _CONTROLS.sub("\N{REPLACEMENT CHARACTER}", printable(shortened(str(text), limit)))
