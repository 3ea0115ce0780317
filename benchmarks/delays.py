"""The phases of `benchmarks.exact_delays`: publish, park, drain."""

from __future__ import annotations

import json
import math
import subprocess
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import kombu

from benchmarks.attempts import read_times
from benchmarks.brokers import Broker
from benchmarks.contenders import Contender
from benchmarks.processes import usage
from benchmarks.publisher import Publisher, publisher
from benchmarks.run import Options, Run, RunError, fresh, percentile

_MODULE = "benchmarks.contenders.delayed_celery_app"

LEVELS, LEVELS_QUORUM, HOLD, LOOP, PLUGIN = "levels", "levels, quorum", "hold", "loop", "plugin"
CELERY_NATIVE, CELERY_NATIVE_CLASSIC, ETA = "Celery native", "Celery native, classic levels", "ETA held by the worker"

#: Celery's native delays need a quorum queue for the tasks, for every type of the levels.
CONTENDERS = (
    Contender(LEVELS, _MODULE, "levels", "classic"),
    Contender(LEVELS_QUORUM, _MODULE, "levels", "quorum"),
    Contender(HOLD, _MODULE, "hold", "classic"),
    Contender(LOOP, _MODULE, "loop", "classic"),
    Contender(PLUGIN, _MODULE, "plugin", "classic"),
    Contender(CELERY_NATIVE, _MODULE, "native", "quorum"),
    Contender(CELERY_NATIVE_CLASSIC, _MODULE, "native-classic", "quorum"),
    Contender(ETA, _MODULE, "eta", "classic"),
)
#: This package's topologies that round a delay up to the unit of a second.
_ROUNDING = ("levels", "hold", "loop")

OPTIONS = Options(tasks=0, delay=3600)

#: Calls of one turn of the publish phase, and turns in a round.
CALLS, TURNS = 500, 3
#: Seconds: the range of the published delays, and of the parked ones, which outlast the benchmark.
SHORTEST, LONGEST = 1, 3600
_PARKED_SHORTEST, _PARKED_LONGEST = 7_200, 14_400
#: How many different delays are among the parked.
_KINDS = 200
#: A worker can circulate fewer messages in a loop than other topologies can hold.
LOOP_PARKED = 20_000
PROBES, _PROBES_PER_SECOND = 1_000, 200
_PROBE_SHORTEST, _PROBE_LONGEST = 1.0, 10.0
#: Seconds for the broker to store the parked messages, for an ETA's worker to fetch them, and for late ones to arrive.
_SETTLE, _FETCH, _LATEST = 5.0, 60.0, 20.0
#: Seconds from publishing the messages of the drain to the second in which they are due, and until they must arrive.
_DUE_IN, _DRAIN_TIMEOUT = 12, 60.0
_HOPS_UP_TO = 15
_WARM_UP = 100


@dataclass
class Publishing:
    """The cost of calls, by turn: seconds, and CPU seconds of publisher and broker, per call."""

    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    broker: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Lateness:
    """Lateness of probes in ms, after the requested time, and after that time rounded up to the unit."""

    count: int
    missing: int
    asked: tuple[float | None, float | None, float | None]
    rounded: tuple[float | None, float | None, float | None]


@dataclass(frozen=True)
class Parked:
    """The cost of waiting messages: broker bytes per message, MB of the worker, CPU seconds while they wait."""

    count: int
    #: Messages that the worker held in its memory.
    held: int
    broker_bytes: float
    worker_mb: float
    idle_seconds: float
    broker_cpu: float | None
    worker_cpu: float
    lateness: Lateness


@dataclass(frozen=True)
class Drain:
    """The rate at which messages due in one second reached their queue; seconds from its start to the last of them."""

    count: int
    seconds: float
    per_second: float


