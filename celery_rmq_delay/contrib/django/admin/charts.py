"""SVG charts, drawn on the server with attributes only: no style and no script. No I/O.

The drawing is stretched to its box, so it has no text: labels stand around it, placed in per cent of the width.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, time, timedelta, tzinfo
from functools import lru_cache
from math import log10
from typing import NamedTuple

from django.utils import timezone
from django.utils.html import escape, format_html, format_html_join
from django.utils.safestring import SafeString

from ..models import Row
from ..queries import HOURS, Hour, grouped
from .text import local

#: The view box; the page stretches it to its width.
WIDTH, HEIGHT, TOP = 720, 100, 4
#: Hours between two labels of the chart of a day.
MARKED = 6
#: Maximum number of bars of the failures over time; each covers a whole number of hours.
MOST_BARS = 180
_MOST_MARKS = 7
#: Per cent of the width from which a text that begins there would be cut off.
_LAST_START = 90
_COUNTED = ("first_attempts", "failures", "recovered", "exhausted")

_RECTANGLE = '<rect class="rmq-bar rmq-bar-{}" x="{}" y="{}" width="{}" height="{}"><title>{}</title></rect>'
_ROW = '<tr><th scope="row"><time datetime="{}">{}</time></th>{}</tr>'
_SMALL = (
    '<svg class="rmq-small-chart" viewBox="0 0 {} {}" role="img" aria-label="{}" preserveAspectRatio="none">'
    '<line class="rmq-base" x1="0" y1="{}" x2="{}" y2="{}"></line>{}</svg>'
)


class Bar(NamedTuple):
    """One bar, in the units of the view box; ``series`` is its class, ``title`` its tooltip."""

    series: str
    x: float
    y: float
    width: float
    height: float
    title: str


class Mark(NamedTuple):
    """A text above or below the drawing, ``x`` per cent of the width from its start."""

    x: float
    label: str
    anchor: str = "middle"


class Key(NamedTuple):
    """The legend of a series, with its sum if it has one."""

    series: str
    sign: str
    label: str
    value: str = ""


class Table(NamedTuple):
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
    #: The y coordinates of the lines of the scale, and their labels.
    lines: Sequence[tuple[float, str]]
    marks: Sequence[Mark]
    table: Table
    keys: Sequence[Key]
    #: Rows of marks above the drawing, each with its series.
    above: Sequence[tuple[str, Sequence[Mark]]] = ()
    #: The title of the marks below the drawing.
    axis: str = ""
    tall: bool = False
    width: int = field(default=WIDTH, init=False)
    height: int = field(default=HEIGHT, init=False)


def level(value: float, top: float) -> float:
    """Return the y coordinate of a value in the view box."""
    return round(HEIGHT - (HEIGHT - TOP) * value / top, 2)


def round_up(number: int) -> int:
    """Return the next number of the form 1, 2 or 5 times a power of ten; at least 1."""
    if number <= 1:
        return 1
    power: int = 10 ** int(log10(number))
    return next(step * power for step in (1, 2, 5, 10) if step * power >= number)


def bars(
    values: Mapping[str, Sequence[int]], titles: Sequence[str], top: int, *, left: float, width: float
) -> Iterator[Bar]:
    """Yield the bars of each series; ``left`` and ``width`` are shares of the room that each title has."""
    step = WIDTH / max(1, len(titles))
    for index, title in enumerate(titles):
        for place, (series, counts) in enumerate(values.items()):
            # At least 2, so that one among thousands is visible.
            tall = round(max(2.0, (HEIGHT - TOP) * counts[index] / top), 2) if counts[index] else 0.0
            x = step * (index + left + place * (width + 0.02))
            yield Bar(series, round(x, 2), round(HEIGHT - tall, 2), round(step * width, 2), tall, title)


def _rectangles(found: Iterable[Bar]) -> SafeString:
    """Return the bars that have a height; joined here, because a template takes ten times as long."""
    return SafeString("".join(_RECTANGLE.format(*bar[:-1], escape(bar.title)) for bar in found if bar.height))


def _scale(top: int) -> list[tuple[float, str]]:
    return [(level(value, top), grouped(value)) for value in ([top] if top == 1 else [top, -(-top // 2)])]


def _table(head: Sequence[str], rows: Iterable[tuple[datetime, Iterable[int]]]) -> Table:
    cells = (
        (at.isoformat(), _minute(at), format_html_join("", "<td>{}</td>", ((grouped(each),) for each in counts)))
        for at, counts in rows
    )
    return Table(head, format_html_join("", _ROW, cells))


def _minute(moment: datetime) -> str:
    return f"{local(moment):%Y-%m-%d %H:%M}"


# -- the last 24 hours ---------------------------------------------------------------------------------------------


def chart(hours: Sequence[Hour]) -> Chart:
    """Return the chart of some hours: parked and exhausted tasks on one scale."""
    values = {"parked": [hour.parked for hour in hours], "exhausted": [hour.exhausted for hour in hours]}
    top = round_up(max((*values["parked"], *values["exhausted"]), default=0))
    titles = [f"{local(each.start):%H:%M}: {grouped(each.parked)} / {grouped(each.exhausted)}" for each in hours]
    step = 100 / max(1, len(hours))
    return Chart(
        name="hours",
        caption="The last 24 hours",
        described="Parked and exhausted tasks by hour; the table below has the figures",
        drawing=_rectangles(bars(values, titles, top, left=0.12, width=0.36)),
        lines=_scale(top),
        marks=[
            Mark(round(index * step, 2), f"{local(hours[index].start):%H:%M}", "start")
            for index in range(0, len(hours), MARKED)
        ],
        keys=[
            Key(series, sign, series, grouped(sum(values[series])))
            for series, sign in (("parked", "■"), ("exhausted", "▲"))
        ],
        table=_table(
            ("Hour", "Parked", "Exhausted", "Recovered"),
            ((hour.start, (hour.parked, hour.exhausted, hour.recovered)) for hour in hours),
        ),
    )


def small_chart(hours: Sequence[Hour]) -> SafeString:
    """Return the exhausted tasks of some hours as small bars on a scale of their own, with their text."""
    counts = [hour.exhausted for hour in hours]
    zone = timezone.get_current_timezone()
    titles = [f"{_clock(hour.start, zone)}: {hour.exhausted}" for hour in hours]
    drawn = _rectangles(bars({"exhausted": counts}, titles, max(counts, default=0), left=0, width=0.8))
    label = f"Exhausted in each of the last 24 hours, the present hour last: {', '.join(map(str, counts))}"
    return format_html(_SMALL, WIDTH, HEIGHT, label, HEIGHT, WIDTH, HEIGHT, drawn)


@lru_cache(maxsize=HOURS)
def _clock(moment: datetime, zone: tzinfo) -> str:
    """Return the time of day; all groups of a page have the same hours."""
    return f"{moment.astimezone(zone):%H:%M}"


# -- failures over time, with the incidents among them -------------------------------------------------------------


def slots(hours: Sequence[Row]) -> tuple[list[Row], timedelta]:
    """Return the sums of slots of equal length from the first hour to the last, empty ones included, and that length.

    ``start`` is the beginning of a slot.
    """
    if not hours:
        return [], timedelta(hours=1)
    first = hours[0].hour
    count = int((hours[-1].hour - first) / timedelta(hours=1)) + 1
    each = -(-count // MOST_BARS)
    length = timedelta(hours=each)
    found = [Row(start=first + n * length, **dict.fromkeys(_COUNTED, 0)) for n in range(-(-count // each))]
    for hour in hours:
        sums = vars(found[int((hour.hour - first) / length)])
        for name in _COUNTED:
            sums[name] += getattr(hour, name)
    return found, length


def bursts_chart(hours: Sequence[Row], incidents: Sequence[Row]) -> Chart | None:
    """Return the chart of failures over time, with incidents behind the bars; None if there are no hours."""
    found, length = slots(hours)
    if not found:
        return None
    counts = [slot.failures for slot in found]
    titles = [f"{_minute(slot.start)}: {slot.failures}" for slot in found]
    top, failures = round_up(max(counts)), grouped(sum(counts))
    drawn = bars({"parked": counts}, titles, top, left=0.1, width=0.8)
    return Chart(
        name="bursts",
        caption="Failed attempts",
        described=f"{failures} failed attempts and {len(incidents)} incidents; the tables below have the figures",
        drawing=_rectangles([*_incidents(incidents, found, length), *drawn]),
        lines=_scale(top),
        marks=list(_marks(found, length)),
        keys=(
            Key("parked", "■", "failed attempts", failures),
            Key("incident", "▒", "incidents", str(len(incidents))),
        ),
        table=_table(
            ("From", "First attempts", "Failed attempts", "Recovered", "Exhausted"),
            ((slot.start, [getattr(slot, name) for name in _COUNTED]) for slot in found),
        ),
    )


def _incidents(incidents: Sequence[Row], found: Sequence[Row], length: timedelta) -> Iterator[Bar]:
    """Yield the incidents behind the bars, each at least as wide as a bar; those that touch are merged."""
    first, whole = found[0].start, len(found) * length
    bands: list[tuple[float, float, datetime, datetime]] = []
    for each in sorted(incidents, key=lambda each: each.started_at):
        begin = max(0.0, (each.started_at - first) / whole)
        end = min(1.0, (each.ended_at - first) / whole)
        if end < 0 or begin > 1:
            continue
        width = max(end - begin, 1 / len(found))
        left = min(begin, 1 - width)
        right, started, ended = left + width, each.started_at, each.ended_at
        if bands and left <= bands[-1][1]:
            left, last_right, started, last_ended = bands.pop()
            right, ended = max(last_right, right), max(last_ended, ended)
        bands.append((left, right, started, ended))
    for left, right, started, ended in bands:
        title = f"{_minute(started)} \N{EN DASH} {_minute(ended)}"
        yield Bar("incident", round(left * WIDTH, 2), 0, round((right - left) * WIDTH, 2), HEIGHT, title)


def _marks(found: Sequence[Row], length: timedelta) -> Iterator[Mark]:
    """Yield the labels of the time axis: hours, or days at midnight."""
    first, whole = found[0].start, len(found) * length
    if whole > timedelta(days=2):
        moments, form = list(_midnights(first, first + whole)), "%m-%d"
    else:
        moments, form = [slot.start for slot in found], "%H:%M"
    for at in moments[:: -(-len(moments) // _MOST_MARKS)]:
        x = round(100 * ((at - first) / whole), 2)
        yield Mark(x, f"{local(at):{form}}", "start" if x < _LAST_START else "end")


def _midnights(first: datetime, end: datetime) -> Iterator[datetime]:
    """Yield the midnights in the time zone of the page."""
    day = local(first).date()
    while (at := timezone.make_aware(datetime.combine(day, time()))) < end:
        if at >= first:
            yield at
        day += timedelta(days=1)
