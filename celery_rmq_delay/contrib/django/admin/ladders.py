"""Comparison of ladders: their figures, the backtest, and the settings for the advised ones. No I/O."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from django.utils.text import capfirst

from ....durations import format_ms
from ....history.tables import BACKTEST_FIGURES
from ..models import Row
from ..queries import grouped, plural
from . import text

Figure = Sequence[float | None]


def _plain(number: float | None) -> str:
    return text.EMPTY if number is None else f"{number:.2f}"


#: The figures in the order of the columns, with their headings and formats.
_FORMS: Mapping[str, tuple[str, Callable[[float | None], str]]] = {
    "recovery": ("Recovered", text.share),
    "attempts": ("Retries per failure", _plain),
    "mean_s": ("Mean", text.rough),
    "p25_s": ("25\N{NO-BREAK SPACE}% within", text.rough),
    "median_s": ("Median", text.rough),
    "p75_s": ("75\N{NO-BREAK SPACE}% within", text.rough),
    "p95_s": ("95\N{NO-BREAK SPACE}% within", text.rough),
    "p99_s": ("99\N{NO-BREAK SPACE}% within", text.rough),
    "exhausted": ("Exhausted", text.share),
}


@dataclass(frozen=True)
class Cell:
    """A figure, and its interval if it is known."""

    value: str
    interval: str


@dataclass(frozen=True)
class LadderRow:
    """A ladder and its figures; ``label`` is its name, such as today's or the advised one."""

    label: str
    ladder: str
    cells: Sequence[Cell]
    #: Whether the figures are counts or estimates, or why there are none.
    note: str = ""


@dataclass(frozen=True)
class LadderTable:
    """Ladders in rows, figures in columns. ``label`` describes the table for screen readers."""

    label: str
    heads: Sequence[str]
    rows: Sequence[LadderRow]


@dataclass(frozen=True)
class Advice:
    """The advice for one queue, or for one task in it."""

    queue: str
    task: str
    #: The number of failures that it is based on, and why this ladder is advised, or none.
    basis: str
    #: Why the best ladder found is not advised: it failed its backtest.
    refused: str
    #: Today's ladder, if no figure of it is known; `table` is then None.
    today: str
    table: LadderTable | None
    #: What the figures assume, and whether the history favours it.
    assumption: str
    #: The recoveries that the advised ladder may lose.
    lost: str
    #: The failures of the backtest, and its figures.
    tried: str
    backtest: LadderTable | None
    #: What would show more.
    learn: str


def advice(row: Row) -> Advice:
    """Return an advice as the page shows it."""
    name = f"{row.queue} {row.task}".strip()
    rows = [LadderRow("Today", text.ladder(row.current_ms), cells(row.current), _origin(row.counted))]
    if differs(row):
        rows.append(LadderRow("Advised", text.ladder(row.advised_ms), cells(row.advised), _origin(None)))
    is_known = any(figure[0] is not None for figure in row.current.values())
    verdict = _verdict(row)
    basis = failures(row.episodes)
    return Advice(
        queue=row.queue,
        task=row.task,
        basis=basis if row.refused_ms or not verdict else f"{basis}: {verdict}",
        refused=capfirst(verdict) if row.refused_ms else "",
        today="" if is_known else text.ladder(row.current_ms),
        table=LadderTable(name, heads(), rows) if is_known else None,
        assumption=_assumption(row),
        lost=_lost(row) if differs(row) else "",
        tried=_tried(row.backtest_failures or 0),
        backtest=_backtest(row, name) if row.backtest_failures else None,
        learn=capfirst(text.plain(row.learn, 300)),
    )


def what_if(rows: Iterable[Row]) -> LadderTable | None:
    """Return the figures of the ladders that a user specified; None if there are none."""
    found = [
        LadderRow(
            text.plain(row.queue, 120),
            text.ladder(row.ladder_ms),
            cells(row.figures if row.enough_data else {}),
            _verdict(row),
        )
        for row in rows
    ]
    return LadderTable("What if", heads(), found) if found else None


