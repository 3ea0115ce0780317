"""The most likely shares of failures that ended in each step between knots. Pure NumPy, for many histories at once.

This is the self-consistent estimate of interval-censored data (Turnbull, B. W. (1976): The empirical distribution
function with arbitrarily grouped, censored and truncated data. JRSS B 38), for steps in which failures end evenly: an
interval that covers a part of a step has that part of its probability. The likelihood is concave; EM maximises it, with
the extrapolation of Varadhan and Roland (2008, SQUAREM) as it is slow near the maximum.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .intervals import Floats, Intervals, Ints
from .options import Grid

#: Looks within this part of a decade are one knot.
_WIDTH_DECADES = 0.1

#: Looks are divided into several knots if each has at least this many: then they determine the share well, and to
#: assume that failures end evenly within one wide knot would be a larger error than chance.
_MANY_LOOKS = 2000

#: Less looks than this share of the failures that had not ended by then are no knot: they show little about the others.
_LEAST_SHARE = 0.05

#: A cell with less than this share of the looks of its knot shows nothing about others: its tasks were very late.
_OFTEN = 0.01

#: With less looks than this, it is chance whether failures seem to end before or after them.
_ENOUGH_LOOKS = 20


@dataclass(frozen=True)
class Knots:
    """``cells``: the grid cell of each knot, 0 first: times at which the history shows how many failures have ended.

    ``seen``: the cells in which attempts count as seen, ``knot_of``: their knots, ``sound``: those with enough
    attempts. ``place``: the coordinate of every cell in which failures end evenly: time before the first knot, then its
    logarithm.
    """

    cells: Ints
    seen: Ints
    knot_of: Ints
    sound: Ints
    place: Floats

    @classmethod
    def of(cls, data: Intervals, grid: Grid) -> Knots:
        """Return the knots of a history; only cell 0 if no attempt was seen."""
        looks = data.looks(grid.points + 1)
        width = max(1, round(_WIDTH_DECADES * grid.per_decade))
        wide = (each for each in _groups(np.flatnonzero(looks), width) if _is_enough(data, looks, each))
        groups = [each for group in wide for each in _divided(group, looks)]
        cells = [0, *(round(float(np.average(each, weights=looks[each]))) for each in groups)]
        if groups:
            cells.append(int(groups[-1][-1]))
        sound = [each for each in groups if looks[each].sum() >= _ENOUGH_LOOKS]
        seen = [*(each[looks[each] >= _OFTEN * looks[each].sum()] for each in groups[:-1]), *groups[-1:]]
        knot_of = np.repeat(cells[: len(seen) + 1], [1, *map(len, seen)])
        first, at = cells[1] if len(cells) > 1 else 1, np.arange(grid.points + 1)
        place = np.where(at < first, grid.times / grid.times[first], 1.0 + at - first)
        return cls(np.unique(cells), _joined(seen), knot_of, _joined(sound), place)

    def overlaps(self, low: Ints, high: Ints) -> Floats:
        """Return (interval, step) the part of each step in ``(low, high]``; the last step is all after the horizon."""
        horizon = self.cells[-1]
        at, until = self.place[low], self.place[np.minimum(high, horizon)]
        begin, end = self.place[self.cells[:-1]], self.place[self.cells[1:]]
        inside = np.minimum(until[:, None], end) - np.maximum(at[:, None], begin)
        return np.column_stack([np.maximum(inside, 0.0) / (end - begin), high > horizon])


def _groups(cells: Ints, width: int) -> list[Ints]:
    """Return cells in groups that span less than ``width`` each."""
    groups: list[list[int]] = []
    for cell in cells.tolist():
        if groups and cell - groups[-1][0] < width:
            groups[-1].append(cell)
        else:
            groups.append([cell])
    return [np.array(each, dtype=np.int64) for each in groups]


def _divided(group: Ints, looks: Floats) -> list[Ints]:
    """Return the cells of a group in groups of `_MANY_LOOKS` or more each; one, if it has less than twice as many."""
    sums = np.cumsum(looks[group])
    ends: list[int] = []
    for at, total in enumerate(sums.tolist()):
        before = sums[ends[-1]] if ends else 0.0
        if total - before >= _MANY_LOOKS and sums[-1] - total >= _MANY_LOOKS:
            ends.append(at)
    return [np.asarray(each) for each in np.split(group, np.array(ends, dtype=np.int64) + 1)]


def _joined(groups: list[Ints]) -> Ints:
    return np.concatenate([np.zeros(1, dtype=np.int64), *groups])


def _is_enough(data: Intervals, looks: Floats, group: Ints) -> bool:
    lasting = data.count[data.high >= group[0]].sum()
    return bool(looks[group].sum() >= _LEAST_SHARE * lasting)


_MOST_STEPS = 400

#: No step may begin without any mass: EM never gives it some.
_MIXED = 0.01

#: The part of a mass that remains when an extrapolation would make it negative.
_VANISHING = 0.1

#: Nothing is less likely than this, so that no logarithm and no quotient is infinite.
_LEAST = 1e-300


def maximise(overlaps: Floats, counts: Floats, start: Floats | None = None, tolerance: float = 1e-5) -> Floats:
    """Return (history, step) the probability of each step. ``overlaps``: (interval, step), from 0 to 1.

    ``counts``: (history, interval), how many failures of a history have this interval. ``start``: (1, step).
    It is found when a step changes less than ``tolerance`` of the failures of any history.
    """
    weights = counts / counts.sum(axis=1, keepdims=True)
    steps = overlaps.shape[1]
    found = np.full((len(counts), steps), 1.0 / steps) if start is None else np.repeat(start, len(counts), axis=0)
    found = (1 - _MIXED) * found + _MIXED / steps
    active = np.arange(len(counts))
    for _ in range(_MOST_STEPS):
        mass = found[active]
        first = _renewed(mass, overlaps, weights[active])
        second = _renewed(first, overlaps, weights[active])
        change, bend = first - mass, second - 2 * first + mass
        length = np.sqrt((change**2).sum(axis=1) / np.maximum((bend**2).sum(axis=1), _LEAST))[:, None]
        ahead = mass + 2 * length * change + length**2 * bend
        # Where the extrapolation leaves the simplex, the mass is about to vanish.
        ahead = np.where(ahead > 0, ahead, _VANISHING * second)
        found[active] = _renewed(np.where(length > 1, ahead, second), overlaps, weights[active])
        active = active[np.abs(change).sum(axis=1) >= tolerance]
        if not len(active):
            break
    return np.asarray(found)


def _renewed(mass: Floats, overlaps: Floats, weights: Floats) -> Floats:
    """Return the masses after a step of EM."""
    found = mass * ((weights / np.maximum(mass @ overlaps.T, _LEAST)) @ overlaps)
    return np.asarray(found / found.sum(axis=1, keepdims=True))