def measure_publishing(
    contenders: Sequence[Contender], broker: Broker, rounds: int, found: Mapping[Contender, Publishing]
) -> None:
    """Measure the publishers in turn: A B C A B C."""
    with ExitStack() as stack:
        publishers = {}
        for contender in contenders:
            run, _vhost = stack.enter_context(fresh(contender, broker, OPTIONS, with_times=False))
            publishers[contender] = stack.enter_context(publisher(run))
            publishers[contender].ask("calls", count=_WARM_UP, seed=0, low=SHORTEST, high=LONGEST)
        for turn in range(rounds * TURNS):
            for contender in contenders:
                before = usage(broker.pid).cpu if broker.pid else 0.0
                took = publishers[contender].ask("calls", count=CALLS, seed=turn, low=SHORTEST, high=LONGEST)
                after = usage(broker.pid).cpu if broker.pid else 0.0
                each = found[contender]
                each.wall.append(took["seconds"] / CALLS)
                each.cpu.append(took["cpu"] / CALLS)
                each.broker.append((after - before) / CALLS)


def measure_parked(contender: Contender, broker: Broker, count: int, idle: float) -> Parked:
    """Park ``count`` messages with a running worker, measure both for ``idle`` seconds, and send probes."""
    with (
        fresh(contender, broker, OPTIONS, with_times=True) as (run, vhost),
        publisher(run) as ours,
        run.worker() as worker,
    ):
        ours.ask("now", number=-1)
        run.wait(worker, 1, lambda _now: None)
        memory, rss = broker.memory(), usage(worker.pid).root_rss
        ours.ask("park", count=count, low=_PARKED_SHORTEST, high=_PARKED_LONGEST, kinds=_KINDS, timeout=180)
        held = _fetched(broker, vhost, count) if contender.name == ETA else 0
        time.sleep(_SETTLE)
        each = (broker.memory() - memory) / count
        grown = usage(worker.pid).root_rss - rss
        before = usage(worker.pid).cpu, usage(broker.pid).cpu if broker.pid else 0.0
        time.sleep(idle)
        after = usage(worker.pid).cpu, usage(broker.pid).cpu if broker.pid else 0.0
        return Parked(
            count=count,
            held=held,
            broker_bytes=each,
            worker_mb=grown / 1024**2,
            idle_seconds=idle,
            broker_cpu=after[1] - before[1] if broker.pid else None,
            worker_cpu=after[0] - before[0],
            lateness=_probe(contender, run, ours, worker),
        )


def _fetched(broker: Broker, vhost: str, count: int) -> int:
    """Wait until a worker has fetched all messages, or fetches no more; return how many it has fetched."""
    deadline, since, left = time.monotonic() + _FETCH, time.monotonic(), count
    while left and time.monotonic() < min(deadline, since + 5):
        before, left = left, broker.messages(vhost, "messages_ready").get("work", 0)
        if left != before:
            since = time.monotonic()
        time.sleep(0.5)
    return count - left


def _probe(contender: Contender, run: Run, ours: Publisher, worker: subprocess.Popen[bytes]) -> Lateness:
    calls = ours.ask(
        "probes",
        count=PROBES,
        seed=1,
        low=_PROBE_SHORTEST,
        high=_PROBE_LONGEST,
        per_second=_PROBES_PER_SECOND,
    )["calls"]
    deadline = time.monotonic() + _PROBE_LONGEST + _LATEST
    while run.progress().attempts < PROBES + 1 and time.monotonic() < deadline and worker.poll() is None:
        time.sleep(0.2)
    started = {number: times[0][0] for number, times in read_times(run.directory).items() if number >= 0}
    return lateness(calls, started, rounds=contender.mode in _ROUNDING)


def lateness(calls: Sequence[tuple[float, float]], started: Mapping[int, float], *, rounds: bool) -> Lateness:
    """Return the lateness of probes, called at a time (seconds) with a delay; ``started`` by their number.

    ``rounds``: the topology rounds delays up to whole seconds by design.
    """
    asked, rounded = [], []
    for number, (called, delay) in enumerate(calls):
        if number in started:
            asked.append(started[number] - called - delay)
            rounded.append(started[number] - called - (math.ceil(delay) if rounds else delay))
    return Lateness(len(calls), len(calls) - len(asked), _percentiles(asked), _percentiles(rounded))


