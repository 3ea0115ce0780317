"""Rates, shares and sizes: text in, numbers out, and back."""

from __future__ import annotations

import math
import re

from ...exceptions import SettingsError

_NUMBER = r"([0-9]*\.?[0-9]+(?:[eE][+-]?[0-9]+)?)"
_RATE = re.compile(rf"{_NUMBER}\s*(?:/\s*(s|m|h|d))?")
_SHARE = re.compile(rf"{_NUMBER}\s*(%?)")
_SIZE = re.compile(rf"{_NUMBER}\s*([kKMGT]i?)?B?")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_BINARY = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_POWERS = {"k": 1, "K": 1, "M": 2, "G": 3, "T": 4}


def parse_rate(text: str, option: str) -> float:
    """Return messages a second from ``5000/s``, ``300/m``, ``10/h``, ``1e6/d``, or a number of messages a second."""
    found = _RATE.fullmatch(text.strip())
    if found is None:
        raise SettingsError(option, text, 'Write a rate such as "5000/s", "300/m" or "1e6/d".')
    return _finite(float(found.group(1)) / _SECONDS[found.group(2) or "s"], text, option)


def parse_shares(text: str, option: str) -> tuple[float, ...]:
    """Return shares from 0 to 1 from ``0.02``, ``2%``, or one for each attempt: ``0.02,0.5``."""
    shares = []
    for part in text.split(","):
        found = _SHARE.fullmatch(part.strip())
        share = float(found.group(1)) / (100 if found.group(2) else 1) if found else -1
        if not 0 <= share <= 1:
            hint = 'Write a share from 0 to 1 such as "0.02" or "2%", or one for each attempt: "0.02,0.5".'
            raise SettingsError(option, text, hint)
        shares.append(share)
    return tuple(shares)


def parse_size(text: str, option: str) -> int:
    """Return bytes from ``2KiB`` (of 1024), ``1MB`` (of 1000), ``500B`` or a number of bytes."""
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise SettingsError(option, text, 'Write a size such as "500B", "2KiB", "1MB" or "8GiB".')
    unit = found.group(2) or ""
    base = 1024 if unit.endswith("i") else 1000
    return round(_finite(float(found.group(1)) * base ** _POWERS.get(unit[:1], 0), text, option))


def _finite(value: float, text: str, option: str) -> float:
    if not math.isfinite(value):
        raise SettingsError(option, text, "This is too much for a number.")
    return value


def format_size(size: float) -> str:
    """Return bytes with three digits and a binary unit: ``1.95 MiB``."""
    power = min(int(math.log(size, 1024)), len(_BINARY) - 1) if size >= 1 else 0
    return f"{format_number(size / 1024**power)} {_BINARY[power]}"


def format_number(value: float) -> str:
    """Return a number with three digits, or all of them before the point: ``0.0123``, ``1.5``, ``12,345``."""
    if value == 0 or abs(value) >= 99.95:
        return f"{value:,.0f}"
    digits = 2 - math.floor(math.log10(abs(value)))
    if digits > 6:
        return f"{value:.1e}"
    text = f"{value:.{max(digits, 0)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
