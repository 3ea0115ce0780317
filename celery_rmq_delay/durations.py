"""Conversion of delays and points in time (text, seconds, timedelta, datetime) to whole milliseconds."""

from __future__ import annotations

import math
import re
from datetime import datetime, timedelta, timezone
from numbers import Real
from typing import TYPE_CHECKING

import durationpy
from celery.utils.time import maybe_iso8601, maybe_make_aware

from .exceptions import DelayError, SettingsError

if TYPE_CHECKING:
    from celery import Celery

#: RabbitMQ refuses a longer ``x-message-ttl`` (ten years of 365 days; measured on 3.10, 4.0 and 4.3).
MAX_TTL_MS = 315_360_000_000

#: A delay: a text such as ``"1h30m"``, seconds, or a timedelta.
DelayLike = str | float | timedelta

_SECOND = 1000
_UNITS = {"d": 24 * 3600 * _SECOND, "h": 3600 * _SECOND, "m": 60 * _SECOND}
_TEXT = re.compile(r"[+-]?(?:0|(?:[0-9.]+[a-zµμ]+)+)")
_EXAMPLES = 'Write "10s", "1m", "1h30m", a number of seconds, or a timedelta.'


def parse_ms(value: object, setting: str) -> int:
    """Return a delay in whole milliseconds.

    ``value``: ``"10s"``, ``"1h30m"`` (Go's duration text, with ``d`` and ``w``), a number of seconds, or a
    ``timedelta``. Raises `SettingsError`, which names ``setting``, for anything else and for a delay that RabbitMQ
    does not accept as a queue's TTL.
    """
    if isinstance(value, timedelta):
        seconds = value.total_seconds()
    elif isinstance(value, str):
        seconds = _from_text(value, setting)
    elif isinstance(value, Real) and not isinstance(value, bool):
        seconds = _from_number(value)
    else:
        raise SettingsError(setting, value, f"This is not a delay. {_EXAMPLES}")
    if not math.isfinite(seconds):
        raise SettingsError(setting, value, f"A delay has to be finite. {_EXAMPLES}")
    milliseconds = round(seconds * 1000)
    if milliseconds < 1:
        raise SettingsError(setting, value, "A delay has to be at least 1 ms.")
    if milliseconds > MAX_TTL_MS:
        raise SettingsError(setting, value, f"RabbitMQ's longest TTL is {format_ms(MAX_TTL_MS)} ({MAX_TTL_MS} ms).")
    return milliseconds


def _from_number(value: Real) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _from_text(value: str, setting: str) -> float:
    text = value.strip()
    try:
        # durationpy checks only the ends of the text, and reads "10s, 1m" as a sum.
        if not _TEXT.fullmatch(text):
            raise durationpy.DurationError(text)
        return durationpy.from_str(text).total_seconds()
    except (durationpy.DurationError, OverflowError) as error:
        raise SettingsError(setting, value, f"This is not a delay. {_EXAMPLES}") from error


def format_ms(milliseconds: int) -> str:
    """Return the shortest text that `parse_ms` reads back as the same delay, such as ``1h30m``."""
    text, rest = "", milliseconds
    for unit, size in _UNITS.items():
        count, rest = divmod(rest, size)
        text += f"{count}{unit}" if count else ""
    if not rest and text:
        return text
    return f"{text}{rest / 1000:g}s" if text or rest >= _SECOND else f"{rest}ms"


def whole_ms(seconds: object, what: str) -> int:
    """Return a delay in milliseconds, rounded up; 0 for a delay in the past. Raises `DelayError`."""
    if isinstance(seconds, bool) or not isinstance(seconds, Real):
        raise DelayError(what, seconds, "Write a number of seconds.")
    number = _from_number(seconds)
    if math.isnan(number) or number == math.inf:
        raise DelayError(what, seconds, "A delay has to be finite.")
    return math.ceil(round(number * 1000, 3)) if number > 0 else 0


def until_ms(eta: datetime) -> int:
    """Return the milliseconds until an aware datetime, rounded up; 0 when it is past."""
    return whole_ms((eta - datetime.now(timezone.utc)).total_seconds(), "eta")


def aware_eta(app: Celery, eta: object) -> datetime:
    """Return an eta with its time zone. Raises `DelayError`.

    As in Celery's workers, an eta without a time zone is in UTC, with ``enable_utc=False`` in the app's time zone.
    """
    try:
        found = maybe_iso8601(eta) if isinstance(eta, (str, datetime)) else None
        if found is not None:
            return maybe_make_aware(found, app.timezone, naive_as_utc=app.conf.enable_utc)
    except (ValueError, OverflowError):
        pass
    raise DelayError("eta", eta, "Write a datetime.")
