"""The settings of exact delays."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ..durations import format_ms, parse_ms
from ..exceptions import SettingsError
from ..ladders import QueueType
from ..topology.exact.registry import known
from .validators import read_integer

KEYS = ("exact_delays", "exact_unit", "exact_levels", "exact_queue_type", "exact_for")

#: The most levels of `levels`; the objects of fewer are among theirs.
MOST_LEVELS = 28
_SHORTEST_UNIT, _LONGEST_UNIT = 100, 60_000


@dataclass(frozen=True)
class ExactSettings:
    """The settings of calls and retries with a ``countdown`` or an ``eta``.

    ``topologies``: names in the order of preference. ``queue_type`` None is the type of the app's default queue.
    ``unit_ms``: delays are rounded up to it. ``every_task``: also for tasks that are not a `RetryableTask`.
    """

    topologies: tuple[str, ...] = ("levels",)
    unit_ms: int = 1000
    levels: int = MOST_LEVELS
    queue_type: QueueType | None = None
    every_task: bool = False


def parse_exact(raw: Mapping[str, Any], setting: str) -> ExactSettings:
    """Return the validated settings of exact delays. Raises `SettingsError`."""
    which: Literal["retryable", "all"] = raw.get("exact_for", "retryable")
    if which not in ("retryable", "all"):
        raise SettingsError(f"{setting}.exact_for", which, 'Write "retryable" or "all".')
    queue_type = raw.get("exact_queue_type")
    if queue_type not in (None, "classic", "quorum"):
        hint = 'Write "classic", "quorum" or None (as the default queue).'
        raise SettingsError(f"{setting}.exact_queue_type", queue_type, hint)
    return ExactSettings(
        topologies=_topologies(raw.get("exact_delays", "levels"), f"{setting}.exact_delays"),
        unit_ms=_unit(raw.get("exact_unit", "1s"), f"{setting}.exact_unit"),
        levels=read_integer(raw.get("exact_levels", MOST_LEVELS), f"{setting}.exact_levels", 1, MOST_LEVELS),
        queue_type=queue_type,
        every_task=which == "all",
    )


def _unit(value: object, where: str) -> int:
    unit = parse_ms(value, where)
    if not _SHORTEST_UNIT <= unit <= _LONGEST_UNIT:
        hint = f"Write a delay from {format_ms(_SHORTEST_UNIT)} to {format_ms(_LONGEST_UNIT)}."
        raise SettingsError(where, value, hint)
    return unit


def _topologies(value: object, where: str) -> tuple[str, ...]:
    names = (value,) if isinstance(value, str) else tuple(value) if isinstance(value, Iterable) else ()
    if not names:
        raise SettingsError(where, value, 'Write "levels", or a list such as ["plugin", "levels"].')
    for name in names:
        if name not in known():
            raise SettingsError(where, name, f"There is no such topology. Known: {', '.join(known())}.")
    return names
