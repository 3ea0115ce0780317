"""Measure the lateness of retries on each of Celery's pools: steady failing tasks, pools and types of queue in turn.

    python -m benchmarks pools                               # 3 rounds of 500 tasks at 50 a second, about 10 minutes
    python -m benchmarks pools --tasks 1000 --rounds 1 --rabbitmq-root .cache/brokers/4.3

Every task fails once and is retried after a second. Lateness is the start of its second attempt minus the end of the
first one minus that second. Prints the 50th and 99th percentile and the maximum, in ms, each of the worst round.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.brokers import open_broker
from benchmarks.contenders import CONTENDERS, OURS, Contender
from benchmarks.report import machine
from benchmarks.run import Lateness, Options, measure_lateness

#: Pools and their concurrency. On gevent Celery keeps a slot busy for 0.1 s, independent of the task.
POOLS = {"prefork": 2, "threads": 2, "solo": 1, "gevent": 100}


@dataclass(frozen=True)
class OnPool(Contender):
    """This package's worker on a pool other than prefork."""

    pool: str = "prefork"

    def worker_command(self, log_level: str, dramatiq_threads: int) -> list[str]:
        """Return the command of a worker with this pool."""
        command = super().worker_command(log_level, dramatiq_threads)
        return [*command, "--pool", self.pool, "--concurrency", str(POOLS[self.pool])]


def contenders() -> list[OnPool]:
    """Return one contender for each pool and type of queue."""
    ours = [each for each in CONTENDERS if each.name == OURS]
    return [OnPool(each.name, each.module, each.mode, each.queue_type, pool=pool) for pool in POOLS for each in ours]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the benchmark; exit code 1 if a retry is missing."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks pools", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tasks", type=int, default=500, help="failing tasks per run (%(default)s)")
    parser.add_argument("--rate", type=float, default=50, help="tasks per second (%(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each combination (%(default)s)")
    parser.add_argument("--broker-url", help="a running broker; default: a private one is started")
    parser.add_argument("--management-url", help="its management API, with credentials, to create vhosts")
    parser.add_argument("--rabbitmq-root", help="a tree with another RabbitMQ for the private broker (needs root)")
    given = parser.parse_args(arguments)
    options = Options(tasks=0, delay=1, late_tasks=given.tasks, late_rate=given.rate, late_delay=1)
    found: dict[OnPool, list[Lateness]] = {each: [] for each in contenders()}
    with open_broker(given.broker_url, given.management_url, given.rabbitmq_root) as broker:
        facts = machine(broker.version)
        for number in range(1, given.rounds + 1):
            for contender, rounds in found.items():
                rounds.append(measure_lateness(contender, broker, options))
                print(f"round {number} {contender.pool}/{contender.queue_type}: {rounds[-1]}", file=sys.stderr)
    for name, fact in facts.items():
        print(f"{name}: {fact}")
    print(f"{'pool':10}{'queue':10}{'p50 ms':>10}{'p99 ms':>10}{'worst ms':>10}{'missing':>10}")
    for contender, rounds in found.items():
        figures = [max(getattr(each, name) or 0.0 for each in rounds) for name in ("p50", "p99", "worst")]
        missing = sum(each.missing for each in rounds)
        cells = "".join(f"{figure:10.1f}" for figure in figures)
        print(f"{contender.pool:10}{contender.queue_type:10}{cells}{missing:10}")
    raise SystemExit(any(each.missing for rounds in found.values() for each in rounds))
