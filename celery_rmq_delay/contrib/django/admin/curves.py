"""The chart of a recovery curve on a logarithmic time axis, with the retries of ladders. No I/O."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import log

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from ....durations import format_ms
from . import text
from .charts import HEIGHT, WIDTH, Chart, Key, Mark, Table, level

#: Possible marks of the time axis, in seconds.
_NICE = (
    0.001, 0.01, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120, 300, 600, 1_800, 3_600, 7_200, 21_600, 43_200, 86_400,
    259_200, 604_800, 2_592_000, 7_776_000, 31_536_000, 315_360_000,
)  # fmt: skip
_MOST_MARKS = 7
#: Per cent of the width that a mark needs.
_ROOM = 7
_LEVELS = (1.0, 0.75, 0.5, 0.25)
#: Shares that the curve's description names.
_DESCRIBED = (0.25, 0.5, 0.9)

_ROW = '<tr><th scope="row">{}</th><td>{}</td><td>{}</td><td>{}</td></tr>'
_SIGNS = {"today": "┆", "advised": "┃"}
_RETRY = '<line class="rmq-tier rmq-tier-{}" x1="{}" x2="{}" y1="0" y2="{}"><title>{}</title></line>'

#: Seconds, share, and the interval of the share if it is known.
Point = Sequence[float | None]


@dataclass(frozen=True)
class Retries:
    """The retries of a ladder: ``series`` is ``today`` or ``advised``."""

    series: str
    label: str
    delays_ms: Sequence[int]

    @property
    def moments(self) -> list[float]:
        """The time of each retry, in seconds after the first failure, if attempts take no time."""
        return [total / 1000 for total in accumulate(self.delays_ms)]


def curve_chart(name: str, points: Sequence[Point], ladders: Sequence[Retries]) -> Chart | None:
    """Return the chart of a curve with the retries of ladders; None if there is nothing to draw."""
    known = [point for point in points if point[0] and point[1] is not None]
    if not known:
        return None
    axis = _axis(known, [moment for ladder in ladders for moment in ladder.moments])
    line = format_html('<path class="rmq-curve" d="M{}"></path>', " ".join(_places(known, axis, 1)))
    return Chart(
        name="curve",
        caption="Failures that have ended",
        described=_described(name, known),
        drawing=_band(known, axis) + line + _retries(ladders, axis),
        lines=[(level(share, 1), text.share(share)) for share in _LEVELS],
        marks=[_mark(axis, seconds, text.rough(seconds)) for seconds in axis.marks],
        above=[
            (
                each.series,
                _apart(_mark(axis, at, format_ms(ms)) for at, ms in zip(each.moments, each.delays_ms, strict=True)),
            )
            for each in ladders
        ],
        axis="time since the first failure, logarithmic",
        keys=[
            Key("curve", "━", "share, with its 95 % interval"),
            *(Key(each.series, _SIGNS[each.series], each.label, text.ladder(each.delays_ms)) for each in ladders),
        ],
        table=Table(
            ("After", "Failures that have ended", "95 % interval", "Retry"),
            format_html_join("", _ROW, _rows(known, axis, ladders)),
        ),
        tall=True,
    )


@dataclass(frozen=True)
class _Axis:
    first: float
    last: float

    def x(self, seconds: float) -> float:
        """Return the x coordinate of a time in the view box."""
        within = min(max(seconds, self.first), self.last)
        return round(WIDTH * log(within / self.first) / log(self.last / self.first), 2)

    @property
    def marks(self) -> list[float]:
        """The times that label the axis."""
        found = [each for each in _NICE if self.first <= each <= self.last]
        step = -(-len(found) // _MOST_MARKS)
        return found[:: step or 1]


def _axis(points: Sequence[Point], moments: Sequence[float]) -> _Axis:
    """Return an axis that covers the rise of the curve and all retries."""
    shares = [point[1] or 0.0 for point in points]
    begins = next((index for index, share in enumerate(shares) if share > 0.001), 0)
    ends = shares.index(max(shares))
    times = [points[max(0, begins - 1)][0] or 1.0, points[ends][0] or 1.0, *(each for each in moments if each > 0)]
    return _Axis(min(times) / 1.3, max(times) * 1.3)


def _band(points: Sequence[Point], axis: _Axis) -> SafeString:
    known = [point for point in points if point[2] is not None and point[3] is not None]
    if not known:
        return SafeString("")
    outline = [*_places(known, axis, 3), *reversed(list(_places(known, axis, 2)))]
    return format_html('<path class="rmq-band" d="M{}Z"></path>', " ".join(outline))


def _places(points: Sequence[Point], axis: _Axis, column: int) -> Iterator[str]:
    """Yield the corners of a line through points, from one end of the axis to the other; those of one place once."""
    inside = (point for point in points if axis.first < (point[0] or 0) < axis.last)
    before = None
    for point in (_share_at(points, axis.first), *inside, _share_at(points, axis.last)):
        if point[1] is None:
            continue
        x, y = axis.x(point[0] or axis.first), level(min(1.0, max(0.0, point[column] or 0.0)), 1)
        if (x, y) != before:
            yield f"{x},{y}"
        before = (x, y)


def _retries(ladders: Sequence[Retries], axis: _Axis) -> SafeString:
    lines = (
        (each.series, axis.x(at), axis.x(at), HEIGHT, f"{each.label}: retry {number} after {text.rough(at)}")
        for each in ladders
        for number, at in enumerate(each.moments, 1)
    )
    return format_html_join("", _RETRY, lines)


def _mark(axis: _Axis, seconds: float, label: str) -> Mark:
    x = round(100 * axis.x(seconds) / WIDTH, 2)
    return Mark(x, label, "start" if x < _ROOM / 2 else "end" if x > 100 - _ROOM / 2 else "middle")


def _apart(marks: Iterable[Mark]) -> list[Mark]:
    """Return the marks that do not overlap; the table has all of them."""
    found: list[Mark] = []
    for mark in marks:
        if not found or mark.x - found[-1].x >= _ROOM:
            found.append(mark)
    return found


def _share_at(points: Sequence[Point], seconds: float) -> Point:
    """Return a time's place on the line through points; its values are None before the first and after the last."""
    after = bisect_left(points, seconds * (1 - 1e-9), key=lambda point: point[0] or 0.0)
    if after == len(points) or (after == 0 and (points[0][0] or 0.0) > seconds * (1 + 1e-9)):
        return (seconds, None, None, None)
    low, high = points[max(0, after - 1)], points[after]
    first, last = low[0] or 0.0, high[0] or 0.0
    part = min(1.0, log(seconds / first) / log(last / first)) if first < last else 1.0
    return (seconds, *(_between(low[column], high[column], part) for column in (1, 2, 3)))


def _between(low: float | None, high: float | None, part: float) -> float | None:
    return None if low is None or high is None else low + part * (high - low)


def _rows(points: Sequence[Point], axis: _Axis, ladders: Sequence[Retries]) -> Iterator[tuple[str, str, str, str]]:
    rows: dict[float, list[str]] = {seconds: [] for seconds in axis.marks}
    for ladder in ladders:
        for number, at in enumerate(ladder.moments, 1):
            rows.setdefault(at, []).append(f"{ladder.label}, {number}")
    for seconds, retries in sorted(rows.items()):
        _seconds, share, low, high = _share_at(points, seconds)
        yield text.rough(seconds), text.share(share), text.interval(low, high, text.share), "; ".join(retries)


def _described(name: str, points: Sequence[Point]) -> str:
    """Return the description of a curve for screen readers."""
    parts = []
    for share in _DESCRIBED:
        reached = next((point for point in points if (point[1] or 0) >= share), None)
        if reached is not None:
            parts.append(f"{text.share(share)} had ended after {text.rough(reached[0])}")
    most = text.share(max(point[1] or 0 for point in points))
    parts.append(f"{most} ended while observed")
    return f"Of the failures of {text.plain(name, 120)}, {', '.join(parts)}."
