"""Measure the cost of events for a worker: CPU per failing attempt with and without events, in turns, in one run.

    python -m benchmarks events_cost                         # 12 pairs of 2,000 tasks on classic queues
    python -m benchmarks events_cost --queue-type quorum --pairs 6 --rabbitmq-root .cache/brokers/4.0

Every task fails and is rejected into a delay queue, as in `retry_roundtrip`; its event is published. A pair is two
runs, one with and one without events, in alternating order. Prints the CPU of the worker's process tree per
attempt (user + system, ms), the median of the pairs' ratios and its 95 % interval (bootstrap over the pairs).
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
from collections.abc import Sequence

from benchmarks.brokers import open_broker
from benchmarks.contenders import WITH_EVENTS, WITHOUT_EVENTS, Contender
from benchmarks.run import Options, measure_rate

_RESAMPLES = 10_000


def interval(values: Sequence[float], seed: int = 1) -> tuple[float, float]:
    """Return the 95 % bootstrap interval of the median of ``values``."""
    draw = random.Random(seed)
    medians = sorted(statistics.median(draw.choices(values, k=len(values))) for _ in range(_RESAMPLES))
    return medians[int(0.025 * _RESAMPLES)], medians[int(0.975 * _RESAMPLES)]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks events_cost",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--tasks", type=int, default=2_000, help="failing tasks per run (%(default)s)")
    parser.add_argument("--pairs", type=int, default=12, help="pairs of runs (%(default)s)")
    parser.add_argument("--queue-type", choices=["classic", "quorum"], default="classic")
    parser.add_argument("--broker-url", help="a running broker; default: a private one is started")
    parser.add_argument("--management-url", help="its management API, with credentials, to create vhosts")
    parser.add_argument("--rabbitmq-root", help="a tree with another RabbitMQ for the private broker (needs root)")
    given = parser.parse_args(arguments)
    options = Options(tasks=given.tasks, delay=3600)
    off, on = WITHOUT_EVENTS[given.queue_type], WITH_EVENTS[given.queue_type]
    cpu: dict[Contender, list[float]] = {off: [], on: []}
    rate: dict[Contender, list[float]] = {off: [], on: []}
    with open_broker(given.broker_url, given.management_url, given.rabbitmq_root) as broker:
        print(f"RabbitMQ {broker.version}, {given.queue_type}, {given.pairs} pairs of {given.tasks:,} tasks")
        for pair in range(given.pairs):
            for contender in (off, on) if pair % 2 else (on, off):
                found = measure_rate(contender, broker, options)
                cpu[contender].append(found.worker_cpu)
                rate[contender].append(found.per_second)
            print(f"pair {pair + 1}: {cpu[off][-1]:.3f} ms without, {cpu[on][-1]:.3f} ms with", file=sys.stderr)
    for contender in (off, on):
        medians = statistics.median(cpu[contender]), statistics.median(rate[contender])
        print(f"{contender.name:40}{medians[0]:8.3f} ms CPU per attempt{medians[1]:10,.0f} parked/s")
    ratios = [one / other for one, other in zip(cpu[on], cpu[off], strict=True)]
    low, high = interval(ratios)
    print(f"CPU with events / without: {statistics.median(ratios):.3f} (95 %: {low:.3f} to {high:.3f})")


if __name__ == "__main__":
    main()
