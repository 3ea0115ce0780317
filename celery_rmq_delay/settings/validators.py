"""Checks of single values: each returns the parsed value, or raises `SettingsError`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import inf
from typing import Any, TypeGuard

from ..durations import MAX_TTL_MS, format_ms, parse_ms
from ..exceptions import SettingsError


def check_ttl(tiers: tuple[int, ...], jitter: float, where: str, found: object) -> None:
    """Raise `SettingsError` for a tier that, with its jitter, is longer than RabbitMQ's longest TTL."""
    for tier in tiers:
        if tier * (1 + jitter) > MAX_TTL_MS:
            hint = f"{format_ms(tier)} with a jitter of {jitter:g} is over RabbitMQ's longest TTL: use less of either."
            raise SettingsError(where, found, hint)


def read_tiers(value: object, where: str) -> tuple[int, ...]:
    """Return a list of delays as whole milliseconds."""
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise SettingsError(where, value, 'Write a list of delays, such as ["10s", "1m", "10m"].')
    tiers = tuple(parse_ms(tier, f"{where}[{index}]") for index, tier in enumerate(value))
    if not tiers:
        raise SettingsError(where, value, "A ladder needs at least one tier.")
    return tiers


def check_known(raw: Mapping[str, Any], known: tuple[str, ...], where: str) -> None:
    """Raise `SettingsError` for an unknown key."""
    for key in raw:
        if key not in known:
            raise SettingsError(f"{where}.{key}", raw[key], f"There is no such setting. Known: {', '.join(known)}.")


def is_integer(value: object, low: float, high: float = inf) -> TypeGuard[int]:
    """Whether a value is a whole number from ``low`` to ``high``, and not a bool."""
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def read_integer(value: object, where: str, low: int, high: int) -> int:
    """Return a whole number from ``low`` to ``high``."""
    if not is_integer(value, low, high):
        raise SettingsError(where, value, f"Write a whole number from {low} to {high}.")
    return value


def check_choice(value: object, where: str, choices: tuple[str | None, ...], hint: str) -> None:
    """Raise `SettingsError` for a value that is none of the ``choices``."""
    if value not in choices:
        raise SettingsError(where, value, hint)


def read_share(value: object, where: str) -> float:
    """Return a share from 0 up to, not including, 1."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1:
        raise SettingsError(where, value, "Write a share of the delay from 0 up to, not including, 1.")
    return float(value)


def read_flag(value: object, where: str) -> bool:
    """Return True or False."""
    if not isinstance(value, bool):
        raise SettingsError(where, value, "Write True or False.")
    return value


def read_text(value: object, where: str) -> str:
    """Return a text that is not empty."""
    if not isinstance(value, str) or not value:
        raise SettingsError(where, value, "Write a non-empty text.")
    return value
