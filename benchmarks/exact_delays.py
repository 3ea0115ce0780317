"""Compare exact delays: this package's topologies, Celery's native delayed delivery, and an ETA held by a worker.

    python -m benchmarks exact_delays                              # everything, about 12 minutes
    python -m benchmarks exact_delays --only levels,native --skip parked,drain --rounds 4
    python -m benchmarks exact_delays --rabbitmq 4.3 --parked 20000 --markdown table.md --json runs.json

Three phases: calls with a countdown, contenders in turn; 100,000 parked messages with a running worker, and probes
sent meanwhile; 20,000 messages that are due within one second. Confirms are on for all contenders.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path

import kombu

from benchmarks.brokers import Broker, open_broker
from benchmarks.contenders import Contender
from benchmarks.delays import (
    CALLS,
    CELERY_NATIVE_CLASSIC,
    CONTENDERS,
    ETA,
    LONGEST,
    LOOP,
    LOOP_PARKED,
    OPTIONS,
    PLUGIN,
    PROBES,
    SHORTEST,
    TURNS,
    Publishing,
    measure_drain,
    measure_parked,
    measure_publishing,
)
from benchmarks.delays_report import Results, markdown, print_report
from benchmarks.output import note, noted, progress
from benchmarks.report import machine
from benchmarks.run import fresh
from celery_rmq_delay.exceptions import TopologyError
from celery_rmq_delay.names import Names
from celery_rmq_delay.topology.exact.base import Options
from celery_rmq_delay.topology.exact.registry import make

_PHASES = ("publish", "parked", "drain")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the benchmark."""
    given = _parser().parse_args(arguments)
    contenders = chosen(given.only)
    skipped = _texts(given.skip)
    began = time.monotonic()
    with open_broker(given.broker_url, given.management_url, rabbitmq=given.rabbitmq) as broker:
        facts = machine(broker.version)
        results = Results(contenders)
        if any(each.name == PLUGIN for each in contenders) and not _has_plugin(broker, results):
            contenders = [each for each in contenders if each.name != PLUGIN]
        if "publish" not in skipped:
            _publish(results, contenders, broker, given.rounds)
        if "parked" not in skipped:
            _park(results, contenders, broker, given.parked, given.idle)
        if "drain" not in skipped:
            _drain(results, contenders, broker, given.drain, given.drain_rounds)
    facts["took"] = f"{(time.monotonic() - began) / 60:.1f} minutes"
    notes = _notes(given.rounds)
    print_report(results, facts, notes)
    if given.markdown:
        given.markdown.write_text(markdown(results, facts, notes))
    if given.json:
        options = {name: value for name, value in vars(given).items() if name not in ("json", "markdown")}
        given.json.write_text(json.dumps({"machine": facts, "options": options, **results.as_dict()}, indent=2))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks exact_delays",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rabbitmq", default="system", help="system, 3.10, 4.0 or 4.3 (%(default)s)")
    parser.add_argument("--broker-url", help="a running broker; default: a private one is started")
    parser.add_argument("--management-url", help="its management API, with credentials, to create vhosts")
    parser.add_argument("--rounds", type=int, default=2, help="rounds of publishing, three turns each (%(default)s)")
    parser.add_argument("--drain-rounds", type=int, default=1, help="rounds of messages due together (%(default)s)")
    parser.add_argument("--parked", type=int, default=100_000, help="parked messages (%(default)s)")
    parser.add_argument("--idle", type=float, default=30, help="seconds to measure them while they wait (%(default)s)")
    parser.add_argument("--drain", type=int, default=20_000, help="messages due within a second (%(default)s)")
    parser.add_argument("--only", metavar="TEXT,TEXT", help="only contenders whose name contains one of these texts")
    parser.add_argument("--skip", metavar="PHASE,PHASE", default="", help=f"omit phases: {', '.join(_PHASES)}")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--markdown", type=Path, metavar="FILE")
    return parser


