"""Compare Celery's pools and prefetch windows: retries a second, their cost and their lateness, set-ups in turn.

    python -m benchmarks pools                     # 3 rounds of 4,000 tasks, 15 to 30 minutes on a quiet machine
    python -m benchmarks pools --quick             # small numbers, to check that everything runs
    python -m benchmarks pools --rabbitmq 4.3 --queue-type quorum
    python -m benchmarks pools --docs              # and write tables and chart into the documentation

Three measurements of each set-up: tasks that fail once and succeed a second later; tasks that fail and wait; and the
lateness of retries at a steady rate. Dramatiq, taskiq and Celery's own retry run in the same rounds.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import NamedTuple

from benchmarks import charts, docs_part
from benchmarks.brokers import Broker, open_broker
from benchmarks.contenders import CONTENDERS, DRAMATIQ, OURS, STOCK, TASKIQ, Contender
from benchmarks.output import Table, noted, print_closing, print_tables, progress, terminal
from benchmarks.report import machine
from benchmarks.run import Lateness, Options, Rate, measure_lateness, measure_rate


@dataclass(frozen=True)
class SetUp:
    """A pool's options, and how many workers with it run side by side."""

    name: str
    pool: tuple[str, ...]
    workers: int
    #: Messages that RabbitMQ delivers in advance, over all workers.
    window: int
    #: Settings on the command line.
    conf: tuple[str, ...] = ()


class Row(NamedTuple):
    """The text of a row, and the most tasks it is measured with."""

    name: str
    window: str
    most: int | None = None

    @property
    def label(self) -> str:
        """The name with the window."""
        return f"{self.name}, window {self.window}" if self.window else self.name


SET_UPS = (
    SetUp("prefork, 2 processes", ("-c", "2"), 1, 8),
    SetUp("prefork, 2 processes", ("-c", "2", "--prefetch-multiplier", "16"), 1, 32),
    SetUp("threads, 16 in 1 worker", ("-P", "threads", "-c", "16"), 1, 64),
    SetUp("threads, 8 in each of 2 workers", ("-P", "threads", "-c", "8"), 2, 64),
    SetUp("solo, 2 workers", ("-P", "solo"), 2, 8),
    SetUp("gevent, 20 greenlets, no heartbeats", ("-P", "gevent", "-c", "20"), 1, 80, ("broker.heartbeat=0",)),
)
#: On gevent Celery 5.7 waits up to 0.1 s for each message while it sends heartbeats: fewer tasks, and no lateness.
_GEVENT, _SLOW = ("-P", "gevent", "-c", "20"), 200
FULL = {"tasks": 4_000, "rounds": 3, "late": 500}
QUICK = {"tasks": 300, "rounds": 1, "late": 40}
#: Seconds: the delay of retries that come soon, and of those that do not come.
_SOON, _FAR = 1, 7_200
_LATE_RATE = 50.0


@dataclass
class Results:
    """The measurements of each row, by round."""

    rows: dict[Contender, Row]
    retried: dict[Contender, list[Rate]] = field(default_factory=dict)
    parked: dict[Contender, list[Rate]] = field(default_factory=dict)
    late: dict[Contender, Lateness] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)

    def to_json(self, facts: dict[str, str], options: dict[str, int]) -> str:
        """Return the measurements as JSON."""
        found = [
            {
                "row": row.label,
                "retried": [asdict(rate) for rate in self.retried.get(each, [])],
                "parked": [asdict(rate) for rate in self.parked.get(each, [])],
                "late": asdict(self.late[each]) if each in self.late else None,
            }
            for each, row in self.rows.items()
        ]
        return json.dumps({"machine": facts, "options": options, "rows": found, "errors": self.errors}, indent=1) + "\n"


