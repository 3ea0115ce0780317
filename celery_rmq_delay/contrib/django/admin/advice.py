"""The advice of the analytics in words: ladders with their figures and backtests, errors, and the code for both.

No I/O.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from keyword import iskeyword
from math import ceil, floor
from types import SimpleNamespace
from typing import NamedTuple

from django.utils.formats import number_format
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.text import capfirst

from ....durations import format_ms
from ....history.tables import BACKTEST_FIGURES, GIVE_UP
from ..models import Row
from ..queries import grouped, plural
from . import text

Figure = Sequence[float | None]
_GIVE_UP_ON = SafeString("<code>give_up_on</code>")


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
_ASSUMPTIONS = {
    "time": (
        "The figures assume that a failure ends with time, however often a task is retried. The history favours "
        "this: by the estimate, the number of attempts decides for at most {most} of the failures."
    ),
    "attempts": (
        "The figures assume that the number of attempts decides whether a task recovers, and not time. The history "
        "favours this."
    ),
}
_UNDECIDED = (
    "The figures assume that a failure ends with time, however often a task is retried. The history does not "
    "show whether that is so, or whether the number of attempts decides: an advised ladder keeps the limits in "
    "both cases."
)


class Cell(NamedTuple):
    """A figure, and its interval if it is known."""

    value: str
    interval: str


def advice(row: Row) -> SimpleNamespace:
    """Return the advice for one queue, or for one task in it, as the page shows it."""
    name = f"{row.queue} {row.task}".strip()
    is_known = any(figure[0] is not None for figure in row.current.values())
    counted = "estimated" if row.counted is None else f"counted, {failures(row.counted)}"
    rows = [_row("Today", row.current_ms, row.current, counted)]
    if differs(row):
        rows.append(_row("Advised", row.advised_ms, row.advised, "estimated"))
    verdict = _verdict(row)
    basis = failures(row.episodes)
    return SimpleNamespace(
        queue=row.queue,
        task=row.task,
        # The number of failures that it is based on, and why this ladder is advised, or none.
        basis=basis if row.refused_ms or not verdict else f"{basis}: {verdict}",
        # Why the best ladder found is not advised: it failed its backtest.
        refused=capfirst(verdict) if row.refused_ms else "",
        # Today's ladder, if no figure of it is known.
        today="" if is_known else text.ladder(row.current_ms),
        table=_table(name, rows) if is_known else None,
        assumption=_assumption(row),
        lost=_lost(row) if differs(row) and row.lost else "",
        tried=_tried(row.backtest_failures or 0),
        backtest=_backtest(row, name) if row.backtest_failures else None,
        # What would show more.
        learn=capfirst(text.plain(row.learn, 300)),
    )


def what_if(rows: Iterable[Row]) -> SimpleNamespace | None:
    """Return the figures of the ladders that a user specified; None if there are none."""
    found = [
        _row(text.plain(row.queue, 120), row.ladder_ms, row.figures if row.enough_data else {}, _verdict(row))
        for row in rows
    ]
    return _table("What if", found) if found else None


def _row(
    label: str, ladder: Iterable[int], figures: Mapping[str, Figure], note: str = "", names: Iterable[str] = _FORMS
) -> SimpleNamespace:
    """Return a ladder by its name, its figures, and whether these are counts or estimates, or why there are none."""
    cells = []
    for name in names:
        _head, form = _FORMS[name]
        value, low, high = figures.get(name) or (None, None, None)
        cells.append(Cell(form(value), text.interval(low, high, form)))
    return SimpleNamespace(label=label, ladder=text.ladder(ladder), cells=cells, note=note)


def _table(label: str, rows: Sequence[SimpleNamespace], names: Iterable[str] = _FORMS) -> SimpleNamespace:
    """Return a table of ladders; ``label`` describes it for screen readers."""
    return SimpleNamespace(label=label, heads=[_FORMS[name][0] for name in names], rows=rows)


def failures(count: int) -> str:
    """Return a number of failures as text."""
    return f"{grouped(count)} {plural(count, 'failure', 'failures')}"


def _assumption(row: Row) -> str:
    """Return what decides when a task recovers, as far as the history shows; empty if there is no estimate."""
    if row.by_attempts_high is None:
        return ""
    return _ASSUMPTIONS.get(row.model, _UNDECIDED).format(most=text.share(row.by_attempts_high))


def _lost(row: Row) -> str:
    return f"The advised ladder may lose {grouped(row.lost)} of the {grouped(row.recoveries)} counted recoveries."


def _tried(failures: int) -> str:
    last = plural(failures, "failure", f"{grouped(failures)} failures")
    return f"Backtest: on the last {last}, which the advice does not know:"


def _backtest(row: Row, name: str) -> SimpleNamespace:
    tried = ("Advised", row.advised_ms) if row.advised_ms else ("Not advised", row.refused_ms)
    rows = [
        _row("Today", row.current_ms, row.backtest_current, names=BACKTEST_FIGURES),
        _row(*tried, row.backtest_advised, names=BACKTEST_FIGURES),
    ]
    return _table(f"Backtest: {name}", rows, BACKTEST_FIGURES)


def _verdict(row: Row) -> str:
    return text.plain(row.reason, 300) or ("" if row.enough_data else "not enough data")


def differs(row: Row) -> bool:
    """Return whether the advised ladder differs from today's."""
    return row.enough_data and bool(row.advised_ms) and row.advised_ms != row.current_ms


