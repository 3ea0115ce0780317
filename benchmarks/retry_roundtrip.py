"""Measure rate and cost of parking failing tasks: this package, its peers, and a plain success and failure.

    python -m benchmarks.retry_roundtrip                     # everything, 3 rounds of 10,000 tasks
    python -m benchmarks.retry_roundtrip --tasks 2000 --rounds 1 --contenders celery-rmq-delay stock
    python -m benchmarks.retry_roundtrip --rabbitmq-root .cache/brokers/4.0 --markdown table.md --json runs.json
    python -m benchmarks.retry_roundtrip --before HEAD~20    # compare this package with itself at a commit

A run publishes N tasks, starts a worker of two processes, and measures from the first attempt to the last. Every task
fails, and its retry is an hour away, so that N messages wait at the end. Contenders take turns: A B C C B A.
`benchmarks.peers` measures the time after the wait.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.brokers import Broker, open_broker
from benchmarks.contenders import BEFORE, CHECKOUT, CONTENDERS, OURS, Contender
from benchmarks.output import noted, progress
from benchmarks.report import Results, machine, markdown, print_report
from benchmarks.run import Options, RunError, measure_rate


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the benchmark."""
    given = _parser().parse_args(arguments)
    options = Options(
        tasks=given.tasks,
        delay=given.delay,
        log_level=given.log_level,
        dramatiq_threads=given.dramatiq_threads,
        profile=given.profile,
    )
    if options.profile is not None:
        options.profile.mkdir(parents=True, exist_ok=True)
    with (
        _chosen(given.contenders, given.before) as contenders,
        open_broker(given.broker_url, given.management_url, given.rabbitmq_root) as broker,
    ):
        facts = machine(broker.version)
        results = _measure(contenders, broker, options, given.rounds)
    notes = _notes(options, given.rounds)
    print_report(results, facts, notes)
    if given.markdown:
        given.markdown.write_text(markdown(results, facts, notes))
    if given.json:
        everything = {"machine": facts, "options": asdict(options) | {"rounds": given.rounds}, **results.as_dict()}
        given.json.write_text(json.dumps(everything, indent=2, default=str))
    if results.errors:
        raise SystemExit(1)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.retry_roundtrip",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--tasks", type=int, default=10_000, help="failing tasks per run (%(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="runs per contender (%(default)s)")
    parser.add_argument("--delay", type=int, default=3600, help="seconds to the retry while parking (%(default)s)")
    parser.add_argument(
        "--contenders", nargs="+", metavar="TEXT", help="only contenders whose NAME/QUEUE contains one of these texts"
    )
    parser.add_argument("--before", metavar="COMMIT", help="only compare this package with itself at a commit")
    parser.add_argument("--log-level", default="WARNING", choices=["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"])
    parser.add_argument(
        "--dramatiq-threads", type=int, default=8, help="per process (%(default)s, dramatiq's own default)"
    )
    parser.add_argument("--broker-url", help="a running broker; default: a private one is started")
    parser.add_argument("--management-url", help="its management API, with credentials, to create vhosts")
    parser.add_argument("--rabbitmq-root", help="a tree with another RabbitMQ for the private broker (needs root)")
    parser.add_argument(
        "--profile", type=Path, metavar="DIR", help="let py-spy write collapsed stacks of the workers there"
    )
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--markdown", type=Path, metavar="FILE")
    return parser


@contextmanager
def _chosen(texts: Sequence[str] | None, commit: str | None) -> Iterator[list[Contender]]:
    chosen = [each for each in CONTENDERS if not texts or any(text in each.key for text in texts)]
    if commit is not None:
        chosen = [each for each in chosen if each.name == OURS]
    if not chosen:
        raise SystemExit(f"No contender matches {texts}. Use one of: {', '.join(each.key for each in CONTENDERS)}")
    if commit is None:
        yield chosen
        return
    with package_at(commit) as folder:
        yield [again for each in chosen for again in (each, replace(each, name=BEFORE, folder=folder))]


@contextmanager
def package_at(commit: str) -> Iterator[Path]:
    """Yield a folder with the package as of a commit, and these benchmarks."""
    with TemporaryDirectory(prefix="benchmark-") as name:
        folder = Path(name)
        archive = folder / "package.tar"
        command = ["git", "archive", "--output", str(archive), commit, "celery_rmq_delay"]
        done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"git has no package at {commit}: {done.stderr.strip()}")
        shutil.unpack_archive(archive, folder)
        (folder / "benchmarks").symlink_to(CHECKOUT / "benchmarks")
        yield folder


def _measure(contenders: Sequence[Contender], broker: Broker, options: Options, rounds: int) -> Results:
    results = Results(contenders)
    for number in range(1, rounds + 1):
        for contender in contenders if number % 2 else reversed(contenders):
            with noted(results.errors, contender.key):
                rate = measure_rate(contender, broker, options)
                results.rates[contender].append(rate)
                expected = options.tasks if contender.retries else 0
                if rate.parked != expected:
                    raise RunError(f"{rate.parked} messages at the broker, not {expected}")
                progress.print(
                    f"round {number} {contender.key}: {rate.per_second:,.0f}/s, CPU {rate.worker_cpu:.2f} ms, "
                    f"growth {rate.growth:+.1f} MB"
                )
    return results


def _notes(options: Options, rounds: int) -> list[str]:
    return [
        f"{rounds} rounds of {options.tasks:,} tasks, medians; every worker has two processes, prefetch as its system "
        f"has it, no result backend, log level {options.log_level}, a payload of about 200 bytes. CPU is user + system "
        "per attempt, of the worker's whole process tree from its first attempt until it is idle. RSS is summed over "
        "the processes, shared pages in each.",
        f"dramatiq: Retries middleware, 2 processes x {options.dramatiq_threads} threads; publishes unconfirmed and "
        "keeps waiting messages unacknowledged in its workers' memory. taskiq: SmartRetryMiddleware and a delay queue "
        "with an expiration per message; publishes confirmed; the broker holds the wait. Both log each failure with "
        "its traceback as an error, which Celery's retry does not: hence the rows without that.",
    ]


if __name__ == "__main__":
    main()
