"""Measure growth and drain rate with a million parked tasks on one broker, and in an hour of steady failures.

    python -m benchmarks long-haul --docs                      # a million, classic and quorum: half an hour each
    python -m benchmarks long-haul --messages 20000 --queue-type classic --hold 10 --reject-minutes 1
    python -m benchmarks long-haul --soak 1h --docs            # instead of the million
    python -m benchmarks long-haul --from haul.json --chart haul.svg

The million: a worker of two processes rejects as many tasks as it can in ``--reject-minutes``; the rest is published
into the delay queue, confirmed, and due together with the last rejected task. Then all wait, return and are executed.
The soak: tasks fail none to four times, one in five until it is exhausted, with a collector and PostgreSQL.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import kombu

from benchmarks import charts, docs_part
from benchmarks.brokers import Broker, open_broker
from benchmarks.collector import PROJECT, database, environ_of
from benchmarks.contenders import ONCE, SOAK, TASK_QUEUES
from benchmarks.copies import Copies, Template
from benchmarks.long_haul_report import Record, from_json, most_per_second, panels, tables
from benchmarks.output import print_closing, print_tables, progress, terminal
from benchmarks.processes import end
from benchmarks.report import machine
from benchmarks.run import Options, Run, RunError, fresh, measure_rate, when_idle
from benchmarks.sampler import Sampler
from celery_rmq_delay.durations import parse_ms

#: Tasks after which a worker is warm, and tasks for measuring how fast it rejects.
_WARM = 2_000
#: Messages in the worker's queue while it is fed, and messages added at once.
_BACKLOG, _CHUNK = 4_000, 500
#: Confirmed messages per second that a delay queue certainly accepts.
_PUBLISHED = 2_500
#: Share of the measured reject rate that is assumed: the worker is fed and measured meanwhile.
_SURELY = 0.8
#: Seconds without a change after which no more changes are expected.
_STALLED = 120.0
#: Tasks per second in the soak.
_STEADY = 40.0
#: Quorum queues also keep their write-ahead log in memory, up to 512 MiB: a cycle of 20 minutes that hides any growth.
_SHORT_LOG = "raft.wal_max_size_bytes = 33554432"
_PACKAGES = ("celery-rmq-delay", "celery", "kombu", "amqp")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the benchmark, or report the results of an earlier run."""
    given = _parser().parse_args(arguments)
    if given.earlier:
        found = (from_json(given.earlier.read_text()) for _ in range(1))
    elif given.soak:
        found = (soak(given.soak, given.rabbitmq, given.queue_type or "quorum") for _ in range(1))
    else:
        kinds = [given.queue_type] if given.queue_type else ["classic", "quorum"]
        found = (haul(kind, given) for kind in kinds)
    for record in found:
        _report(record, given)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks long-haul", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--messages", type=int, default=1_000_000, help="tasks to park (%(default)s)")
    parser.add_argument("--queue-type", choices=["classic", "quorum"], help="default: both; of the soak: quorum")
    parser.add_argument(
        "--reject-minutes", type=float, default=15, help="minutes for the worker to reject (%(default)s)"
    )
    parser.add_argument("--hold", type=int, default=60, help="seconds to measure while all of them wait (%(default)s)")
    parser.add_argument("--soak", type=_seconds, metavar="TIME", help="such as 1h or 30m, instead of parking")
    parser.add_argument("--rabbitmq", default="system", help="system, 3.10, 4.0 or 4.3 (%(default)s)")
    parser.add_argument("--from", dest="earlier", type=Path, metavar="FILE", help="report an earlier run's --json")
    parser.add_argument("--json", type=Path, metavar="FILE", help="{} in it becomes the name of the run")
    parser.add_argument("--chart", type=Path, metavar="FILE", help="an SVG; {} as above")
    parser.add_argument("--docs", action="store_true", help="write results, tables and chart into the documentation")
    return parser


def _seconds(text: str) -> float:
    return parse_ms(text, "--soak") / 1000


