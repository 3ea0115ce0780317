"""The tables of `benchmarks.exact_delays`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from statistics import mean, median
from typing import Any

from benchmarks.contenders import Contender
from benchmarks.delays import (
    CELERY_NATIVE,
    CELERY_NATIVE_CLASSIC,
    LEVELS,
    LEVELS_QUORUM,
    Drain,
    Lateness,
    Parked,
    Publishing,
)
from benchmarks.output import closing, print_closing, print_tables, tables_lines, terminal


@dataclass
class Results:
    """The measurements by contender, and the errors."""

    contenders: Sequence[Contender]
    publishing: dict[Contender, Publishing] = field(default_factory=dict)
    parked: dict[Contender, Parked] = field(default_factory=dict)
    drains: dict[Contender, list[Drain]] = field(default_factory=dict)
    #: By delay in seconds.
    hops: dict[Contender, dict[int, int]] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """Return everything for ``--json``."""
        return {
            "runs": [
                {
                    "contender": each.name,
                    "publishing": asdict(self.publishing[each]) if each in self.publishing else None,
                    "parked": asdict(self.parked[each]) if each in self.parked else None,
                    "drains": [asdict(drain) for drain in self.drains.get(each, [])],
                    "hops": self.hops.get(each),
                }
                for each in self.contenders
            ],
            "ratios": [{"what": what, "value": value, "aim": aim} for what, value, aim in self.ratios()],
            "errors": self.errors,
        }

    def ratios(self) -> list[tuple[str, float, str]]:
        """Return (what, ratio, aim) for every comparison with measurements of both sides."""
        found = []
        named = {each.name: each for each in self.contenders}
        for ours, theirs in ((LEVELS, CELERY_NATIVE_CLASSIC), (LEVELS, CELERY_NATIVE), (LEVELS_QUORUM, CELERY_NATIVE)):
            if ours not in named or theirs not in named:
                continue
            pair = named[ours], named[theirs]
            mine, other = (self.publishing.get(each) for each in pair)
            if mine and other and mine.wall and other.wall:
                what = f"{ours} / {theirs}"
                found.append((f"published/s: {what}", turns_ratio(other.wall, mine.wall), ">= 1"))
                found.append((f"publisher's CPU: {what}", turns_ratio(mine.cpu, other.cpu), "<= 1"))
            hops = [self.hops.get(each) for each in pair]
            if all(hops):
                worst = max(hops[0][delay] / hops[1][delay] for delay in hops[0] if delay in hops[1])  # type: ignore[index,union-attr]
                found.append((f"hops, the worst delay: {ours} / {theirs}", worst, "<= 1"))
        return found


def turns_ratio(mine: Sequence[float], other: Sequence[float]) -> float:
    """Return the median of the ratios of consecutive turns: other load on the machine affects both."""
    return median(each / its for each, its in zip(mine, other, strict=True))


def tables(results: Results) -> list[tuple[str, list[str], list[list[str]]]]:
    """Return (title, titles of the columns, rows) of all tables; the first column is text."""
    return [
        ("Publishing", ["", "calls/s", "publisher CPU µs", "broker CPU µs"], _publishing(results)),
        (
            "While parked",
            ["", "parked", "broker bytes each", "held by the worker", "worker MB", "broker CPU s", "worker CPU s"],
            _parked(results),
        ),
        ("Lateness, ms", ["", "p50", "p99", "max", "p50, rounded", "p99", "max", "missing"], _late(results)),
        ("Due together", ["", "messages", "s to the last", "messages/s", "hops, mean", "hops, most"], _drain(results)),
        ("Ratios", ["", "measured", "aim"], [[what, f"{value:.2f}", aim] for what, value, aim in results.ratios()]),
    ]


def _publishing(results: Results) -> list[list[str]]:
    rows = []
    for each, found in results.publishing.items():
        if found.wall:
            rates = [1 / wall for wall in found.wall]
            rate = f"{1 / median(found.wall):,.0f} ({min(rates):,.0f}-{max(rates):,.0f})"
            rows.append([each.name, rate, _us(found.cpu), _us(found.broker)])
    return rows


def _us(seconds: Sequence[float]) -> str:
    return f"{median(seconds) * 1e6:,.0f}" if any(seconds) else "-"


def _parked(results: Results) -> list[list[str]]:
    return [
        [
            each.name,
            f"{found.count:,}",
            f"{found.broker_bytes:,.0f}",
            f"{found.held:,}",
            f"{found.worker_mb:+,.1f}",
            "-" if found.broker_cpu is None else f"{found.broker_cpu:.1f}",
            f"{found.worker_cpu:.1f}",
        ]
        for each, found in results.parked.items()
    ]


def _late(results: Results) -> list[list[str]]:
    return [
        [each.name, *_ms(found.lateness.asked), *_ms(found.lateness.rounded), _missing(found.lateness)]
        for each, found in results.parked.items()
    ]


def _ms(values: Sequence[float | None]) -> list[str]:
    return ["-" if value is None else f"{value:,.0f}" for value in values]


def _missing(late: Lateness) -> str:
    return f"{late.missing:,} of {late.count:,}" if late.missing else "0"


def _drain(results: Results) -> list[list[str]]:
    rows = []
    for each, drains in results.drains.items():
        hops = (results.hops.get(each) or {}).values()
        rows.append(
            [
                each.name,
                f"{drains[0].count:,}",
                f"{median(drain.seconds for drain in drains):.2f}",
                f"{median(drain.per_second for drain in drains):,.0f}",
                f"{mean(hops):.2f}" if hops else "-",
                f"{max(hops)}" if hops else "-",
            ]
        )
    return rows


def print_report(results: Results, facts: dict[str, str], notes: Sequence[str]) -> None:
    """Print the tables to the terminal."""
    console = terminal(160)
    print_tables(console, tables(results))
    print_closing(console, facts, (*notes, *results.errors))


def markdown(results: Results, facts: dict[str, str], notes: Sequence[str]) -> str:
    """Return the tables as Markdown, ready for docs/contributing/performance.md."""
    return "\n".join([*tables_lines(tables(results)), *closing(facts, notes, results.errors)]).rstrip() + "\n"