def _origin(counted: int | None) -> str:
    if counted is None:
        return "estimated"
    return f"counted, {failures(counted)}"


def failures(count: int) -> str:
    """Return a number of failures as text."""
    return f"{grouped(count)} {plural(count, 'failure', 'failures')}"


def _assumption(row: Row) -> str:
    """Return what decides when a task recovers, as far as the history shows; empty if there is no estimate."""
    if row.by_attempts_high is None:
        return ""
    if row.model == "time":
        return (
            "The figures assume that a failure ends with time, however often a task is retried. The history favours "
            "this: by the estimate, the number of attempts decides for at most "
            f"{text.share(row.by_attempts_high)} of the failures."
        )
    if row.model == "attempts":
        return (
            "The figures assume that the number of attempts decides whether a task recovers, and not time. The history "
            "favours this."
        )
    return (
        "The figures assume that a failure ends with time, however often a task is retried. The history does not "
        "show whether that is so, or whether the number of attempts decides: an advised ladder keeps the limits in "
        "both cases."
    )


def _lost(row: Row) -> str:
    if not row.lost:
        return ""
    return f"The advised ladder may lose {grouped(row.lost)} of the {grouped(row.recoveries)} counted recoveries."


def _tried(failures: int) -> str:
    last = plural(failures, "failure", f"{grouped(failures)} failures")
    return f"Backtest: on the last {last}, which the advice does not know:"


def _backtest(row: Row, name: str) -> LadderTable:
    tried = ("Advised", row.advised_ms) if row.advised_ms else ("Not advised", row.refused_ms)
    pairs = (("Today", row.current_ms, row.backtest_current), (*tried, row.backtest_advised))
    rows = [LadderRow(label, text.ladder(ladder), cells(figures, BACKTEST_FIGURES)) for label, ladder, figures in pairs]
    return LadderTable(f"Backtest: {name}", heads(BACKTEST_FIGURES), rows)


def _verdict(row: Row) -> str:
    reason = text.plain(row.reason, 300)
    return reason or ("" if row.enough_data else "not enough data")


def heads(names: Iterable[str] = tuple(_FORMS)) -> list[str]:
    """Return the headings of the columns of figures."""
    return [_FORMS[name][0] for name in names]


def cells(figures: Mapping[str, Figure], names: Iterable[str] = tuple(_FORMS)) -> list[Cell]:
    """Return figures as the columns of a table."""
    found = []
    for name in names:
        _head, form = _FORMS[name]
        value, low, high = figures.get(name) or (None, None, None)
        found.append(Cell(form(value), text.interval(low, high, form)))
    return found


def differs(row: Row) -> bool:
    """Return whether the advised ladder differs from today's."""
    return row.enough_data and bool(row.advised_ms) and row.advised_ms != row.current_ms


def snippet(rows: Iterable[Row]) -> str:
    """Return the settings for the advised ladders; empty if there is nothing to change."""
    rows = list(rows)
    whole = {row.queue: row for row in rows if not row.task}
    lines = []
    if queues := [row for row in whole.values() if differs(row)]:
        lines += ["# settings.py: the other keys stay as they are", "CELERY_RMQ_DELAY = {", '    "queues": {']
        lines += [f'        {literal(row.queue)}: {{"tiers": {_tiers(row)}}},' for row in queues]
        lines += ["    },", "}"]
    for row in rows:
        if row.task and differs(row) and not _follows(row, whole.get(row.queue)):
            lines += [f"# the task {literal(row.task)}, in the queue {literal(row.queue)}"]
            lines += [f"@app.task(base=RetryableTask, tiers={_tiers(row)})"]
    return "\n".join(lines)


def _follows(row: Row, queue: Row | None) -> bool:
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


def _tiers(row: Row) -> str:
    return json.dumps([format_ms(delay) for delay in row.advised_ms])


def literal(name: str) -> str:
    """Return a Python literal in ASCII, without characters that can be mistaken for others."""
    return json.dumps(name) if name.isascii() else ascii(name)