def haul(kind: str, given: argparse.Namespace) -> Record:
    """Park ``given.messages`` tasks on a new broker, measure, and wait until they have returned."""
    began = time.monotonic()
    contender = ONCE[kind]
    with open_broker(rabbitmq=given.rabbitmq) as broker:
        rate = measure_rate(contender, broker, Options(_WARM, 3600)).per_second * _SURELY
        by_worker = min(given.messages, int(rate * 60 * given.reject_minutes))
        # The first one must not be due before all of them are parked and measured.
        delay = int((by_worker / rate + (given.messages - by_worker) / _PUBLISHED) * 1.3) + given.hold + 30
        record = Record(kind, machine(broker.version, _PACKAGES))
        options = Options(0, delay)
        progress.print(f"{kind}: the worker rejects {by_worker:,}, due after {delay} s")
        with (
            fresh(contender, broker, options, with_times=False) as (run, vhost),
            _fed(run) as template,
            run.worker() as worker,
            Sampler(run, broker, worker.pid) as sampler,
        ):
            _park(run, sampler, template, given, by_worker, lambda: _tier(broker, vhost))
            _drain(run, sampler, worker)
            record = replace(record, samples=sampler.samples, marks=sampler.marks, facts=sampler.facts)
    record.machine["took"] = f"{(time.monotonic() - began) / 60:.1f} minutes"
    return record


@contextmanager
def _fed(run: Run) -> Iterator[Template]:
    """Publish one task, consume it as a template, and leave its queue empty."""
    run.publish(1)
    with kombu.Connection(run.env["BENCHMARK_BROKER_URL"]) as connection:
        channel: Any = connection.channel()
        message = channel.basic_get("work", no_ack=True)
    if message is None:
        raise RunError("the task that was published is not in its queue")
    yield Template(message, "", "work")


def _tier(broker: Broker, vhost: str) -> str:
    """Return the name of the first delay queue."""
    return next(name for name in broker.messages(vhost) if name.startswith(f"{TASK_QUEUES[0]}.retry.1."))


def _park(
    run: Run,
    sampler: Sampler,
    template: Template,
    given: argparse.Namespace,
    by_worker: int,
    delay_queue: Callable[[], str],
) -> None:
    """Let the worker reject its part, publish the rest, and wait until the first task is due."""
    url, messages = run.env["BENCHMARK_BROKER_URL"], given.messages
    first = time.monotonic()
    warm = min(_WARM, by_worker)
    _feed(run, url, template, warm, 0)
    _wait(lambda: run.progress().attempts, warm)
    when_idle(sampler.worker)
    sampler.watch(delay_queue())
    sampler.mark("warm")
    began, limit = time.monotonic(), first + run.options.delay - given.hold - 30
    # Tasks that the worker does not reject in time are published, too.
    fed = _feed(run, url, template, by_worker - warm, warm, until=lambda left: limit - left / _PUBLISHED, of=messages)
    rejected = warm + fed
    _wait(lambda: run.progress().attempts, rejected)
    last = time.monotonic()
    sampler.facts["reject_rate"] = fed / (last - began)
    sampler.mark("rejected")
    sampler.facts |= {"messages": messages, "rejected": rejected, "published": messages - rejected}
    if messages > rejected:
        _fill(url, _into(template, sampler.delay_queue), messages - rejected, last + run.options.delay)
        sampler.facts["publish_rate"] = (messages - rejected) / (time.monotonic() - last)
    sampler.mark("parked")
    late = time.monotonic() - first - run.options.delay
    if late > 0:
        raise RunError(f"parking took {late:.0f} s longer than the first task's delay: use fewer --reject-minutes")
    time.sleep(-late)
    sampler.mark("due")


def _into(template: Template, queue: str) -> Template:
    """Return the template for a queue, as a task that was rejected once: it succeeds when it returns."""
    template.message.properties["application_headers"]["retries"] = 1
    return template._replace(routing_key=queue)


def _feed(
    run: Run,
    url: str,
    template: Template,
    count: int,
    done: int,
    until: Callable[[int], float] | None = None,
    of: int = 0,
) -> int:
    """Publish copies as fast as the worker rejects them; ``done``: rejected before. Return how many.

    ``until`` returns the end (monotonic seconds) for the number of remaining tasks.
    """
    fed = 0
    with Copies(url) as copies:
        while fed < count and (until is None or time.monotonic() < until(of - done - fed)):
            if done + fed - run.progress().attempts > _BACKLOG:
                time.sleep(0.02)
                continue
            chunk = min(_CHUNK, count - fed)
            for _ in range(chunk):
                copies.publish(template)
            fed += chunk
    return fed


def _fill(url: str, template: Template, count: int, due: float) -> None:
    """Publish copies that are due together (monotonic seconds)."""
    with Copies(url) as copies:
        for _ in range(count):
            copies.publish(template, expiration=str(int((due - time.monotonic()) * 1000)))


