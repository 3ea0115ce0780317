"""SVG charts, drawn on the server with attributes only: no style and no script. No I/O.

The drawing is stretched to its box, so it has no text: labels stand around it, placed in per cent of the width.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import log10

from django.utils.html import escape
from django.utils.safestring import SafeString

#: The view box; the page stretches it to its width.
WIDTH = 720
HEIGHT = 100
TOP = 4

_RECTANGLE = '<rect class="rmq-bar rmq-bar-{}" x="{}" y="{}" width="{}" height="{}"><title>{}</title></rect>'


@dataclass(frozen=True)
class Bar:
    """One bar, in the units of the view box; ``series`` is its class, ``title`` its tooltip."""

    x: float
    y: float
    width: float
    height: float
    series: str
    title: str


@dataclass(frozen=True)
class Line:
    """One line of the scale, and its label."""

    y: float
    value: str


@dataclass(frozen=True)
class Mark:
    """A text above or below the drawing, ``x`` per cent of the width from its start."""

    x: float
    label: str
    anchor: str = "middle"


@dataclass(frozen=True)
class Key:
    """The legend of a series, with its sum if it has one."""

    series: str
    sign: str
    label: str
    value: str = ""


@dataclass(frozen=True)
class Table:
    """The figures of a chart."""

    head: Sequence[str]
    rows: SafeString


@dataclass(frozen=True)
class Chart:
    """A chart for the template; ``name`` is part of its ids, ``described`` its text for screen readers."""

    name: str
    caption: str
    described: str
    drawing: SafeString
    lines: Sequence[Line]
    marks: Sequence[Mark]
    table: Table
    keys: Sequence[Key] = ()
    #: Rows of marks above the drawing, each with its series.
    above: Sequence[tuple[str, Sequence[Mark]]] = ()
    #: The title of the marks below the drawing.
    axis: str = ""
    tall: bool = False
    width: int = field(default=WIDTH, init=False)
    height: int = field(default=HEIGHT, init=False)


def rectangles(bars: Iterable[Bar]) -> SafeString:
    """Return the bars that have a height; joined here, because a template takes ten times as long."""
    drawn = (
        _RECTANGLE.format(bar.series, bar.x, bar.y, bar.width, bar.height, escape(bar.title))
        for bar in bars
        if bar.height
    )
    return SafeString("".join(drawn))


def high(value: float, top: float) -> float:
    """Return the height of a bar; at least 2, so that one among thousands is visible."""
    return max(2.0, (HEIGHT - TOP) * value / top) if value else 0.0


def level(value: float, top: float) -> float:
    """Return the y coordinate of a value in the view box."""
    return round(HEIGHT - (HEIGHT - TOP) * value / top, 2)


def round_up(number: int) -> int:
    """Return the next number of the form 1, 2 or 5 times a power of ten; at least 1."""
    if number <= 1:
        return 1
    power: int = 10 ** int(log10(number))
    return next(step * power for step in (1, 2, 5, 10) if step * power >= number)
