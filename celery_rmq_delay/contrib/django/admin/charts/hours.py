"""The chart of the last 24 hours: parked and exhausted tasks by hour. No I/O."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, tzinfo
from functools import lru_cache

from django.utils import timezone
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from ...queries import HOURS, Hour, grouped
from .drawing import HEIGHT, WIDTH, Bar, Chart, Key, Line, Mark, Table, high, level, rectangles, round_up

#: Hours between two labels of the time axis.
MARKED = 6

_ROW = '<tr><th scope="row"><time datetime="{}">{}</time></th><td>{}</td><td>{}</td><td>{}</td></tr>'

_SMALL = (
    '<svg class="rmq-small-chart" viewBox="0 0 {} {}" role="img" aria-label="{}" preserveAspectRatio="none">'
    '<line class="rmq-base" x1="0" y1="{}" x2="{}" y2="{}"></line>{}</svg>'
)


def chart(hours: Sequence[Hour]) -> Chart:
    """Return the chart of some hours: two bars each, on one scale."""
    top = round_up(max((max(hour.parked, hour.exhausted) for hour in hours), default=0))
    levels = [top] if top == 1 else [top, -(-top // 2)]
    step = 100 / max(1, len(hours))
    rows = (
        (h.start.isoformat(), f"{local(h.start):%Y-%m-%d %H:%M}", *map(grouped, (h.parked, h.exhausted, h.recovered)))
        for h in hours
    )
    return Chart(
        name="hours",
        caption="The last 24 hours",
        described="Parked and exhausted tasks by hour; the table below has the figures",
        drawing=rectangles(bars(hours, top)),
        lines=[Line(level(value, top), grouped(value)) for value in levels],
        marks=[
            Mark(round(index * step, 2), f"{local(hours[index].start):%H:%M}", "start")
            for index in range(0, len(hours), MARKED)
        ],
        keys=(
            Key("parked", "■", "parked", grouped(sum(hour.parked for hour in hours))),
            Key("exhausted", "▲", "exhausted", grouped(sum(hour.exhausted for hour in hours))),
        ),
        table=Table(("Hour", "Parked", "Exhausted", "Recovered"), format_html_join("", _ROW, rows)),
    )


def bars(hours: Sequence[Hour], top: int) -> list[Bar]:
    """Return the bars of some hours on a scale that ends at ``top``."""
    step = WIDTH / max(1, len(hours))
    found = []
    for index, hour in enumerate(hours):
        title = f"{local(hour.start):%H:%M}: {grouped(hour.parked)} / {grouped(hour.exhausted)}"
        for place, series in enumerate(("parked", "exhausted")):
            tall = high(getattr(hour, series), top)
            x = index * step + step * (0.12 + 0.38 * place)
            found.append(
                Bar(round(x, 2), round(HEIGHT - tall, 2), round(step * 0.36, 2), round(tall, 2), series, title)
            )
    return found


def small_chart(hours: Sequence[Hour]) -> SafeString:
    """Return the exhausted tasks of some hours as small bars on a scale of their own, with their text."""
    top = max((hour.exhausted for hour in hours), default=0)
    step = WIDTH / max(1, len(hours))
    drawn = []
    for index, hour in enumerate(hours):
        tall = high(hour.exhausted, top)
        title = f"{_clock(hour.start, timezone.get_current_timezone())}: {hour.exhausted}"
        drawn.append(Bar(round(index * step, 2), HEIGHT - tall, round(step * 0.8, 2), tall, "exhausted", title))
    counts = ", ".join(str(hour.exhausted) for hour in hours)
    label = f"Exhausted in each of the last 24 hours, the present hour last: {counts}"
    return format_html(_SMALL, WIDTH, HEIGHT, label, HEIGHT, WIDTH, HEIGHT, rectangles(drawn))


@lru_cache(maxsize=HOURS)
def _clock(moment: datetime, zone: tzinfo) -> str:
    """Return the time of day; all groups of a page have the same hours."""
    return f"{moment.astimezone(zone):%H:%M}"


def local(moment: datetime) -> datetime:
    """Return a time in the time zone of the pages."""
    return timezone.localtime(moment) if timezone.is_aware(moment) else moment
