"""Measurements of `benchmarks.peers` besides `run.measure_rate` and `run.measure_lateness`: waiting tasks, kills."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import amqp
import kombu

from benchmarks.attempts import LEDGER_SIZE, read_ledger, read_times
from benchmarks.brokers import Broker
from benchmarks.contenders import TASK_QUEUES, Contender
from benchmarks.copies import Copies, Template
from benchmarks.processes import kill, proportional, tree
from benchmarks.run import Options, Run, RunError, fresh, percentile, when_idle

#: Numbers of tasks that succeed at once begin here: see `contenders.shop`.
FRESH = LEDGER_SIZE
#: Fresh tasks of one probe, their rate per second, and the seconds for the last one to start.
PROBES, _PER_SECOND, PATIENCE = 20, 10.0, 20.0
#: Seconds for a worker to start, to fetch waiting messages, and without a change after which it has fetched them.
_START, _SETTLE, _SETTLED = 8.0, 40.0, 5.0
#: Messages to inspect to find one that waits.
_INSPECTED = 2_000
#: Seconds without an attempt, beyond the delay, after which no more are expected.
NO_MORE = 15.0
#: The victims of `measure_killed`, and the attempts per task at which they are killed: while the first ones run, when
#: all wait, while the second ones run. Killing an idle child would have no effect.
KILLS = {"worker": (0.3, 1.0, 1.3), "child": (0.3, 0.7, 1.3, 1.7)}
_MB = 1024 * 1024


@dataclass(frozen=True)
class Fresh:
    """Time to the start of fresh tasks in ms; ``missing``: not started 20 s after the last was sent."""

    tasks: int
    missing: int
    p50: float | None
    worst: float | None


@dataclass(frozen=True)
class Parked:
    """The effect of waiting tasks on a worker: MB (PSS) without and with them, and the start of fresh tasks.

    ``few`` wait because they failed in the worker; the rest, up to ``many``, are copies of one of them.
    """

    few: int
    many: int
    idle_mb: float
    parked_mb: float
    #: Messages that the worker had fetched from the broker, of ``many``.
    held: int
    beside_few: Fresh
    beside_many: Fresh
    #: The error while they failed, if any.
    trouble: str = ""


@dataclass(frozen=True)
class Killed:
    """The outcomes of tasks that fail once, after the ``victim`` was killed with SIGKILL several times."""

    victim: str
    kills: int
    tasks: int
    #: Never succeeded, and no message is left at the broker.
    lost: int
    #: Never succeeded, and there are messages left at the broker.
    stuck: int
    #: Executed again after they had succeeded.
    twice: int
    #: Executions beyond one failure and one success.
    repeated: int
    #: How often the worker's main process also ended and was restarted.
    restarts: int


def measure_parked(contender: Contender, broker: Broker, options: Options, many: int) -> Parked:
    """Run ``options.tasks`` failing tasks with a late retry; probe; add copies up to ``many``; probe a new worker."""
    trouble = ""
    with fresh(contender, broker, options, with_times=True) as (run, vhost):
        run.publish(1, first=FRESH)  # the worker's queues and its warm-up
        with run.worker() as worker:
            run.wait(worker, 1, lambda _now: None)
            when_idle(worker.pid)
            idle = proportional(worker.pid)
            run.publish(options.tasks)
            try:
                run.wait(worker, 1 + options.tasks, lambda _now: None)
                when_idle(worker.pid)
            except RunError as error:
                trouble = str(error).splitlines()[0].rstrip(":")
            beside_few = probe(run, worker, FRESH + 1)
        _fill(run, broker, vhost, many)
        with run.worker() as worker:
            held = _taken_in(broker, vhost, worker)
            parked = proportional(worker.pid)
            beside_many = probe(run, worker, FRESH + 1 + PROBES)
    return Parked(options.tasks, many, idle / _MB, parked / _MB, held, beside_few, beside_many, trouble)


def probe(run: Run, worker: subprocess.Popen[bytes], first: int) -> Fresh:
    """Publish fresh tasks at a steady rate, and measure when each of them starts."""
    started = run.publish(PROBES, _PER_SECOND, first)
    due = {first + number: started + number / _PER_SECOND for number in range(PROBES)}
    deadline = time.monotonic() + PATIENCE
    while not due.keys() <= (times := read_times(run.directory)).keys():
        if time.monotonic() > deadline or worker.poll() is not None:
            break
        time.sleep(0.2)
    waited = sorted(times[number][0][0] - due[number] for number in due if number in times)
    return Fresh(PROBES, PROBES - len(waited), percentile(waited, 0.5), percentile(waited, 1.0))


def _fill(run: Run, broker: Broker, vhost: str, many: int) -> None:
    """Publish copies of a waiting message into its queue until there are ``many``."""
    url = run.env["BENCHMARK_BROKER_URL"]
    deadline = time.monotonic() + PATIENCE  # the worker's messages are requeued; a quorum queue reports them late
    while sum((waiting := _waiting(broker, vhost, "messages_ready")).values()) < run.options.tasks:
        if time.monotonic() > deadline:
            break
        time.sleep(0.5)
    with kombu.Connection(url) as connection:
        template = parked_message(connection, max(waiting, key=waiting.__getitem__))
    with Copies(url) as copies:
        for _ in range(many - sum(waiting.values())):
            copies.publish(template)


def parked_message(connection: kombu.Connection, queue: str) -> Template:
    """Return a message that waits in a queue for its retry: in the queue of the tasks, one with an ETA."""
    channel: Any = connection.channel()
    try:
        for _ in range(_INSPECTED):
            message: amqp.Message | None = channel.basic_get(queue)
            if message is None:
                break
            if queue != "work" or (message.headers or {}).get("eta"):
                return Template(message, "", queue)
    finally:
        channel.close()  # requeues the inspected messages
    raise RunError(f"none of the first {_INSPECTED:,} messages of {queue} waits for a retry")


def _waiting(broker: Broker, vhost: str, which: str = "messages") -> dict[str, int]:
    return {name: count for name, count in broker.messages(vhost, which).items() if name.startswith(TASK_QUEUES)}


def _taken_in(broker: Broker, vhost: str, worker: subprocess.Popen[bytes]) -> int:
    """Wait until a worker fetches no more waiting messages; return how many it has."""
    begun, left = time.monotonic(), -1
    deadline, since = begun + _SETTLE, begun
    while time.monotonic() < min(deadline, max(begun + _START, since + _SETTLED)) and worker.poll() is None:
        before, left = left, sum(_waiting(broker, vhost, "messages_ready").values())
        if left != before:
            since = time.monotonic()
        time.sleep(1)
    when_idle(worker.pid)
    return sum(_waiting(broker, vhost).values()) - sum(_waiting(broker, vhost, "messages_ready").values())


def measure_killed(
    contender: Contender, broker: Broker, options: Options, victim: str, *, no_more: float = NO_MORE
) -> Killed:
    """Run tasks that fail once; kill the ``victim`` repeatedly, the whole worker or one of its children."""
    with fresh(contender, broker, options, with_times=False) as (run, vhost):
        run.publish(options.tasks)
        with Shift(run, no_more) as shift:
            for share in KILLS[victim]:
                target = int(share * options.tasks)
                shift.wait(lambda ledger, target=target: sum(ledger) >= target)
                shift.kill(victim)
            shift.wait(lambda ledger: min(ledger) >= 2)
        return count_killed(
            victim, shift, read_ledger(run.directory, options.tasks), sum(_waiting(broker, vhost).values())
        )


def count_killed(victim: str, shift: Shift, ledger: bytes, left: int) -> Killed:
    """Count the outcomes of tasks that fail once, from their attempts and the remaining messages."""
    never = sum(attempts < 2 for attempts in ledger)
    stuck = min(never, left)
    return Killed(
        victim=victim,
        kills=shift.kills,
        tasks=len(ledger),
        lost=never - stuck,
        stuck=stuck,
        twice=sum(attempts > 2 for attempts in ledger),
        repeated=sum(max(0, attempts - 2) for attempts in ledger),
        restarts=shift.restarts,
    )


class Shift:
    """A worker that is restarted whenever it has ended, like under a supervisor; a context manager."""

    def __init__(self, run: Run, no_more: float = NO_MORE) -> None:
        self._run, self._stack = run, ExitStack()
        self._quiet = run.options.delay + no_more
        #: SIGKILLs so far, and restarts because the main process had ended without one.
        self.kills = self.restarts = 0

    def __enter__(self) -> Shift:
        self._worker = self._stack.enter_context(self._run.worker())
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def wait(self, done: Callable[[bytes], bool]) -> None:
        """Wait until the ledger is complete, or no more attempts come."""
        before, since = b"", time.monotonic()
        while not done(now := read_ledger(self._run.directory, self._run.options.tasks)):
            if now != before:
                before, since = now, time.monotonic()
            elif time.monotonic() - since > self._quiet:
                return
            if self._worker.poll() is not None:
                self.restarts += 1
                self._restart()
            time.sleep(0.01)

    def kill(self, victim: str) -> None:
        """Kill the whole worker and start another, or kill one of its processes that run tasks."""
        self.kills += 1
        if victim == "worker":
            kill(self._worker.pid)
            self._worker.wait()
            self._restart()
            return
        known = {int(path.stem) for path in self._run.directory.glob("*.slot")}
        running = [pid for pid in tree(self._worker.pid)[1:] if pid in known]
        if not running:
            raise RunError("found no process of the worker that runs tasks")
        kill(running[0])

    def _restart(self) -> None:
        self._stack.close()
        self._worker = self._stack.enter_context(self._run.worker())