def _texts(given: str | None) -> list[str]:
    return [text.strip() for text in (given or "").split(",") if text.strip()]


def chosen(only: str | None) -> list[Contender]:
    """Return the contenders whose names contain one of the texts; all without texts."""
    texts = _texts(only)
    found = [each for each in CONTENDERS if not texts or any(text.lower() in each.name.lower() for text in texts)]
    if not found:
        raise SystemExit(f"No contender matches {only}. Use one of: {'; '.join(each.name for each in CONTENDERS)}")
    return found


def _has_plugin(broker: Broker, results: Results) -> bool:
    contender = next(each for each in CONTENDERS if each.name == PLUGIN)
    topology = make("plugin", Options(Names("benchmark"), "benchmark.exhausted"))
    with (
        fresh(contender, broker, OPTIONS, with_times=False) as (run, _vhost),
        kombu.Connection(run.env["BENCHMARK_BROKER_URL"]) as connection,
    ):
        try:
            topology.check(connection)
        except TopologyError:
            note(results.errors, f"{PLUGIN}: left out, as this broker has no rabbitmq_delayed_message_exchange")
            return False
    return True


def _publish(results: Results, contenders: Sequence[Contender], broker: Broker, rounds: int) -> None:
    progress.print(f"publish: {len(contenders)} contenders, {rounds * TURNS} turns of {CALLS} calls each")
    results.publishing = {each: Publishing() for each in contenders}
    with noted(results.errors, "publish"):
        measure_publishing(contenders, broker, rounds, results.publishing)


def _park(results: Results, contenders: Sequence[Contender], broker: Broker, count: int, idle: float) -> None:
    for contender in contenders:
        if contender.name == CELERY_NATIVE_CLASSIC:
            continue  # it waits as `levels` does
        parked = min(count, LOOP_PARKED) if contender.name == LOOP else count
        with noted(results.errors, f"{contender.name}, parked"):
            found = results.parked[contender] = measure_parked(contender, broker, parked, idle)
            progress.print(
                f"parked {contender.name}: {found.broker_bytes:,.0f} bytes each, worker {found.worker_mb:+.1f} MB, "
                f"{found.lateness.missing} probes missing"
            )


def _drain(results: Results, contenders: Sequence[Contender], broker: Broker, count: int, rounds: int) -> None:
    for number in range(1, rounds + 1):
        for contender in contenders:
            if contender.name == ETA:
                continue  # its messages are in the worker's memory
            with noted(results.errors, f"{contender.name}, drain"):
                drained, hops = measure_drain(contender, broker, count)
                results.drains.setdefault(contender, []).append(drained)
                results.hops[contender] = hops
                progress.print(f"drain, round {number} {contender.name}: {drained.seconds:.2f} s")


def _notes(rounds: int) -> list[str]:
    return [
        f"Publishing: `apply_async(countdown=)` one at a time, delays of {SHORTEST} to {LONGEST} s, confirms on; "
        f"contenders in turn, {rounds * TURNS} turns of {CALLS} calls, medians (and the range). Ratios of "
        "publishing are medians over turns that followed each other.",
        f"Parked: delays of two to four hours, one worker of two processes; at most {LOOP_PARKED:,} in the loop. Bytes "
        "are what the Erlang VM has allocated after a collection of all garbage; MB are of the worker's main process. "
        "Most are copies of called ones; Celery's enter at their own level, not through the exchanges above it.",
        f"Lateness: {PROBES:,} calls with delays of 1 to 10 s at 200/s meanwhile, from the asked time, and from that "
        "rounded up to the unit of 1 s, to the start of the task. Celery's levels round down, and its worker holds the "
        "rest.",
        "Due together: seconds from the start of the second in which all are due to the last one's arrival in its "
        "queue. Hops are the delay queues that a delay of 1 to 15 s passes, by x-death; a loop leaves none, and turns "
        "once a second.",
    ]


if __name__ == "__main__":
    main()
