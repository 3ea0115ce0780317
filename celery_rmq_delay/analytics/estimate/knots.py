"""The knots of a recovery curve: the times at which the history shows how many failures have ended. Pure NumPy.

Between two knots, failures are taken to end evenly over the logarithm of time; before the first one, evenly over time.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .grid import Grid
from .intervals import Floats, Intervals, Ints

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
    """``cells``: the grid cell of each knot, ascending, 0 first. ``seen``: the cells in which attempts count as seen;
    ``knot_of``: the knot of each of them.

    ``sound``: those of ``seen`` with enough attempts at about the same time to conclude that failures have ended.

    ``place``: the coordinate of every grid cell, in which failures end evenly between two knots.
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
        return cls(np.unique(cells), _joined(seen), knot_of, _joined(sound), _places(cells, grid))

    @property
    def horizon(self) -> int:
        """The last cell about which the history shows anything."""
        return int(self.cells[-1])

    def overlaps(self, low: Ints, high: Ints) -> Floats:
        """Return (interval, step) the part of each step between knots that is in ``(low, high]``.

        The last step is everything after the horizon; an end after it counts as not observed.
        """
        at, until = self.place[low], self.place[np.minimum(high, self.horizon)]
        begin, end = self.place[self.cells[:-1]], self.place[self.cells[1:]]
        inside = np.minimum(until[:, None], end) - np.maximum(at[:, None], begin)
        return np.column_stack([np.maximum(inside, 0.0) / (end - begin), high > self.horizon])


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


def _places(cells: list[int], grid: Grid) -> Floats:
    first = cells[1] if len(cells) > 1 else 1
    at = np.arange(grid.points + 1)
    return np.where(at < first, grid.times / grid.times[first], 1.0 + at - first)
