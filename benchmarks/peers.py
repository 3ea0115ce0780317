"""Compare this package with four others, each configured as in its documentation, and with a bare loop over its ladder.

    python -m benchmarks peers                                  # 25 minutes on a quiet machine
    python -m benchmarks peers --quick                          # a few minutes, to check that everything runs
    python -m benchmarks peers --rabbitmq 4.3 --docs            # and write table and chart into the documentation
    python -m benchmarks peers --from peers.json --docs         # the same from an earlier run's --json
    python -m benchmarks peers --only dramatiq --skip killed --json peers.json --chart peers.svg

Same tasks, one broker, two processes each. Four phases: tasks that fail once and succeed (contenders in alternating
order); lateness of retries; the effect of 10,000 and 100,000 waiting tasks on a worker and on fresh tasks; and tasks
lost or executed twice when the worker, or one of its processes, is killed with SIGKILL. If a peer does not support
something, the result states the reason.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import charts, docs_part
from benchmarks.brokers import Broker, open_broker
from benchmarks.contenders import FLOORS, OURS, PEERS, Contender
from benchmarks.output import note, noted, print_closing, print_tables, progress, terminal
from benchmarks.peers_measures import KILLS, PATIENCE, measure_killed, measure_parked
from benchmarks.peers_report import Results, from_json, panels, tables
from benchmarks.report import machine
from benchmarks.run import Options, measure_lateness, measure_rate

_PHASES = ("retries", "late", "parked", "killed")
#: Options of a full run, and of ``--quick``, which omits the second rows of contenders that have two.
FULL = {"tasks": 4_000, "rounds": 3, "late": 200, "late_delay": 10, "few": 10_000, "many": 100_000, "killed": 1_000}
QUICK = {"tasks": 600, "rounds": 1, "late": 50, "late_delay": 2, "few": 300, "many": 3_000, "killed": 150}
_TWICE = [each for each in (*PEERS, *FLOORS) if each.name in (OURS, FLOORS[0].name) and each.queue_type == "quorum"]
#: How many times as many tasks the bare loop gets as the others: otherwise the delay would be most of its time.
_FLOOR_TASKS = 4
#: Seconds: the delay of retries that come soon, of retries while tasks are killed, and of retries that do not come.
_SOON, _WHILE_KILLED, _FAR = 1, 3, 7_200
#: Seconds that an attempt sleeps while workers are killed, so that some are killed during an attempt.
_WORK = 0.004
_LATE_RATE = 50.0


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the benchmark, or report the results of an earlier run."""
    given = _parser().parse_args(arguments)
    results = from_json(given.earlier.read_text()) if given.earlier else _measure(given)
    console = terminal(180)
    print_tables(console, tables(results), texts=2)
    print_closing(console, results.machine, (*notes(results.options), *results.errors))
    if given.json:
        given.json.write_text(results.to_json())
    if given.chart:
        charts.write(panels(results), given.chart)
    if given.docs:
        _write_docs(results)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks peers", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="small numbers, to check that everything runs")
    parser.add_argument("--rabbitmq", default="system", help="system, 3.10, 4.0 or 4.3 (%(default)s)")
    parser.add_argument("--rounds", type=int, help="rounds of the first phase")
    parser.add_argument("--tasks", type=int, help="tasks of the first phase, in each round")
    parser.add_argument(
        "--only", nargs="+", metavar="TEXT", help="only contenders whose NAME/QUEUE contains one of these"
    )
    parser.add_argument("--skip", nargs="+", default=[], choices=_PHASES, help="omit phases")
    parser.add_argument("--from", dest="earlier", type=Path, metavar="FILE", help="report an earlier run's --json")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--chart", type=Path, metavar="FILE", help="an SVG")
    parser.add_argument("--docs", action="store_true", help="write results, table and chart into the documentation")
    return parser


def _measure(given: argparse.Namespace) -> Results:
    options: dict[str, Any] = dict(QUICK if given.quick else FULL)
    options |= {name: value for name in ("rounds", "tasks") if (value := getattr(given, name))}
    everyone = [each for each in (*PEERS, *FLOORS) if not given.quick or each not in _TWICE]
    chosen = [each for each in everyone if not given.only or any(text in each.key for text in given.only)]
    if not chosen:
        raise SystemExit(f"No contender matches {given.only}. Use one of: {', '.join(each.key for each in PEERS)}")
    phases = {"retries": _retries, "late": _late, "parked": _parked, "killed": _killed}
    began = time.monotonic()
    with open_broker(rabbitmq=given.rabbitmq) as broker:
        results = Results(machine(broker.version), {**options, "form": "quick" if given.quick else "full"})
        for name, phase in phases.items():
            if name not in given.skip:
                phase(results, chosen, broker)
                progress.print(f"{name}: done after {(time.monotonic() - began) / 60:.1f} minutes")
    results.machine["took"] = f"{(time.monotonic() - began) / 60:.1f} minutes"
    return results


