"""Values as text and HTML. Everything that came with a message is hostile text: escaped, shortened, isolated."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta

from django.utils import timezone
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from ....durations import format_ms
from ..models import Operation, OperationItem, TaskState
from ..queries import plural
from ..services.payloads import ON_PAGE as ON_PAGE
from ..services.payloads import plain as plain

#: Maximum characters of a text in a list, and in the tooltip of a text that a list cuts.
IN_LIST = 160
IN_TITLE = 600

EMPTY = "-"

_BADGE = (
    '<span class="rmq-badge rmq-{}"><svg class="rmq-icon" viewBox="0 0 12 12" width="12" height="12" '
    'aria-hidden="true"><path fill-rule="evenodd" d="{}"></path></svg> {}</span>'
)
_DOTS = re.compile(r"(?<=\.)(?=.)")

#: Outlines of the icons, in a square of 12; drawn, because fonts lack these signs.
_SHAPES = {
    "bars": "M2 1h3v10H2zM7 1h3v10H7z",
    "play": "M3 1l8 5-8 5z",
    "tick": "M1 6.5L2.5 5 5 7.5 9.5 2 11 3.5 5 10.5z",
    "cross": "M2.5 1L6 4.5 9.5 1 11 2.5 7.5 6 11 9.5 9.5 11 6 7.5 2.5 11 1 9.5 4.5 6 1 2.5z",
    "again": "M6 1a5 5 0 0 1 4.3 2.5L12 2.5V7H7.5l1.4-1.7A3 3 0 1 0 8.6 8h2A5 5 0 1 1 6 1z",
    "back": "M5 1v3h2a4 4 0 0 1 0 8H3v-2h4a2 2 0 0 0 0-4H5v3L0 5z",
    "minus": "M6 0a6 6 0 1 0 0 12A6 6 0 0 0 6 0zM2.5 5h7v2h-7z",
    "question": "M3 4a3 3 0 1 1 4 2.8V8.5H5V5.5h1A1.2 1.2 0 1 0 4.8 4zM5 9.8h2v2H5z",
    "warning": "M6 0l6 11.5H0zM5.2 4v4h1.6V4zM5.2 8.8v1.5h1.6V8.8z",
    "skip": "M1 1l5 5-5 5zM6 1l5 5-5 5z",
}
#: The icons and tones of the states of tasks and operations, and of the outcomes of an operation's tasks.
_ICONS = {
    "PENDING": ("bars", "waiting"),
    "PARKED": ("bars", "waiting"),
    "RUNNING": ("play", "waiting"),
    "CANARY": ("play", "waiting"),
    "REQUEUING": ("again", "waiting"),
    "CANCELLING": ("minus", "waiting"),
    "RECOVERED": ("tick", "good"),
    "REQUEUED": ("back", "good"),
    "DONE": ("tick", "good"),
    "OK": ("tick", "good"),
    "EXHAUSTED": ("cross", "bad"),
    "FAILED": ("cross", "bad"),
    "UNTRIED": ("cross", "bad"),
    "UNKNOWN": ("question", "bad"),
    "DISCARDED": ("minus", "quiet"),
    "CANCELLED": ("minus", "quiet"),
    "SKIPPED": ("skip", "quiet"),
}
#: The reasons why a task's retries ended, as text.
_REASONS = {
    "retries_used": "Retries used up",
    "gave_up": "Gave up on this error",
    "crashed": "Crashed its worker",
    "delivery_limit": "Crashed its worker (delivery limit)",
    "expired": "Expired",
    "maxlen": "Its queue was full",
    "rejected": "Rejected",
    "undecodable": "Cannot be decoded",
    "unknown_task": "The task is not registered on any worker",
}


def hostile(text: object, limit: int = IN_LIST) -> SafeString:
    """Return a text that came with a message, isolated: its direction does not affect the text around it."""
    shown = plain(text, limit)
    return format_html("<bdi>{}</bdi>", shown) if shown else SafeString(EMPTY)


def clamped(text: object) -> SafeString:
    """Return a text that came with a message in at most two lines of a column; its tooltip has more of it."""
    if not plain(text):
        return SafeString(EMPTY)
    return format_html('<bdi class="rmq-clamp" title="{}">{}</bdi>', plain(text, IN_TITLE), plain(text, IN_LIST))


def in_line(text: object, limit: int) -> SafeString:
    """Return an id or a place in code on one line, cut with an ellipsis if it is too long for the column."""
    shown = plain(text, limit)
    return format_html('<bdi class="rmq-id" title="{}">{}</bdi>', shown, shown or EMPTY)


def dotted(name: object, limit: int) -> SafeString:
    """Return a dotted name that came with a message, like `hostile`; a line may break after each of its dots."""
    parts = ((part,) for part in _DOTS.split(plain(name, limit) or EMPTY))
    return format_html("<bdi>{}</bdi>", format_html_join(SafeString("<wbr>"), "{}", parts))


def badge(label: object, icon: str, tone: str) -> SafeString:
    """Return a text with an icon; the tone (good, bad, waiting, quiet) is the colour, which alone has no meaning."""
    return format_html(_BADGE, tone, _SHAPES[icon], label)


def state_badge(state: str) -> SafeString:
    """Return a task's state as text and icon."""
    if state not in TaskState.values:
        return badge(plain(state, 20), "question", "quiet")
    return badge(TaskState(state).label, *_ICONS[state])


