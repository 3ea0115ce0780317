"""Comparison of ladders: their figures, and the settings for the advised ones. No I/O."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from django.utils.text import capfirst
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from ....durations import format_ms
from ..models import LadderAdvice, WhatIf
from ..queries import grouped
from . import text

Figure = Sequence[float | None]


def _plain(number: float | None) -> str:
    return text.EMPTY if number is None else f"{number:.2f}"


#: The figures in the order of the columns, with their formats.
_FORMS: Mapping[str, Callable[[float | None], str]] = {
    "recovery": text.share,
    "attempts": _plain,
    "median_s": text.rough,
    "p95_s": text.rough,
    "exhausted": text.share,
}


@dataclass(frozen=True)
class Cell:
    """A figure, and its interval if it is known."""

    value: str
    interval: str


@dataclass(frozen=True)
class LadderRow:
    """A ladder and its expected figures; ``label`` is its name, such as today's or the best found."""

    label: str
    ladder: str
    cells: Sequence[Cell]
    #: Why there are no figures.
    verdict: str = ""


@dataclass(frozen=True)
class Advice:
    """The advice for one queue, or for one task in it."""

    queue: str
    task: str
    #: The number of failures that it is based on, as text.
    failures: str
    rows: Sequence[LadderRow]
    #: Why this ladder is advised, or none.
    verdict: str


def advice(row: LadderAdvice) -> Advice:
    """Return an advice as the page shows it."""
    rows = [LadderRow(_("Today"), text.ladder(row.current_ms), cells(row.current))]
    if differs(row):
        rows.append(LadderRow(_("Best found"), text.ladder(row.advised_ms), cells(row.advised)))
    failures = ngettext("%(count)s failure", "%(count)s failures", row.episodes) % {"count": grouped(row.episodes)}
    return Advice(row.queue, row.task, failures, rows, _verdict(row))


def what_if(row: WhatIf) -> LadderRow:
    """Return the figures of a ladder that a user specified."""
    figures = row.figures if row.enough_data else {}
    return LadderRow(text.plain(row.queue, 120), text.ladder(row.ladder_ms), cells(figures), _verdict(row))


def _verdict(row: LadderAdvice | WhatIf) -> str:
    reason = capfirst(text.plain(row.reason, 300))
    return reason or ("" if row.enough_data else _("Not enough data."))


def cells(figures: Mapping[str, Figure]) -> list[Cell]:
    """Return figures as the columns of a table."""
    found = []
    for name, form in _FORMS.items():
        value, low, high = figures.get(name) or (None, None, None)
        found.append(Cell(form(value), text.interval(low, high, form)))
    return found


def differs(row: LadderAdvice) -> bool:
    """Return whether the advised ladder differs from today's."""
    return row.enough_data and bool(row.advised_ms) and row.advised_ms != row.current_ms


def snippet(rows: Iterable[LadderAdvice]) -> str:
    """Return the settings for the advised ladders; empty if there is nothing to change."""
    rows = list(rows)
    whole = {row.queue: row for row in rows if not row.task}
    lines = []
    if queues := [row for row in whole.values() if differs(row)]:
        lines += ["# settings.py: the other keys stay as they are", "CELERY_RMQ_DELAY = {", '    "queues": {']
        lines += [f'        {_literal(row.queue)}: {{"tiers": {_tiers(row)}}},' for row in queues]
        lines += ["    },", "}"]
    for row in rows:
        if row.task and differs(row) and not _follows(row, whole.get(row.queue)):
            lines += [f"# the task {_literal(row.task)}, in the queue {_literal(row.queue)}"]
            lines += [f"@app.task(base=RetryableTask, tiers={_tiers(row)})"]
    return "\n".join(lines)


def _follows(row: LadderAdvice, queue: LadderAdvice | None) -> bool:
    """Return whether the advised ladder of the queue is also the task's: the task then needs no setting."""
    return (
        queue is not None
        and differs(queue)
        and (row.current_ms, row.advised_ms)
        == (
            queue.current_ms,
            queue.advised_ms,
        )
    )


def _tiers(row: LadderAdvice) -> str:
    return json.dumps([format_ms(delay) for delay in row.advised_ms])


def _literal(name: str) -> str:
    """Return a Python literal in ASCII, without characters that can be mistaken for others."""
    return json.dumps(name) if name.isascii() else ascii(name)
