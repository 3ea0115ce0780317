"""Advice per exception in words, and the code for it. No I/O."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from keyword import iskeyword
from math import ceil, floor

from django.utils.formats import number_format
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from ..models import ExceptionAdvice
from ..queries import grouped
from . import text
from .ladders import failures, literal

_GIVE_UP_ON = SafeString("<code>give_up_on</code>")


@dataclass(frozen=True)
class ErrorAdvice:
    """What the failures of a task with an exception show, and what to do."""

    error: SafeString
    task: SafeString
    queue: SafeString
    shows: str
    #: The 95 % interval of the share that recovers; empty if it is not known.
    interval: str
    to_do: SafeString


def error_advice(row: ExceptionAdvice) -> ErrorAdvice:
    """Return an advice as the page shows it."""
    described = _give_up if _gives_up(row) else _fewer_tiers
    names = text.dotted(row.exception_type, 120), text.dotted(row.task, 120), text.hostile(row.queue, 120)
    return ErrorAdvice(*names, *described(row))


def give_up_snippet(rows: Iterable[ExceptionAdvice]) -> str:
    """Return the code with which tasks give up on exceptions; empty if there is nothing to change."""
    found: dict[str, dict[str, None]] = {}
    for row in rows:
        if _gives_up(row) and _is_class(row.exception_type):
            found.setdefault(row.task, {})[row.exception_type] = None
    lines = []
    for task, names in found.items():
        lines += [f"# the task {literal(task)}", f"@app.task(base=RetryableTask, give_up_on=({', '.join(names)},))"]
    return "\n".join(lines)


def _gives_up(row: ExceptionAdvice) -> bool:
    return row.kind == ExceptionAdvice.Kind.GIVE_UP


def _is_class(name: str) -> bool:
    """Return whether code can name a class so; it cannot if the class is defined in a function."""
    return name.isascii() and all(part.isidentifier() and not iskeyword(part) for part in name.split("."))


def _give_up(row: ExceptionAdvice) -> tuple[str, str, SafeString]:
    most, retries = row.share_high, row.retries or 0
    saved = ngettext("%(count)s retry", "%(count)s retries", retries) % {"count": grouped(retries)}
    words = {"failures": failures(row.failures), "time": text.rough(row.longest_s)}
    return (
        _("never recovered in %(failures)s; the last attempt came %(time)s after the first") % words,
        "" if most is None else _("95 %% interval: at most %(share)s recover") % {"share": _share(ceil(1_000 * most))},
        format_html(
            _(
                "Use a longer ladder for a while to see whether later attempts succeed. If not, add it to {}: that "
                "would have saved {} and {} of worker time."
            ),
            _GIVE_UP_ON,
            saved,
            text.rough((row.wasted_ms or 0) / 1000),
        ),
    )


def _fewer_tiers(row: ExceptionAdvice) -> tuple[str, str, SafeString]:
    least, needless = row.share_low, row.needless_ms
    words = {"time": text.rough(row.longest_s), "failures": failures(row.failures)}
    return (
        _("always recovered within %(time)s, in %(failures)s") % words,
        ""
        if least is None
        else _("95 %% interval: at least %(share)s recover") % {"share": _share(floor(1_000 * least))},
        format_html(
            ngettext("It does not need the tier {}.", "It does not need the tiers {}.", len(needless)),
            text.ladder(needless),
        ),
    )


def _share(tenths: int) -> str:
    """Return tenths of a per cent as text."""
    return f"{number_format(tenths / 10, decimal_pos=1)}\N{NO-BREAK SPACE}%"
