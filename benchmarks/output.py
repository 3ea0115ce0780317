"""Output of all benchmarks: progress, tables for a terminal and for Markdown, notes about failures."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import amqp
import kombu
from rich.console import Console
from rich.table import Table as RichTable

from benchmarks.run import RunError
from celery_rmq_delay.testing import PrivateServerError

#: title, head, rows
Table = tuple[str, Sequence[str], Sequence[Sequence[str]]]

#: Errors of the run of one contender that do not affect the others.
_FAILURES = (
    RunError,
    PrivateServerError,
    OSError,
    RuntimeError,
    subprocess.SubprocessError,
    kombu.exceptions.KombuError,
    amqp.exceptions.AMQPError,
)

progress = Console(stderr=True, highlight=False, soft_wrap=True)


def terminal(width: int) -> Console:
    """Return the console for results, with this width if it is not a terminal."""
    return Console(width=None if os.isatty(1) else width, highlight=False)


def print_tables(console: Console, tables: Iterable[Table], *, texts: int = 1) -> None:
    """Print the tables that have rows; the first ``texts`` columns are of text, the others of figures."""
    for title, head, rows in tables:
        if not rows:
            continue
        table = RichTable(title=title)
        for index, name in enumerate(head):
            table.add_column(name, justify="left" if index < texts else "right")
        for row in rows:
            table.add_row(*row)
        console.print(table)


def print_closing(console: Console, facts: dict[str, str], texts: Sequence[str]) -> None:
    """Print the end of every report: the machine, notes and errors."""
    for name, value in facts.items():
        console.print(f"{name}: {value}")
    for text in texts:
        console.print(text, markup=False)


def table_lines(head: Sequence[str], rows: Iterable[Sequence[str]], *, texts: int = 1) -> list[str]:
    """Return a table as lines of Markdown."""
    return [line(head), line(["---"] * texts + ["---:"] * (len(head) - texts)), *map(line, rows)]


def tables_lines(tables: Iterable[Table], *, texts: int = 1) -> list[str]:
    """Return the tables that have rows as lines of Markdown, each below its title."""
    lines = []
    for title, head, rows in tables:
        if rows:
            lines += [f"**{title}**", "", *table_lines(head, rows, texts=texts), ""]
    return lines


def closing(facts: dict[str, str], notes: Sequence[str], errors: Sequence[str]) -> list[str]:
    """Return the end of every report as lines of Markdown."""
    return [*(f"* {name}: {value}" for name, value in facts.items()), "", *(f"{note}\n" for note in notes), *errors]


def line(cells: Sequence[str]) -> str:
    """Return a row of a Markdown table."""
    return f"| {' | '.join(cells)} |"


def note(errors: list[str], text: str) -> None:
    """Record a failure for the report, and print it at once."""
    errors.append(text)
    progress.print(text, markup=False)


@contextmanager
def noted(errors: list[str], what: str) -> Iterator[None]:
    """Record a failure and continue: the other results are valid."""
    try:
        yield
    except _FAILURES as error:
        note(errors, f"{what}: {str(error).strip() or type(error).__name__}")