def _retries(results: Results, chosen: Sequence[Contender], broker: Broker) -> None:
    tasks, rounds = results.options["tasks"], results.options["rounds"]
    for number in range(1, rounds + 1):
        for each in chosen if number % 2 else reversed(chosen):  # changes of the machine must not favour a contender
            rate = None
            with noted(results.errors, f"{each.key}, retries"):
                of_it = tasks * _FLOOR_TASKS if each in FLOORS else tasks
                rate = measure_rate(each, broker, _options(of_it, _SOON, failures=1))
                progress.print(f"round {number} {each.key}: {rate.per_second:,.0f} tasks/s")
            results.retries.setdefault(each, []).append(rate)


def _late(results: Results, chosen: Sequence[Contender], broker: Broker) -> None:
    for each in chosen:
        with noted(results.errors, f"{each.key}, late"):
            options = Options(0, _FAR, results.options["late"], _LATE_RATE, results.options["late_delay"])
            late = results.lateness[each] = measure_lateness(each, broker, options)
            progress.print(f"late {each.key}: p99 {late.p99 or 0:.0f} ms, {late.missing} missing")


def _parked(results: Results, chosen: Sequence[Contender], broker: Broker) -> None:
    for each in _systems(chosen):
        with noted(results.errors, f"{each.key}, parked"):
            options = _options(results.options["few"], _FAR)
            found = results.parked[each] = measure_parked(each, broker, options, results.options["many"])
            if found.trouble:
                note(results.errors, f"{each.key}, {found.few:,} tasks that fail: {found.trouble}")
            beside = found.beside_few
            progress.print(f"parked {each.key}: {found.parked_mb:.0f} MB, {beside.missing} of {beside.tasks} missing")


def _killed(results: Results, chosen: Sequence[Contender], broker: Broker) -> None:
    options = _options(results.options["killed"], _WHILE_KILLED, failures=1, work=_WORK)
    for victim in ("worker",) if results.options["form"] == "quick" else KILLS:
        for each in _systems(chosen):
            with noted(results.errors, f"{each.key}, {victim} killed"):
                found = measure_killed(each, broker, options, victim)
                results.killed.setdefault(each, []).append(found)
                progress.print(f"{victim} killed {each.key}: {found.lost} lost, {found.twice} twice")


def _options(tasks: int, delay: int, *, failures: int = 0, work: float = 0.0) -> Options:
    return Options(tasks, delay, failures=failures, work=work)


def _systems(chosen: Sequence[Contender]) -> list[Contender]:
    return [each for each in chosen if each in PEERS]


def notes(options: dict[str, Any]) -> list[str]:
    """Return the notes for the tables."""
    return [
        f"{options['form'].capitalize()} form. Every worker has two processes, no result backend, and logs warnings; "
        "its prefetch is its system's own. With threads, these are two workers of 8 threads, as many as dramatiq's. "
        "CPU is user and system time per task: failure, retry and success together. RSS is "
        "summed over the processes; other MB are PSS, where a page that several share counts once.",
        f"Through one retry: {options['tasks']:,} tasks that are there before the worker starts fail once and succeed "
        f"{_SOON} s later; from the first attempt to the last one. {options['rounds']} rounds, medians (and the "
        f"range); ratios are medians over rounds. The bare loop gets {_FLOOR_TASKS} times as many tasks.",
        f"Late: {options['late']} tasks at {_LATE_RATE:.0f} a second, asked for {options['late_delay']} s.",
        f"Wait: {options['few']:,} tasks failed in the worker; up to {options['many']:,} are copies of one of them, "
        f"and a new worker is measured. Fresh tasks come ten a second, and get {PATIENCE:.0f} s.",
        f"Killed: {options['killed']:,} tasks that fail once, {_WHILE_KILLED} s to the retry; the whole worker at "
        f"{_shares('worker')} % of the tasks' attempts, or one of its processes at {_shares('child')} %. Whatever "
        "ends is started again, as a supervisor does it.",
    ]


def _shares(victim: str) -> str:
    return ", ".join(f"{share:.0%}".rstrip("%") for share in KILLS[victim])


def _write_docs(results: Results) -> None:
    version = ".".join(results.machine["RabbitMQ"].split(".")[:2])
    name = f"peers-{version}"
    docs_part.keep(name, results.to_json())
    picture = "The systems side by side", panels(results)
    lines = (*notes(results.options), *(each.splitlines()[0].rstrip(":") for each in results.errors))
    docs_part.write("contributing/peers.md", name, picture, tables(results), lines, results.machine, texts=2)


if __name__ == "__main__":
    main()
