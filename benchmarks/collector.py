"""Measure how fast ``manage.py rmq_delay_collect`` moves events and exhausted messages from RabbitMQ into a database.

    python -m benchmarks collector [--postgres] [--sqlite] [--no-search] [--events 50000] [--rabbitmq 4.3]

Uses real servers: a private RabbitMQ, and a private PostgreSQL that flushes every commit to disk. The queues are filled
first, with the messages of an outage (`collected_tasks`); then one collector empties them. Time is measured from its
log line that it collects to its end. CPU is per message; that of the broker excludes the filling. ``--no-search`` also
measures without the index of messages and arguments, in turns.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import kombu

from benchmarks.brokers import Broker, open_broker
from benchmarks.collected_tasks import outage_messages
from benchmarks.output import print_closing, print_tables, terminal
from benchmarks.processes import usage
from benchmarks.report import machine
from benchmarks.run import RunError
from tests.support.servers.postgres import PrivatePostgres

PROJECT = Path(__file__).parents[1] / "example_django_project"
QUEUES = ("rmq_delay.events", "rmq_delay.exhausted")
#: Messages per second that the collector is to reach.
AIMS = {"PostgreSQL": 5_000, "SQLite": 1_500}
_LONGEST = 150.0
_DROP_SEARCH = """
from django.db import connection
from celery_rmq_delay.contrib.django.models import search
search.drop(connection)
"""


@dataclass(frozen=True)
class Target:
    """A database: the environment to use it, and its process, to measure the CPU."""

    kind: str
    environ: dict[str, str]
    pid: int | None = None
    has_search: bool = True

    @property
    def name(self) -> str:
        """The name in the table."""
        return self.kind if self.has_search else f"{self.kind}, no search"


@dataclass(frozen=True)
class Result:
    """One run. CPU in microseconds per message; None for a process that cannot be accessed."""

    target: Target
    messages: int
    exhausted: int
    seconds: float
    collector: float
    database: float | None
    broker: float | None
    load: str

    @property
    def rate(self) -> float:
        """Messages per second."""
        return self.messages / self.seconds


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the benchmark and print its table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--postgres", action="store_true", help="measure PostgreSQL (default: both)")
    parser.add_argument("--sqlite", action="store_true", help="measure SQLite (default: both)")
    parser.add_argument("--no-search", action="store_true", help="measure without the index of the search, too")
    parser.add_argument("--events", type=int, default=50_000)
    parser.add_argument("--batch", type=int, default=1_000)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--rabbitmq", default="system")
    given = parser.parse_args(arguments)
    both = given.postgres == given.sqlite
    wanted = [name for name, asked in (("PostgreSQL", given.postgres), ("SQLite", given.sqlite)) if asked or both]
    with open_broker(rabbitmq=given.rabbitmq) as broker:
        facts = machine(broker.version)
        results = []
        for name, has_search in product(wanted * given.rounds, [True, False] if given.no_search else [True]):
            with database(name, has_search) as target:
                results.append(measure(broker, target, given.events, given.batch))
    _print(results, facts)


@contextmanager
def database(kind: str, has_search: bool = True) -> Iterator[Target]:
    """Start a database server, or create a file, with the tables of the shop."""
    with ExitStack() as stack:
        if kind == "SQLite":
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            target = Target(kind, {"SQLITE_PATH": str(Path(folder) / "shop.sqlite3")}, None, has_search)
        else:
            server = stack.enter_context(PrivatePostgres(durable=True))
            found = server.django_database()
            names = {"HOST": "HOST", "PORT": "PORT", "DB": "NAME", "USER": "USER", "PASSWORD": "PASSWORD"}
            environ = {f"POSTGRES_{key}": found[value] for key, value in names.items()}
            target = Target(kind, environ, server.pid, has_search)
        _manage(target, "", "migrate", "-v0")
        if not has_search:
            _manage(target, "", "shell", "-v0", "-c", _DROP_SEARCH)
        yield target


def environ_of(target: Target, broker_url: str) -> dict[str, str]:
    """Return the environment of a command of the shop."""
    path = str(PROJECT.parent)
    return {**os.environ, "PYTHONPATH": path, "BROKER_URL": broker_url, **target.environ}


def _manage(target: Target, broker_url: str, *command: str) -> str:
    done = subprocess.run(
        [sys.executable, PROJECT / "manage.py", *command],
        env=environ_of(target, broker_url),
        capture_output=True,
        text=True,
        timeout=_LONGEST,
    )
    if done.returncode:
        raise RunError(f"manage.py {' '.join(command)} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    return done.stdout


def measure(broker: Broker, target: Target, events: int, batch: int) -> Result:
    """Fill the queues, let a collector empty them, and check that everything is in the tables."""
    vhost = f"collector-{uuid.uuid4().hex[:8]}"
    url = broker.add_vhost(vhost)
    try:
        sent = _fill(url, events)
        load = " ".join(f"{each:.1f}" for each in os.getloadavg())
        before = [_cpu(pid) for pid in (target.pid, broker.pid)]
        seconds, collector = _collect(target, url, batch)
        after = [_cpu(pid) for pid in (target.pid, broker.pid)]
        _check(target, url, sent)
    finally:
        broker.delete_vhost(vhost)
    messages = sum(sent.values())
    each = [None if a is None or b is None else (b - a) / messages * 1e6 for a, b in zip(before, after, strict=True)]
    return Result(target, messages, sent[QUEUES[1]], seconds, collector / messages * 1e6, each[0], each[1], load)


def _cpu(pid: int | None) -> float | None:
    return None if pid is None else usage(pid).cpu


def _fill(url: str, events: int) -> Counter[str]:
    sent: Counter[str] = Counter()
    with kombu.Connection(url) as connection:
        channel: Any = connection.channel()
        for queue in QUEUES:
            channel.queue_declare(queue, durable=True, auto_delete=False)
        for queue, message in outage_messages(events, QUEUES):
            channel.basic_publish(message, "", queue)
            sent[queue] += 1
        while any(channel.queue_declare(queue, passive=True).message_count < sent[queue] for queue in QUEUES):
            time.sleep(0.1)
    return sent


def _collect(target: Target, url: str, batch: int) -> tuple[float, float]:
    """Run the collector; return the seconds that it took, and its CPU seconds."""
    command = [sys.executable, PROJECT / "manage.py", "rmq_delay_collect", "--once", "--batch", str(batch)]
    cpu = 0.0
    output: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with subprocess.Popen(command, env=environ_of(target, url), **output) as process:
        assert process.stdout is not None
        if not any("Collecting from" in line for line in process.stdout):
            raise RunError("The collector has ended without the log line that it collects.")
        begun, booted = time.perf_counter(), usage(process.pid).cpu
        while process.poll() is None and time.perf_counter() - begun < _LONGEST:
            cpu = max(cpu, usage(process.pid).cpu)
            time.sleep(0.01)
        seconds = time.perf_counter() - begun
        process.kill()
    if process.returncode:
        raise RunError(f"The collector ended with {process.returncode} after {seconds:.0f} s.")
    return seconds, cpu - booted


_COUNT = """
from django.db.models import Sum
from celery_rmq_delay.contrib.django.models import *
counters = ("parked", "recovered", "exhausted")
counted = sum(Tally.objects.aggregate(**{name: Sum(name) for name in counters}).values())
print(Attempt.objects.count() + CountedRollup.objects.count(), counted + CountedRollup.objects.count(),
      Payload.objects.count(), UnreadableMessage.objects.count())
"""


def _check(target: Target, url: str, sent: Counter[str]) -> None:
    found = _manage(target, url, "shell", "-v0", "-c", _COUNT).split()
    expected = [str(sent[QUEUES[0]]), str(sent[QUEUES[0]]), str(sent[QUEUES[1]]), "0"]
    if found != expected:
        raise RunError(f"The tables have {found} events, counts, messages, unreadable ones; expected {expected}.")


def _print(results: Sequence[Result], facts: dict[str, str]) -> None:
    head = ("database", "messages", "exhausted", "seconds", "messages/s", "aim")
    head += ("collector µs", "database µs", "broker µs", "load")
    rows = []
    for each in results:
        cpu = ("" if found is None else f"{found:.0f}" for found in (each.collector, each.database, each.broker))
        counts = f"{each.messages:,}", f"{each.exhausted:,}", f"{each.seconds:.1f}", f"{each.rate:,.0f}"
        rows.append([each.target.name, *counts, f"{AIMS[each.target.kind]:,}", *cpu, each.load])
    console = terminal(160)
    print_tables(console, [("Collecting", head, rows)])
    print_closing(console, facts, ())


if __name__ == "__main__":
    main()
