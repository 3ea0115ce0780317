"""Run one contender: publish, start its worker, measure its failures, count parked messages."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.attempts import Progress, read_lateness, read_progress
from benchmarks.brokers import Broker
from benchmarks.contenders import TASK_QUEUES, Contender
from benchmarks.processes import Usage, end, usage

#: Attempts after which a process is warm: later growth of memory is caused by failures.
WARM = 500
#: Seconds without a new attempt after which a worker counts as stalled, and without CPU use as idle.
_STALLED, _IDLE = 60.0, 0.5
_COUNT_TIMEOUT = 20.0
_MB = 1024 * 1024


class RunError(Exception):
    """The run of a contender failed."""


@dataclass(frozen=True)
class Options:
    """Options of every run."""

    tasks: int
    delay: int
    #: For `measure_lateness`: number of tasks, tasks per second, and the delay of their retries.
    late_tasks: int = 0
    late_rate: float = 0.0
    late_delay: int = 0
    log_level: str = "WARNING"
    dramatiq_threads: int = 8
    profile: Path | None = None
    #: How many attempts of a task fail before it succeeds, 0: all; and the seconds that an attempt sleeps.
    failures: int = 0
    work: float = 0.0

    @property
    def attempts(self) -> int:
        """Attempts until every task has succeeded or waits for its retry."""
        return self.tasks * (self.failures + 1)


@dataclass(frozen=True)
class Rate:
    """The cost of ``tasks`` tasks to fail and be parked, or to fail and succeed. CPU in ms per task, memory in MB."""

    tasks: int
    seconds: float
    per_second: float
    worker_cpu: float
    parent_cpu: float
    children_cpu: float
    broker_cpu: float | None
    peak_rss: float
    growth: float
    #: Growth of the worker's children, from the first attempt and from the 500th to the end.
    children_growth: float
    children_growth_warm: float
    #: Messages in the queues of the tasks at the end.
    parked: int


@dataclass(frozen=True)
class Lateness:
    """Lateness of first retries in ms; ``missing``: not started 60 s after the last one that started."""

    tasks: int
    missing: int
    p50: float | None
    p99: float | None
    worst: float | None


class Run:
    """The vhost, the directory and the environment of one run."""

    def __init__(self, contender: Contender, url: str, directory: Path, options: Options, *, with_times: bool) -> None:
        self.contender, self.directory, self.options = contender, directory, options
        self.env = {
            **os.environ,
            "BENCHMARK_BROKER_URL": url,
            "BENCHMARK_QUEUE_TYPE": contender.queue_type,
            "BENCHMARK_MODE": contender.mode,
            "BENCHMARK_DELAY": str(options.delay),
            "BENCHMARK_LOG_LEVEL": options.log_level,
            "BENCHMARK_TIMES": str(int(with_times)),
            "BENCHMARK_DIR": str(directory),
            "BENCHMARK_FAILURES": str(options.failures),
            "BENCHMARK_WORK": str(options.work),
        }

    def progress(self) -> Progress:
        return read_progress(self.directory)

    def publish(self, count: int, per_second: float | None = None, first: int = 0) -> float:
        """Publish tasks; return when the first one was due (monotonic seconds)."""
        command = [sys.executable, "-m", "benchmarks.contenders.publish"]
        command += [self.contender.module, str(count), str(first)]
        done = subprocess.run(
            command + ([str(per_second)] if per_second else []),
            cwd=self.contender.folder,
            env=self.env,
            capture_output=True,
            timeout=600,
        )
        if done.returncode:
            raise RunError(f"could not publish:\n{done.stderr.decode()[-3000:]}")
        return float(done.stdout)

    @contextlib.contextmanager
    def worker(self, *more: str) -> Iterator[subprocess.Popen[bytes]]:
        command = [*self.contender.worker_command(self.options.log_level, self.options.dramatiq_threads), *more]
        with (self.directory / "worker.log").open("wb") as log:
            process = subprocess.Popen(
                command,
                cwd=self.contender.folder,
                env=self.env,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
            try:
                yield process
            finally:
                end(process)

    def wait(self, worker: subprocess.Popen[bytes], attempts: int, on_progress: Callable[[Progress], None]) -> Progress:
        """Wait until there were this many attempts, calling ``on_progress``; raise `RunError` if no more come."""
        before, since = -1, time.monotonic()
        while (now := self.progress()).attempts < attempts:
            on_progress(now)
            if now.attempts != before:
                before, since = now.attempts, time.monotonic()
            elif worker.poll() is not None or time.monotonic() - since > _STALLED:
                log = (self.directory / "worker.log").read_text(errors="replace")
                code = worker.poll()
                why = f"none came for {_STALLED:.0f} s" if code is None else f"exit code {code}"
                raise RunError(f"stopped at {now.attempts} of {attempts} attempts, {why}:\n{log[-3000:]}")
            time.sleep(0.01 if now.attempts < WARM else 0.05)
        return now


@contextlib.contextmanager
def fresh(contender: Contender, broker: Broker, options: Options, *, with_times: bool) -> Iterator[tuple[Run, str]]:
    """Yield a run in its own vhost, and the name of the vhost."""
    vhost = f"benchmark-{os.getpid()}-{time.monotonic_ns()}"
    url = broker.add_vhost(vhost)
    try:
        with tempfile.TemporaryDirectory(prefix="benchmark-") as directory:
            yield Run(contender, url, Path(directory), options, with_times=with_times), vhost
    finally:
        broker.delete_vhost(vhost)


def measure_rate(contender: Contender, broker: Broker, options: Options) -> Rate:
    """Measure ``options.tasks`` failing tasks, published before the worker starts."""
    with fresh(contender, broker, options, with_times=False) as (run, vhost):
        run.publish(options.tasks)
        first: Usage | None = None
        warm: Usage | None = None
        broker_before = 0.0
        peak = 0

        def on_progress(now: Progress) -> None:
            nonlocal first, warm, peak, broker_before
            used = usage(worker.pid)
            peak = max(peak, used.rss)
            if first is None and now.attempts:
                first = used
                broker_before = usage(broker.pid).cpu if broker.pid else 0.0
            if warm is None and now.attempts >= WARM:
                warm = used

        with run.worker() as worker, _profiled(worker, contender, options):
            done = run.wait(worker, options.attempts, on_progress)
            last = when_idle(worker.pid)
            broker_cpu = usage(broker.pid).cpu - broker_before if broker.pid else None
            parked = _parked(broker, vhost, options.tasks if contender.retries and not options.failures else 0)
        first = first or last
        warm = warm or last
        per_attempt = 1000 / options.tasks
        return Rate(
            tasks=options.tasks,
            seconds=done.last - done.first,
            per_second=options.tasks * (1 - 1 / options.attempts) / (done.last - done.first),
            worker_cpu=(last.cpu - first.cpu) * per_attempt,
            parent_cpu=(last.root_cpu - first.root_cpu) * per_attempt,
            children_cpu=(last.children_cpu - first.children_cpu) * per_attempt,
            broker_cpu=None if broker_cpu is None else broker_cpu * per_attempt,
            peak_rss=max(peak, last.rss) / _MB,
            growth=(max(peak, last.rss) - first.rss) / _MB,
            children_growth=(last.children_rss - first.children_rss) / _MB,
            children_growth_warm=(last.children_rss - warm.children_rss) / _MB,
            parked=parked,
        )


def measure_lateness(contender: Contender, broker: Broker, options: Options) -> Lateness:
    """Publish tasks at a low steady rate, and measure when their first retries start."""
    with fresh(contender, broker, replace(options, delay=options.late_delay), with_times=True) as (run, _vhost):
        late: list[float] = []

        def came_back(_now: Progress) -> None:
            late[:] = read_lateness(run.directory, options.late_delay)

        run.publish(1)  # the worker's queues and its warm-up
        with run.worker() as worker:
            run.wait(worker, 1, lambda _now: None)
            run.publish(options.late_tasks, options.late_rate)
            try:
                until = options.late_tasks
                while len(late) < options.late_tasks:
                    until += options.late_tasks - len(late)
                    run.wait(worker, until, came_back)
                    came_back(run.progress())
            except RunError:
                came_back(run.progress())
        late = late[: options.late_tasks]
        return Lateness(
            tasks=options.late_tasks,
            missing=options.late_tasks - len(late),
            p50=percentile(late, 0.5),
            p99=percentile(late, 0.99),
            worst=percentile(late, 1.0),
        )


def percentile(values: list[float], share: float) -> float | None:
    """Return the quantile ``share`` of sorted ``values`` (seconds) in ms."""
    return values[min(len(values) - 1, int(share * len(values)))] * 1000 if values else None


def when_idle(pid: int) -> Usage:
    """Return the usage of a worker when it is idle after its last attempt."""
    now = usage(pid)
    since = start = time.monotonic()
    while time.monotonic() - since < _IDLE and time.monotonic() - start < _COUNT_TIMEOUT:
        time.sleep(0.1)
        before, now = now, usage(pid)
        if now.cpu - before.cpu > 0.02:  # a fifth of one core is busy
            since = time.monotonic()
    return now


def _parked(broker: Broker, vhost: str, expected: int) -> int:
    """Return how many messages the broker has; a quorum queue reports them a few seconds late."""
    deadline = time.monotonic() + _COUNT_TIMEOUT
    while True:
        queues = broker.messages(vhost)
        found = sum(count for name, count in queues.items() if name.startswith(TASK_QUEUES))
        if found == expected or time.monotonic() > deadline:
            return found
        time.sleep(0.5)


@contextlib.contextmanager
def _profiled(worker: subprocess.Popen[bytes], contender: Contender, options: Options) -> Iterator[None]:
    """Profile the worker's processes with py-spy, as collapsed stacks, if requested."""
    if options.profile is None:
        yield
        return
    target = options.profile / f"{contender.key.replace('/', '-').replace(' ', '-')}.txt"
    command = [
        "py-spy",
        "record",
        "--subprocesses",
        "--format",
        "raw",
        "--output",
        str(target),
        "--pid",
        str(worker.pid),
    ]
    spy = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        spy.send_signal(2)
        spy.wait(20)
