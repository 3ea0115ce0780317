"""The chart of failures over time, with the incidents among them. No I/O."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, time, timedelta

from django.utils import timezone
from django.utils.html import format_html_join

from ...models import Row
from ...queries import grouped
from .drawing import HEIGHT, WIDTH, Bar, Chart, Key, Line, Mark, Table, high, level, rectangles, round_up
from .hours import local

#: Maximum number of bars; a bar covers a whole number of hours.
MOST_BARS = 180
_MOST_MARKS = 7
#: Per cent of the width from which a text that begins there would be cut off.
_LAST_START = 90

_ROW = '<tr><th scope="row"><time datetime="{}">{}</time></th><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>'


@dataclass
class Slot:
    """One or more consecutive hours."""

    start: datetime
    first_attempts: int = 0
    failures: int = 0
    recovered: int = 0
    exhausted: int = 0


@dataclass
class _Band:
    """Incidents that touch in the drawing; ``left`` and ``right`` are shares of its width."""

    left: float
    right: float
    started: datetime
    ended: datetime


def slots(hours: Sequence[Row]) -> tuple[list[Slot], timedelta]:
    """Return slots of equal length from the first hour to the last, empty ones included, and that length."""
    if not hours:
        return [], timedelta(hours=1)
    first, last = hours[0].hour, hours[-1].hour
    count = int((last - first) / timedelta(hours=1)) + 1
    each = -(-count // MOST_BARS)
    length = timedelta(hours=each)
    found = [Slot(first + number * length) for number in range(-(-count // each))]
    for hour in hours:
        slot = found[int((hour.hour - first) / length)]
        for name in ("first_attempts", "failures", "recovered", "exhausted"):
            setattr(slot, name, getattr(slot, name) + getattr(hour, name))
    return found, length


def bursts_chart(hours: Sequence[Row], incidents: Sequence[Row]) -> Chart | None:
    """Return the chart of failures over time, with incidents behind the bars; None if there are no hours."""
    found, length = slots(hours)
    if not found:
        return None
    top = round_up(max(slot.failures for slot in found))
    levels = [top] if top == 1 else [top, -(-top // 2)]
    failures = grouped(sum(slot.failures for slot in found))
    return Chart(
        name="bursts",
        caption="Failed attempts",
        described=f"{failures} failed attempts and {len(incidents)} incidents; the tables below have the figures",
        drawing=rectangles([*_incidents(incidents, found, length), *_bars(found, top)]),
        lines=[Line(level(value, top), str(value)) for value in levels],
        marks=list(_marks(found, length)),
        keys=(
            Key("parked", "■", "failed attempts", failures),
            Key("incident", "▒", "incidents", str(len(incidents))),
        ),
        table=Table(
            ("From", "First attempts", "Failed attempts", "Recovered", "Exhausted"),
            format_html_join("", _ROW, _rows(found)),
        ),
    )


def _bars(found: Sequence[Slot], top: int) -> Iterator[Bar]:
    step = WIDTH / len(found)
    for index, slot in enumerate(found):
        tall = high(slot.failures, top)
        title = f"{local(slot.start):%Y-%m-%d %H:%M}: {slot.failures}"
        x = round(index * step + step * 0.1, 2)
        yield Bar(x, round(HEIGHT - tall, 2), round(step * 0.8, 2), round(tall, 2), "parked", title)


def _incidents(incidents: Sequence[Row], found: Sequence[Slot], length: timedelta) -> Iterator[Bar]:
    """Yield the incidents behind the bars, each at least as wide as a bar; those that touch are merged."""
    first, whole = found[0].start, len(found) * length
    bands: list[_Band] = []
    for each in sorted(incidents, key=lambda each: each.started_at):
        begin = max(0.0, (each.started_at - first) / whole)
        end = min(1.0, (each.ended_at - first) / whole)
        if end < 0 or begin > 1:
            continue
        width = max(end - begin, 1 / len(found))
        x = min(begin, 1 - width)
        if bands and x <= bands[-1].right:
            last = bands[-1]
            last.right, last.ended = max(last.right, x + width), max(last.ended, each.ended_at)
        else:
            bands.append(_Band(x, x + width, each.started_at, each.ended_at))
    for band in bands:
        title = f"{local(band.started):%Y-%m-%d %H:%M} \N{EN DASH} {local(band.ended):%Y-%m-%d %H:%M}"
        width = round((band.right - band.left) * WIDTH, 2)
        yield Bar(round(band.left * WIDTH, 2), 0, width, HEIGHT, "incident", title)


def _marks(found: Sequence[Slot], length: timedelta) -> Iterator[Mark]:
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


def _rows(found: Sequence[Slot]) -> Iterator[tuple[object, ...]]:
    for slot in found:
        start = f"{local(slot.start):%Y-%m-%d %H:%M}"
        yield slot.start.isoformat(), start, slot.first_attempts, slot.failures, slot.recovered, slot.exhausted
