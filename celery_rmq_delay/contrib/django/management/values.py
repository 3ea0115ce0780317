"""Values of the commands' options; what is found is in the error, and what to write instead."""

from __future__ import annotations

import math
from argparse import ArgumentTypeError
from collections.abc import Callable
from datetime import date


def day(text: str) -> date:
    """Return a date, for ``type`` of an option."""
    try:
        return date.fromisoformat(text)
    except ValueError as error:
        raise _refused(text, "a date, such as 2026-01-31") from error


def seconds(text: str) -> float:
    """Return a number of seconds that is neither negative nor infinite, for ``type`` of an option."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 <= number < math.inf:
        raise _refused(text, "a number of seconds, 0 or more")
    return number


def whole_number(least: int, most: int) -> Callable[[str], int]:
    """Return a function for ``type`` of an option: it returns a whole number between these."""

    def found(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = least - 1
        if not least <= number <= most:
            raise _refused(text, f"a whole number from {least} to {most}")
        return number

    return found


def _refused(text: str, wanted: str) -> ArgumentTypeError:
    return ArgumentTypeError(f"found {text!r}; write {wanted}")