def _drain(run: Run, sampler: Sampler, worker: subprocess.Popen[bytes]) -> None:
    """Wait until all tasks are done; record how fast they returned and were done."""
    facts = sampler.facts
    began, before = time.monotonic(), run.progress().attempts
    try:
        _wait(lambda: run.progress().attempts, facts["rejected"] + facts["messages"], worker)
    except RunError as error:
        progress.print(str(error))
    attempts = run.progress().attempts
    facts["done"] = attempts - facts["rejected"]
    facts["done_rate"] = (attempts - before) / (time.monotonic() - began)
    sampler.mark("done")
    facts["return_rate"] = most_per_second(sampler.since("due"))


def _wait(count: Callable[[], int], target: int, worker: subprocess.Popen[bytes] | None = None) -> None:
    """Wait until a count is reached; raise `RunError` if it stops changing."""
    before, since = -1, time.monotonic()
    while (now := count()) < target:
        if now != before:
            before, since = now, time.monotonic()
        if time.monotonic() - since > _STALLED or (worker is not None and worker.poll() is not None):
            raise RunError(f"stopped at {now:,} of {target:,}")
        time.sleep(0.1)


def soak(seconds: float, rabbitmq: str, kind: str) -> Record:
    """Run failing tasks at a steady rate with a collector, and measure the memory of all processes."""
    began = time.monotonic()
    options = Options(0, 2)
    with (
        open_broker(rabbitmq=rabbitmq, config=_SHORT_LOG) as broker,
        database("PostgreSQL") as target,
        fresh(SOAK[kind], broker, options, with_times=False) as (run, vhost),
    ):
        record = Record("soak", machine(broker.version, _PACKAGES))
        run.publish(1, first=1)
        environ = environ_of(target, run.env["BENCHMARK_BROKER_URL"])
        with (
            run.worker() as worker,
            _process([sys.executable, PROJECT / "manage.py", "rmq_delay_collect"], environ, run) as collector,
        ):
            _wait(lambda: run.progress().attempts, 2, worker)
            interval = max(1.0, min(20.0, seconds / 120))
            with Sampler(run, broker, worker.pid, collector.pid, interval=interval) as sampler:
                sampler.watch(_tier(broker, vhost))
                sampler.mark("steady")
                tasks = _publish_for(run, seconds, (worker, collector))
            left = broker.messages(vhost)
            record = replace(record, samples=sampler.samples, marks=sampler.marks)
            record.facts |= {"tasks published": tasks, "attempts": run.progress().attempts}
            record.facts |= {"events and exhausted not collected yet": sum(_of_collector(left))}
            record.facts |= {"seconds": int(sampler.samples[-1].seconds)}
    record.machine["took"] = f"{(time.monotonic() - began) / 60:.1f} minutes"
    return record


def _of_collector(left: dict[str, int]) -> Iterator[int]:
    return (count for name, count in left.items() if name in ("rmq_delay.events", "rmq_delay.exhausted"))


def _publish_for(run: Run, seconds: float, processes: Sequence[subprocess.Popen[bytes]]) -> int:
    """Publish tasks at a steady rate, in portions of some minutes; return how many."""
    deadline, sent = time.monotonic() + seconds, 2
    while (left := deadline - time.monotonic()) > 1:
        count = int(_STEADY * min(left, 240))
        run.publish(count, _STEADY, sent)
        sent += count
        if any(process.poll() is not None for process in processes):
            raise RunError("the worker or the collector ended unexpectedly")
    return sent - 1


@contextmanager
def _process(command: Sequence[Any], environ: dict[str, str], run: Run) -> Iterator[subprocess.Popen[bytes]]:
    with (run.directory / "collector.log").open("wb") as log:
        process = subprocess.Popen(command, env=environ, stdout=log, stderr=log, start_new_session=True)
        try:
            yield process
        finally:
            end(process)


def _report(record: Record, given: argparse.Namespace) -> None:
    console = terminal(140)
    print_tables(console, tables(record))
    print_closing(console, record.machine, ())
    if given.json:
        _named(given.json, record).write_text(record.to_json())
    if given.chart:
        charts.write(panels(record), _named(given.chart, record))
    if given.docs:
        _write_docs(record)


def _named(path: Path, record: Record) -> Path:
    return path.with_name(path.name.replace("{}", record.name))


def _write_docs(record: Record) -> None:
    name = f"long-haul-{record.name}"
    docs_part.keep(name, record.to_json())
    docs_part.write(
        "contributing/long-haul.md", name, ("Over time", panels(record)), tables(record), (), record.machine
    )


if __name__ == "__main__":
    main()