def rows(queue_type: str) -> dict[Contender, Row]:
    """Return the contenders with their rows."""
    kinds = {each.name: each for each in CONTENDERS if each.queue_type == queue_type}
    found = {
        replace(kinds[OURS], pool=each.pool, workers=each.workers, conf=each.conf): Row(each.name, str(each.window))
        for each in SET_UPS
    }
    found |= {kinds[name]: Row(name, "") for name in (DRAMATIQ, TASKIQ, STOCK) if name in kinds}
    found[replace(kinds[OURS], pool=_GEVENT)] = Row("gevent, 20 greenlets", "80", _SLOW)
    found[replace(kinds[STOCK], pool=_GEVENT)] = Row(f"{STOCK}, gevent", "", _SLOW)
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the benchmark; exit code 1 if a measurement failed or a retry is missing."""
    given = _parser().parse_args(arguments)
    options = QUICK if given.quick else FULL
    results = Results(rows(given.queue_type))
    began = time.monotonic()
    with open_broker(rabbitmq=given.rabbitmq) as broker:
        facts = machine(broker.version)
        for number in range(1, options["rounds"] + 1):
            measure(results, broker, options, backward=number % 2 == 0)
        for each, row in results.rows.items():
            if row.most:
                continue
            with noted(results.errors, f"{row.label}, late"):
                asked = Options(0, _SOON, late_tasks=options["late"], late_rate=_LATE_RATE, late_delay=_SOON)
                results.late[each] = measure_lateness(each, broker, asked)
    facts["took"] = f"{(time.monotonic() - began) / 60:.1f} minutes"
    print_tables(terminal(150), tables(results), texts=2)
    print_closing(terminal(150), facts, (*notes(options), *results.errors))
    if given.chart:
        charts.write(panels(results), given.chart)
    if given.docs:
        docs_part.keep("pools", results.to_json(facts, options))
        picture = "Celery's pools side by side", panels(results)
        lines = (*notes(options), *results.errors)
        docs_part.write("operate/choose-a-pool.md", "pools", picture, tables(results), lines, facts, texts=2)
    raise SystemExit(bool(results.errors) or any(each.missing for each in results.late.values()))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks pools", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="small numbers, to check that everything runs")
    parser.add_argument("--queue-type", choices=["classic", "quorum"], default="classic", help="(%(default)s)")
    parser.add_argument("--rabbitmq", default="system", help="system, 3.10, 4.0 or 4.3 (%(default)s)")
    parser.add_argument("--chart", type=Path, metavar="FILE", help="an SVG")
    parser.add_argument("--docs", action="store_true", help="write tables and chart into the documentation")
    return parser


def measure(results: Results, broker: Broker, options: dict[str, int], *, backward: bool) -> None:
    """Measure one round: every second one backward, so that changes of the machine favour no set-up."""
    for each in reversed(results.rows) if backward else results.rows:
        row = results.rows[each]
        tasks = min(options["tasks"], row.most or options["tasks"])
        for kept, delay, failures in ((results.retried, _SOON, 1), (results.parked, _FAR, 0)):
            with noted(results.errors, f"{row.label}, {'retried' if failures else 'parked'}"):
                rate = measure_rate(each, broker, Options(tasks, delay, failures=failures))
                kept.setdefault(each, []).append(rate)
                progress.print(f"{row.label}: {rate.per_second:,.0f} tasks/s, {failures} retries")


def tables(results: Results) -> list[Table]:
    """Return the table: medians over the rounds, with the range of the first figure."""
    head = ["set-up", "window", "retried/s", "parked/s", "worker CPU ms", "peak RSS MB", "late p50", "p99", "max ms"]
    return [("Tasks through one retry", head, [_row(results, each) for each in results.rows])]


def _row(results: Results, each: Contender) -> list[str]:
    retried, parked = results.retried.get(each, []), results.parked.get(each, [])
    rates = [rate.per_second for rate in retried]
    late = results.late.get(each)
    return [
        results.rows[each].name,
        results.rows[each].window,
        f"{median(rates):,.0f} ({min(rates):,.0f}-{max(rates):,.0f})" if rates else "failed",
        _middle(parked, _per_second),
        _middle(retried, lambda rate: rate.worker_cpu, 2),
        _middle(retried, lambda rate: rate.peak_rss),
        *(f"{value:,.0f}" if late and value is not None else "-" for value in _lateness(late)),
    ]


def _middle(rates: Sequence[Rate], of: Callable[[Rate], float], digits: int = 0) -> str:
    return f"{median(map(of, rates)):,.{digits}f}" if rates else "-"


def _per_second(rate: Rate) -> float:
    return rate.per_second


def _lateness(late: Lateness | None) -> tuple[float | None, ...]:
    return (late.p50, late.p99, late.worst) if late else (None,) * 3


def panels(results: Results) -> list[charts.Bars]:
    """Return the panels of the chart."""
    return [
        charts.Bars(
            "Tasks through one retry, per second", _bars(results, results.retried, lambda rate: rate.per_second)
        ),
        charts.Bars("Worker CPU per task, ms", _bars(results, results.retried, lambda rate: rate.worker_cpu, 2)),
    ]


def _bars(
    results: Results, measured: dict[Contender, list[Rate]], of: Callable[[Rate], float], digits: int = 0
) -> list[charts.Bar]:
    bars = []
    for each, row in results.rows.items():
        rates = measured.get(each)
        value = median(map(of, rates)) if rates else None
        text = "failed" if value is None else f"{value:,.{digits}f}"
        bars.append(charts.Bar(row.label, value, text, charts.OURS if each.name == OURS else charts.OTHER))
    return bars


def notes(options: dict[str, int]) -> list[str]:
    """Return the notes for the table."""
    return [
        f"retried/s: {options['tasks']:,} tasks that are there before the workers start fail once and succeed "
        f"{_SOON} s later, from the first attempt to the last; {options['rounds']} rounds, medians (and the range). "
        f"parked/s: as many that fail, and whose retry is far away. On gevent with heartbeats {_SLOW} tasks. "
        "An empty window is the system's own.",
        "CPU: user and system time of all processes of the workers, per task, for failure, retry and success together. "
        "RSS is summed over the processes.",
        f"Late: {options['late']} tasks at {_LATE_RATE:.0f} a second, from the end of the requested delay to the start "
        "of the second attempt, ms.",
    ]


if __name__ == "__main__":
    main()