def snippet(rows: Iterable[Row]) -> str:
    """Return the settings for the advised ladders; empty if there is nothing to change."""
    changed = [row for row in rows if differs(row)]
    whole = {row.queue: row for row in changed if not row.task}
    lines = []
    if whole:
        lines += ["# settings.py: the other keys stay as they are", "CELERY_RMQ_DELAY = {", '    "queues": {']
        lines += [f'        {_literal(row.queue)}: {{"tiers": {_tiers(row)}}},' for row in whole.values()]
        lines += ["    },", "}"]
    for row in changed:
        queue = whole.get(row.queue)
        # A task with the ladder of its queue needs no setting.
        follows = queue and (row.current_ms, row.advised_ms) == (queue.current_ms, queue.advised_ms)
        if row.task and not follows:
            lines += [f"# the task {_literal(row.task)}, in the queue {_literal(row.queue)}"]
            lines += [f"@app.task(base=RetryableTask, tiers={_tiers(row)})"]
    return "\n".join(lines)


def _tiers(row: Row) -> str:
    return json.dumps([format_ms(delay) for delay in row.advised_ms])


def _literal(name: str) -> str:
    """Return a Python literal in ASCII, without characters that can be mistaken for others."""
    return json.dumps(name) if name.isascii() else ascii(name)


# -- errors --------------------------------------------------------------------------------------------------------


def error_advice(row: Row) -> SimpleNamespace:
    """Return what the failures of a task with an exception show, and what to do, as the page shows it."""
    shows, interval, to_do = (_give_up if row.kind == GIVE_UP else _fewer_tiers)(row)
    return SimpleNamespace(row=row, shows=shows, interval=interval, to_do=to_do)


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
            text.rough_ms(row.wasted_ms or 0),
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


def give_up_snippet(rows: Iterable[Row]) -> str:
    """Return the code with which tasks give up on exceptions; empty if there is nothing to change."""
    found: dict[str, dict[str, None]] = {}
    for row in rows:
        if row.kind == GIVE_UP and _is_class(row.exception_type):
            found.setdefault(row.task, {})[row.exception_type] = None
    lines = []
    for task, names in found.items():
        lines += [f"# the task {_literal(task)}", f"@app.task(base=RetryableTask, give_up_on=({', '.join(names)},))"]
    return "\n".join(lines)


def _is_class(name: str) -> bool:
    """Return whether code can name a class so; it cannot if the class is defined in a function."""
    return name.isascii() and all(part.isidentifier() and not iskeyword(part) for part in name.split("."))