def ran_badge(ran_at: datetime | None) -> SafeString:
    """Return the warning that a task ran after it was discarded, or an empty text."""
    return badge("ran after it was discarded", "warning", "bad") if ran_at else SafeString("")


def outcome_badge(outcome: str) -> SafeString:
    """Return the outcome of one task of an operation as text and icon."""
    return badge(OperationItem.Outcome(outcome).label, *_ICONS[outcome])


def operation_badge(state: str) -> SafeString:
    """Return the state of an operation as text and icon."""
    return badge(Operation.State(state).label, *_ICONS[state])


def reason(word: str) -> str:
    """Return why a task was exhausted, as text; an unknown reason is returned as it is."""
    return _REASONS.get(word) or plain(word, 40) or EMPTY


def local(moment: datetime) -> datetime:
    """Return a time in the time zone of the pages."""
    return timezone.localtime(moment) if timezone.is_aware(moment) else moment


def absolute(moment: datetime) -> str:
    """Return a time in the time zone of the pages, to the second."""
    return f"{local(moment):%Y-%m-%d %H:%M:%S %Z}".strip()


def moment(at: datetime | None, css: str = "", now: datetime | None = None) -> SafeString:
    """Return a relative time ("in 3 min"), with the exact time in its tooltip."""
    if at is None:
        return SafeString(EMPTY)
    classes = format_html(' class="{}"', css) if css else ""
    away = relative(at - (now or timezone.now()))
    return format_html('<time datetime="{}" title="{}"{}>{}</time>', at.isoformat(), absolute(at), classes, away)


def times(*labelled: tuple[str, datetime | None]) -> list[tuple[str, SafeString]]:
    """Return labels with their times, both relative and exact; those that are not None."""
    return [(label, format_html("{} ({})", moment(at), absolute(at))) for label, at in labelled if at is not None]


def relative(away: timedelta) -> str:
    """Return a difference from now in its largest unit: "in 3 min", "2 h ago"."""
    seconds = round(away.total_seconds())
    if abs(seconds) < 1:
        return "now"
    text = duration(abs(seconds) * 1000)
    return f"in {text}" if seconds > 0 else f"{text} ago"


def duration(milliseconds: int | None) -> str:
    """Return a duration in its largest unit: "850 ms", "12 s", "3 min", "2 h", "5 days"."""
    if milliseconds is None:
        return EMPTY
    if abs(milliseconds) < 1000:
        return f"{milliseconds} ms"
    seconds = round(milliseconds / 1000)
    if seconds < 120:
        return f"{seconds} s"
    if seconds < 7_200:
        return f"{seconds // 60} min"
    if seconds < 172_800:
        return f"{seconds // 3_600} h"
    days = seconds // 86_400
    return f"{days} {plural(days, 'day', 'days')}"


def delay(milliseconds: int | None) -> str:
    """Return a delay exactly, in the units of the settings: "90 s" is "1 min 30 s"."""
    if milliseconds is None:
        return EMPTY
    rest, parts = milliseconds, []
    for unit, size in (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1000), ("ms", 1)):
        count, rest = divmod(rest, size)
        if count:
            parts.append(f"{count} {unit}")
    return " ".join(parts) or "0 s"


def rough(seconds: float | None) -> str:
    """Return a measured time in the units of the settings, rounded: "4.2s", "1m23s", "3h20m"."""
    if seconds is None:
        return EMPTY
    step = next((step for below, step in ((1, 0.001), (10, 0.1), (3_600, 1), (86_400, 60)) if seconds < below), 3_600)
    return format_ms(max(1, round(round(seconds / step) * step * 1000)))


def rough_ms(milliseconds: float) -> str:
    """Return a measured time in milliseconds as `rough` does."""
    return rough(milliseconds / 1000)


def share(part: float | None) -> str:
    """Return a share in per cent; only 0 is shown as 0 %, and only 1 as 100 %."""
    if part is None:
        return EMPTY
    per_cent = round(100 * part)
    if part > 0 and per_cent == 0:
        return "<\N{NO-BREAK SPACE}1\N{NO-BREAK SPACE}%"
    if part < 1 and per_cent == 100:
        return ">\N{NO-BREAK SPACE}99\N{NO-BREAK SPACE}%"
    return f"{per_cent}\N{NO-BREAK SPACE}%"


def ladder(delays_ms: Iterable[int]) -> str:
    """Return delays in the notation of the settings: "30s, 5m, 1h"."""
    return ", ".join(map(format_ms, delays_ms)) or EMPTY


def interval(low: float | None, high: float | None, form: Callable[[float | None], str]) -> str:
    """Return both ends of an interval in the format of its figure; empty if it is not known."""
    return "" if low is None or high is None else f"{form(low)}\N{EN DASH}{form(high)}"
