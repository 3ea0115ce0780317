"""The results of `benchmarks.peers`: as JSON, in tables, ratios and a chart."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

from benchmarks.charts import FLOOR, OTHER, OURS, Bar, Bars
from benchmarks.contenders import CELERY_NATIVE, FLOORS, IN_THREADS, PEERS, STOCK, Contender
from benchmarks.contenders import FLOOR as FLOOR_NAME
from benchmarks.contenders import OURS as OUR_NAME
from benchmarks.delays_report import turns_ratio
from benchmarks.output import Table
from benchmarks.peers_measures import Fresh, Killed, Parked
from benchmarks.run import Lateness, Rate

#: The names of this package's rows.
_OF_US = (OUR_NAME, IN_THREADS)
#: Short names for charts.
_SHORT = {STOCK: "Celery, ETA", CELERY_NATIVE: "Celery, native", FLOOR_NAME: "bare consume and reject"}


@dataclass
class Results:
    """The measurements by contender, and the errors."""

    #: The machine and the options of the run.
    machine: dict[str, str] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    #: By round; None where a round failed.
    retries: dict[Contender, list[Rate | None]] = field(default_factory=dict)
    lateness: dict[Contender, Lateness] = field(default_factory=dict)
    parked: dict[Contender, Parked] = field(default_factory=dict)
    killed: dict[Contender, list[Killed]] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)

    def to_json(self) -> str:
        """Return the results as JSON, for `from_json`."""
        runs = {
            each.key: {
                "retries": [rate and asdict(rate) for rate in self.retries.get(each, [])],
                "lateness": asdict(self.lateness[each]) if each in self.lateness else None,
                "parked": asdict(self.parked[each]) if each in self.parked else None,
                "killed": [asdict(killed) for killed in self.killed.get(each, [])],
            }
            for each in (*PEERS, *FLOORS)
        }
        compared = [{"what": what, "value": value} for what, value in ratios(self)]
        kept = {"machine": self.machine, "options": self.options, "runs": runs, "ratios": compared}
        return json.dumps({**kept, "errors": self.errors}, indent=1) + "\n"


def from_json(text: str) -> Results:
    """Return the results of an earlier run."""
    found = json.loads(text)
    results = Results(found["machine"], found["options"], errors=found["errors"])
    for each in (*PEERS, *FLOORS):
        run = found["runs"].get(each.key)
        if run is None:  # the run is older than this contender
            continue
        if run["retries"]:
            results.retries[each] = [rate and Rate(**rate) for rate in run["retries"]]
        if run["lateness"]:
            results.lateness[each] = Lateness(**run["lateness"])
        if parked := run["parked"]:
            beside = {name: Fresh(**parked.pop(name)) for name in ("beside_few", "beside_many")}
            results.parked[each] = Parked(**parked, **beside)
        if run["killed"]:
            results.killed[each] = [Killed(**killed) for killed in run["killed"]]
    return results


def middle(results: Results, contender: Contender, what: str) -> float | None:
    """Return the median over the rounds of a figure of `Rate`; None if there is none."""
    rates = results.retries.get(contender, [])
    values = [found for rate in rates if rate and (found := getattr(rate, what)) is not None]
    return median(values) if values else None


def ratios(results: Results) -> list[tuple[str, float]]:
    """Return how much faster this package is than each peer on the same type of queue: medians over the rounds."""
    found = []
    for ours in (each for each in PEERS if each.name in _OF_US):
        for other in (*PEERS, *FLOORS):
            if other.queue_type != ours.queue_type or other.name in _OF_US:
                continue
            rounds = zip(results.retries.get(ours, []), results.retries.get(other, []), strict=False)
            pairs = [(mine.per_second, its.per_second) for mine, its in rounds if mine and its]
            if pairs:
                mine, its = zip(*pairs, strict=True)
                found.append((f"tasks/s, {ours.queue_type}: {ours.name} / {other.name}", turns_ratio(mine, its)))
    return found


def tables(results: Results) -> list[Table]:
    """Return (title, titles of the columns, rows) of all tables that have rows; the first two columns are text."""
    few, many = results.options.get("few", 0), results.options.get("many", 0)
    found = [
        (
            "Through one retry",
            ["tasks/s", "of the bare loop", "worker CPU ms", "broker CPU ms", "peak RSS MB"],
            _rows(results.retries, lambda each: _retry_cells(results, each)),
        ),
        (
            "Late, ms",
            ["p50", "p99", "max", "missing"],
            _rows(results.lateness, lambda each: _late_cells(results, each)),
        ),
        (
            "While tasks wait",
            [
                "worker MB, none waits",
                f"MB, {many:,} wait",
                "of them in the worker",
                f"fresh task beside {few:,}, ms: p50",
                "max",
                f"beside {many:,}: p50",
                "max",
            ],
            _rows(results.parked, lambda each: _parked_cells(results.parked[each])),
        ),
        (
            "Killed with SIGKILL",
            ["victim", "kills", "tasks", "lost", "stuck", "done twice", "worker started again"],
            [row for each in results.killed for row in _killed_rows(each, results.killed[each])],
        ),
    ]
    shown = [(title, ["", "queue", *head], rows) for title, head, rows in found if rows]
    if compared := ratios(results):
        shown.append(("Ratios", ["", "measured"], [[what, f"{value:.2f}"] for what, value in compared]))
    return shown


def _rows(contenders: Iterable[Contender], cells: Any) -> list[list[str]]:
    found = ((each, cells(each)) for each in contenders)
    return [[each.name, each.queue_type, *row] for each, row in found if row]


def _retry_cells(results: Results, each: Contender) -> list[str]:
    rate = middle(results, each, "per_second")
    if rate is None:
        return ["failed", "-", "-", "-", "-"]
    rates = [found.per_second for found in results.retries[each] if found]
    rate_text = f"{rate:,.0f}" + (f" ({min(rates):,.0f}-{max(rates):,.0f})" if len(rates) > 1 else "")
    floor = next((middle(results, bare, "per_second") for bare in FLOORS if bare.queue_type == each.queue_type), None)
    share = f"{rate / floor:.0%}" if floor else "-"
    figures = (("worker_cpu", 2), ("broker_cpu", 2), ("peak_rss", 0))
    return [rate_text, share, *(_number(middle(results, each, what), digits) for what, digits in figures)]


def _late_cells(results: Results, each: Contender) -> list[str]:
    late = results.lateness[each]
    return [*(_number(value) for value in (late.p50, late.p99, late.worst)), _of(late.missing, late.tasks)]


def _parked_cells(parked: Parked) -> list[str]:
    memory = [f"{parked.idle_mb:,.0f}", f"{parked.parked_mb:,.0f}", f"{parked.held:,}"]
    return [*memory, *_fresh_cells(parked.beside_few), *_fresh_cells(parked.beside_many)]


def _fresh_cells(found: Fresh) -> list[str]:
    missing = f" ({_of(found.missing, found.tasks)} never)" if found.missing else ""
    return [_number(found.p50), f"{_number(found.worst)}{missing}"]


def _killed_rows(each: Contender, found: Sequence[Killed]) -> list[list[str]]:
    rows = []
    for victim in dict.fromkeys(killed.victim for killed in found):
        of_it = [killed for killed in found if killed.victim == victim]
        fields = ("kills", "tasks", "lost", "stuck", "twice", "restarts")
        sums = (sum(getattr(killed, name) for killed in of_it) for name in fields)
        rows.append([each.name, each.queue_type, victim, *(f"{value:,}" for value in sums)])
    return rows


def _number(value: float | None, digits: int = 0) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"


def _of(part: int, whole: int) -> str:
    return f"{part:,} of {whole:,}" if part else "0"


def panels(results: Results) -> list[Bars]:
    """Return the panels of the chart."""
    few, many = results.options.get("few", 0), results.options.get("many", 0)
    everyone = [each for each in (*PEERS, *FLOORS) if each in results.retries]
    return [
        Bars("Tasks through one retry, per second", [_rate_bar(results, each, "per_second") for each in everyone]),
        Bars(
            "Late at the 99th percentile, ms",
            [_bar(each, late.p99, f"{_number(late.p99)}{_missing(late)}") for each, late in results.lateness.items()],
            log=True,
        ),
        Bars(
            "Broker CPU per task with one retry, ms", [_rate_bar(results, each, "broker_cpu", 2) for each in everyone]
        ),
        Bars(
            f"Worker memory with {many:,} waiting, MB",
            [_bar(each, found.parked_mb, _held(found)) for each, found in results.parked.items()],
        ),
        Bars(
            f"Slowest fresh task beside {few:,} waiting, ms",
            [_fresh_bar(each, found.beside_few) for each, found in results.parked.items()],
            log=True,
        ),
        Bars(
            "Tasks done twice, and lost (red), after kills",
            [_killed_bar(each, found) for each, found in results.killed.items()],
        ),
    ]


def _bar(each: Contender, value: float | None, text: str, more: float = 0.0) -> Bar:
    colour = OURS if each.name in _OF_US else FLOOR if each in FLOORS else OTHER
    return Bar(f"{_SHORT.get(each.name, each.name)}, {each.queue_type}", value, text, colour, more)


def _rate_bar(results: Results, each: Contender, what: str, digits: int = 0) -> Bar:
    value = middle(results, each, what)
    return _bar(each, value, "failed" if value is None else _number(value, digits))


def _missing(late: Lateness) -> str:
    return f", {late.missing} of {late.tasks} missing" if late.missing else ""


def _held(found: Parked) -> str:
    return f"{found.parked_mb:,.0f}" + (f", {found.held:,} in the worker" if found.held else "")


def _fresh_bar(each: Contender, found: Fresh) -> Bar:
    if found.missing == found.tasks:
        return _bar(each, None, "none had started after 20 s")
    return _bar(each, found.worst, f"{_number(found.worst)}" + (f", {found.missing} never" if found.missing else ""))


def _killed_bar(each: Contender, found: Sequence[Killed]) -> Bar:
    twice, lost = sum(killed.twice for killed in found), sum(killed.lost + killed.stuck for killed in found)
    return _bar(each, twice, f"{twice:,} twice, {lost:,} lost", more=lost)
