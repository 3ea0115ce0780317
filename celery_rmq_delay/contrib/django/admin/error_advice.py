"""Advice per exception in words, and the code for it. No I/O."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from keyword import iskeyword
from math import ceil, floor

from django.utils.formats import number_format
from django.utils.html import format_html
from django.utils.safestring import SafeString

from ....history.tables import GIVE_UP
from ..models import Row
from ..queries import grouped, plural
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


def error_advice(row: Row) -> ErrorAdvice:
    """Return an advice as the page shows it."""
    described = _give_up if _gives_up(row) else _fewer_tiers
    names = text.dotted(row.exception_type, 120), text.dotted(row.task, 120), text.hostile(row.queue, 120)
    return ErrorAdvice(*names, *described(row))


def give_up_snippet(rows: Iterable[Row]) -> str:
    """Return the code with which tasks give up on exceptions; empty if there is nothing to change."""
    found: dict[str, dict[str, None]] = {}
    for row in rows:
        if _gives_up(row) and _is_class(row.exception_type):
            found.setdefault(row.task, {})[row.exception_type] = None
    lines = []
    for task, names in found.items():
        lines += [f"# the task {literal(task)}", f"@app.task(base=RetryableTask, give_up_on=({', '.join(names)},))"]
    return "\n".join(lines)


def _gives_up(row: Row) -> bool:
    return bool(row.kind == GIVE_UP)


def _is_class(name: str) -> bool:
    """Return whether code can name a class so; it cannot if the class is defined in a function."""
    return name.isascii() and all(part.isidentifier() and not iskeyword(part) for part in name.split("."))


def _give_up(row: Row) -> tuple[str, str, SafeString]:
    most, retries, longest = row.share_high, row.retries or 0, text.rough(row.longest_s)
    return (
        f"never recovered in {failures(row.failures)}; the last attempt came {longest} after the first",
        "" if most is None else f"95 % interval: at most {_share(ceil(1_000 * most))} recover",
        format_html(
            "Use a longer ladder for a while to see whether later attempts succeed. If not, add it to {}: that "
            "would have saved {} and {} of worker time.",
            _GIVE_UP_ON,
            f"{grouped(retries)} {plural(retries, 'retry', 'retries')}",
            text.rough((row.wasted_ms or 0) / 1000),
        ),
    )


def _fewer_tiers(row: Row) -> tuple[str, str, SafeString]:
    least, needless = row.share_low, row.needless_ms
    return (
        f"always recovered within {text.rough(row.longest_s)}, in {failures(row.failures)}",
        "" if least is None else f"95 % interval: at least {_share(floor(1_000 * least))} recover",
        format_html("It does not need the {} {}.", plural(len(needless), "tier", "tiers"), text.ladder(needless)),
    )


def _share(tenths: int) -> str:
    """Return tenths of a per cent as text."""
    return f"{number_format(tenths / 10, decimal_pos=1)}\N{NO-BREAK SPACE}%"