def _percentiles(values: Iterable[float]) -> tuple[float | None, float | None, float | None]:
    found = sorted(values)
    return percentile(found, 0.5), percentile(found, 0.99), percentile(found, 1.0)


def measure_drain(contender: Contender, broker: Broker, count: int) -> tuple[Drain, dict[int, int]]:
    """Publish ``count`` messages due in the same second; return their arrival, and the hops of some by delay."""
    with ExitStack() as stack:
        run, _vhost = stack.enter_context(fresh(contender, broker, OPTIONS, with_times=False))
        ours = stack.enter_context(publisher(run))
        if contender.name == LOOP:  # the topology needs its worker, but it must not consume the tasks
            worker = stack.enter_context(run.worker("-Q", "idle"))
            _wait_for_consumer(run, worker)
        for delay in range(1, _HOPS_UP_TO + 1):
            ours.ask("calls", count=1, seed=0, low=delay, high=delay)
        planned = ours.ask("due_together", count=count, seconds=_DUE_IN)
        if planned["left"] < 1:
            raise RunError(f"publishing {count} messages took {_DUE_IN - planned['left']:.1f} of {_DUE_IN} s")
        connection = stack.enter_context(kombu.Connection(run.env["BENCHMARK_BROKER_URL"]))
        drained = _watch(connection, count + _HOPS_UP_TO, planned["due"])
        return drained, hops_by_delay(_take(connection, count + _HOPS_UP_TO))


def _wait_for_consumer(run: Run, worker: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and worker.poll() is None:
        with kombu.Connection(run.env["BENCHMARK_BROKER_URL"]) as connection:
            try:
                if connection.default_channel.queue_declare("idle", passive=True).consumer_count:
                    return
            except connection.channel_errors:
                pass
        time.sleep(0.5)
    raise RunError("the worker of the loop did not start in 30 s")


def _watch(connection: kombu.Connection, count: int, due: float) -> Drain:
    """Count the messages that arrive in the queue; ``due`` is monotonic."""
    channel: Any = connection.default_channel
    early = 0
    while True:
        present, now = channel.queue_declare("work", passive=True).message_count, time.monotonic()
        if now < due:
            early = present
        if present >= count:
            break
        if now > due + _DRAIN_TIMEOUT:
            raise RunError(f"{present:,} of {count:,} had come {_DRAIN_TIMEOUT:g} s after they were due")
        time.sleep(0.02)
    return Drain(count, now - due, (count - early) / (now - due))


def _take(connection: kombu.Connection, count: int) -> list[tuple[int, list[Mapping[str, Any]]]]:
    """Consume all messages; return (number of the task, x-death) of each."""
    taken: list[tuple[int, list[Mapping[str, Any]]]] = []
    channel: Any = connection.channel()

    def take(message: Any) -> None:
        taken.append((json.loads(message.body)[0][0], message.properties["application_headers"].get("x-death", [])))

    channel.basic_qos(0, 1000, False)
    channel.basic_consume("work", no_ack=True, callback=take)
    while len(taken) < count:
        connection.drain_events(timeout=20)
    return taken


def hops_by_delay(taken: Iterable[tuple[int, Sequence[Mapping[str, Any]]]]) -> dict[int, int]:
    """Return the most delay queues that a message passed, by its delay in seconds, which is its first argument.

    Messages without ``x-death`` are left out.
    """
    found: dict[int, int] = defaultdict(int)
    for delay, deaths in taken:
        passed = sum(death["count"] for death in deaths if death["reason"] == "expired")
        if passed:
            found[delay] = max(found[delay], passed)
    return dict(found)
