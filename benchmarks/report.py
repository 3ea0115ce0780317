"""The tables and ratios of results, and the description of the machine."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.contenders import (
    BEFORE,
    DRAMATIQ,
    DRAMATIQ_UNLOGGED,
    OURS,
    STOCK,
    SUCCESS,
    TASKIQ,
    TASKIQ_UNLOGGED,
    Contender,
)
from benchmarks.output import closing, print_closing, print_tables, table_lines, terminal
from benchmarks.run import Rate

_PACKAGES = (
    "celery-rmq-delay",
    "celery",
    "kombu",
    "billiard",
    "amqp",
    "dramatiq",
    "pika",
    "taskiq",
    "taskiq-aio-pika",
    "aio-pika",
)

#: (title, field of `Rate`, digits)
_COLUMNS = (
    ("tasks/s", "per_second", 0),
    ("worker CPU ms", "worker_cpu", 2),
    ("parent ms", "parent_cpu", 2),
    ("children ms", "children_cpu", 2),
    ("broker CPU ms", "broker_cpu", 2),
    ("peak RSS MB", "peak_rss", 0),
    ("RSS growth MB", "growth", 1),
    ("children, all", "children_growth", 1),
    ("after 500", "children_growth_warm", 1),
)


class Results:
    """The measurements by contender."""

    def __init__(self, contenders: Sequence[Contender]) -> None:
        self.contenders = contenders
        self.rates: dict[Contender, list[Rate]] = {each: [] for each in contenders}
        self.errors: list[str] = []

    def value(self, contender: Contender, field: str) -> float | None:
        """Return the median of a measurement over the rounds; None if there is none."""
        values = [found for rate in self.rates[contender] if (found := getattr(rate, field)) is not None]
        return median(values) if values else None

    def named(self, name: str, queue_type: str, field: str) -> float | None:
        """Return the median of a contender given by name and type of queue."""
        for contender in self.contenders:
            if (contender.name, contender.queue_type) == (name, queue_type):
                return self.value(contender, field)
        return None

    def rows(self) -> list[list[str]]:
        """Return the table's cells, one row per contender."""
        return [self._row(contender) for contender in self.contenders]

    def _row(self, contender: Contender) -> list[str]:
        cells = [contender.name, contender.queue_type]
        for _title, field, digits in _COLUMNS:
            value = self.value(contender, field)
            cells.append("-" if value is None else f"{value:,.{digits}f}")
        rates = [rate.per_second for rate in self.rates[contender]]
        cells[2] += f" ({min(rates):,.0f}-{max(rates):,.0f})" if len(rates) > 1 else ""
        return cells

    def ratios(self) -> list[tuple[str, float, str]]:
        """Return (what, ratio, aim) for every comparison with measurements of both sides."""
        found = []
        for kind in ("classic", "quorum"):
            ours = self.named(OURS, kind, "per_second")
            for name, aim in (
                (STOCK, ">= 4"),
                (DRAMATIQ, "> 1"),
                (DRAMATIQ_UNLOGGED, "> 1"),
                (TASKIQ, "> 1"),
                (TASKIQ_UNLOGGED, "> 1"),
            ):
                other = self.named(name, kind, "per_second")
                if ours and other:
                    found.append((f"parked/s, {kind}: {OURS} / {name}", ours / other, aim))
            cpu, plain = self.named(OURS, kind, "worker_cpu"), self.named(SUCCESS, kind, "worker_cpu")
            if cpu and plain:
                found.append((f"worker CPU, {kind}: parked attempt / plain success", cpu / plain, "<= 1.5"))
            for what, field in (("parked/s", "per_second"), ("worker CPU", "worker_cpu"), ("RSS", "peak_rss")):
                now, before = self.named(OURS, kind, field), self.named(BEFORE, kind, field)
                if now and before:
                    more_is_better = field == "per_second"
                    ratio = now / before if more_is_better else before / now
                    found.append(
                        (f"{what}, {kind}: {'now / before' if more_is_better else 'before / now'}", ratio, ">= 0.97")
                    )
            growth = self.named(OURS, kind, "children_growth_warm")
            if growth is not None:
                found.append((f"children's memory, {kind}: growth after 500 failures, MB", growth, "about 0"))
        return found

    def as_dict(self) -> dict[str, Any]:
        """Return everything for ``--json``."""
        return {
            "runs": [
                {**asdict(contender), "rates": [asdict(rate) for rate in self.rates[contender]]}
                for contender in self.contenders
            ],
            "ratios": [{"what": what, "value": value, "aim": aim} for what, value, aim in self.ratios()],
            "errors": self.errors,
        }


def titles() -> list[str]:
    """Return the titles of the table's columns."""
    return ["contender", "queue", *(title for title, _field, _digits in _COLUMNS)]


def machine(broker_version: str | None, packages: Sequence[str] = _PACKAGES) -> dict[str, str]:
    """Return the machine, versions and load of the run; ``broker_version`` is None if no broker is used."""
    cpu = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if "model name" in line
    ]
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 1024**3
    return {
        "machine": f"{os.cpu_count()} x {cpu[0] if cpu else platform.machine()}, {memory:.0f} GiB RAM",
        "load before": " ".join(f"{load:.2f}" for load in os.getloadavg()),
        "system": f"{platform.system()} {platform.release()}",
        "Python": platform.python_version(),
        **({} if broker_version is None else {"RabbitMQ": broker_version}),
        **{name: found for name in packages if (found := _version(name))},
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def print_report(results: Results, facts: dict[str, str], notes: Sequence[str]) -> None:
    """Print the tables to the terminal."""
    console = terminal(200)
    print_tables(console, [("Parking failing tasks", titles(), results.rows())], texts=2)
    print_tables(console, [("Ratios", ["what", "measured", "aim"], _ratio_rows(results))])
    print_closing(console, facts, (*notes, *results.errors))


def markdown(results: Results, facts: dict[str, str], notes: Sequence[str]) -> str:
    """Return the tables as Markdown."""
    lines = table_lines(titles(), results.rows(), texts=2)
    lines += ["", *table_lines(["ratio", "measured", "aim"], _ratio_rows(results))]
    return "\n".join([*lines, "", *closing(facts, notes, results.errors)]).rstrip() + "\n"


def _ratio_rows(results: Results) -> list[list[str]]:
    return [[what, f"{value:.2f}", aim] for what, value, aim in results.ratios()]
