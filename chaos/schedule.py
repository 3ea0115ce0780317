"""The schedule of strikes, determined by the seed. Pure."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from chaos.strikes import Fault

#: Seconds between two strikes on the same part, so that it has recovered.
RECOVERY = 3.0


@dataclass(frozen=True)
class Strike:
    """A fault with its time in seconds from the beginning of the run. ``dice`` is the seed of its random choices."""

    at: float
    fault: str
    lasts: float
    dice: int


class ScheduleError(Exception):
    """The strikes do not fit into the duration."""


def schedule(seed: int, duration: float, faults: Sequence[Fault], each: int) -> list[Strike]:
    """Return ``each`` strikes of every fault within ``duration`` seconds, by time.

    Two strikes that touch the same part never overlap; others may. Raises `ScheduleError` if that is not possible.
    """
    dice = random.Random(seed)
    wanted = [(fault, dice.uniform(*fault.lasts), dice.getrandbits(32)) for fault in faults for _ in range(each)]
    for _ in range(20):
        found = _placed(dice, duration, wanted)
        if found is not None:
            return sorted(found, key=lambda strike: (strike.at, strike.fault))
    needed = {part: 0.0 for fault in faults for part in fault.touches}
    for fault, lasts, _ in wanted:
        for part in fault.touches:
            needed[part] += lasts + fault.takes + RECOVERY
    longest = max(needed, key=needed.__getitem__)
    raise ScheduleError(
        f"{len(wanted)} strikes do not fit into {duration:g} s: those on {longest!r} take {needed[longest]:.0f} s. "
        "Use a longer duration, or fewer strikes of each."
    )


def _placed(dice: random.Random, duration: float, wanted: list[tuple[Fault, float, int]]) -> list[Strike] | None:
    """Place the longest first, each at a random free time; None if one does not fit."""
    busy: dict[str, list[tuple[float, float]]] = {}
    found = []
    order = sorted(wanted, key=lambda each: (-(each[1] + each[0].takes), each[2]))
    for fault, lasts, seed in order:
        span = lasts + fault.takes + RECOVERY
        taken = sorted(each for part in fault.touches for each in busy.get(part, ()))
        gaps = _gaps(taken, span, duration)
        if not gaps:
            return None
        low, high = dice.choices(gaps, [high - low + 0.01 for low, high in gaps])[0]
        at = dice.uniform(low, high)
        for part in fault.touches:
            busy.setdefault(part, []).append((at, at + span))
        found.append(Strike(round(at, 3), fault.name, round(lasts, 3), seed))
    return found


def _gaps(taken: list[tuple[float, float]], span: float, duration: float) -> list[tuple[float, float]]:
    """Return the ranges of start times at which ``span`` seconds are free."""
    gaps, free = [], 0.0
    for low, high in [*taken, (duration, duration)]:
        if low - span >= free:
            gaps.append((free, low - span))
        free = max(free, high)
    return gaps
