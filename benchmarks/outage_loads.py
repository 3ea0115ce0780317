"""Histories with known outages for `benchmarks.incidents`. Imports nothing of the package: it writes files by itself.

Tasks arrive as a Poisson process with a daily curve. An attempt fails by chance (chronic failures), or while a
dependency of its task is down, and is then retried after the delays of its ladder until it succeeds or is exhausted.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyarrow import parquet

TEXT, TIME = pa.string(), pa.timestamp("us", "UTC")
SCHEMA = pa.schema(
    [
        ("event_id", TEXT), ("kind", TEXT), ("occurred_at", TIME), ("task_id", TEXT), ("root_id", TEXT), ("task", TEXT),
        ("queue", TEXT), ("worker", TEXT), ("generation", pa.int32()), ("attempt", pa.int32()),
        ("max_retries", pa.int32()), ("tier", pa.int32()), ("delay_ms", pa.int64()), ("due_at", TIME),
        ("first_failed_at", TIME), ("started_at", TIME), ("runtime_ms", pa.int64()), ("exception_type", TEXT),
        ("exception_message", TEXT), ("fingerprint", TEXT), ("reason", TEXT), ("crashes", pa.int32()),
        ("ladder_ms", pa.list_(pa.int64())), ("ok_count", pa.int64()),
    ]
)  # fmt: skip

MINUTE, HOUR, DAY = 60.0, 3_600.0, 86_400.0
#: Seconds that a worker counts successes before it reports them: more than the 10 of real ones, for smaller histories.
ROLLUP = 30
JITTER = 0.1


@dataclass(frozen=True)
class Task:
    """A task: its mean first attempts per minute, dependencies, and the share of attempts that fail by chance."""

    name: str
    queue: str
    per_minute: float
    dependencies: tuple[str, ...]
    chronic: float = 0.001
    chronic_exception: str = "ValueError"
    #: Whether each chronic failure has a fingerprint of its own.
    many_fingerprints: bool = False
    #: Whether its attempts come within the first three minutes of each hour.
    hourly: bool = False


@dataclass(frozen=True)
class Outage:
    """A time, in seconds, in which a share of the attempts of the tasks that need ``cause`` fails."""

    kind: str
    cause: str
    exception: str
    start: float
    end: float
    share: float = 1.0
    #: The tasks and the first attempts that failed because of it; filled in by `Load.write`.
    tasks: set[str] = field(default_factory=set, compare=False)
    failures: list[int] = field(default_factory=list, compare=False)


@dataclass(frozen=True)
class Load:
    """A history: tasks, outages, ladders in seconds by queue, and traffic peaks (start, end, factor)."""

    name: str
    days: int
    tasks: Sequence[Task]
    outages: Sequence[Outage]
    ladder: Sequence[float] = (10, 60, 300, 1_800, 3_600)
    peaks: Sequence[tuple[float, float, float]] = ()
    #: How much the traffic changes over the day, from 0 to 1.
    curve: float = 0.0
    #: The standard deviation of the traffic's logarithm from five minutes to the next five minutes.
    noise: float = 0.0

    def write(self, folder: Path, start: datetime, seed: int) -> None:
        """Write the files of the history, which begins at ``start``."""
        random = np.random.default_rng([seed, 99])
        tables = [self._of_task(task, start, random, f"{seed}-{number}") for number, task in enumerate(self.tasks)]
        table = pa.concat_tables(tables)
        days = table["occurred_at"].cast(pa.date32()).to_numpy()
        for day in np.unique(days):
            where = folder / f"day={day}"
            where.mkdir(parents=True, exist_ok=True)
            parquet.write_table(table.filter(pa.array(days == day)), where / f"part-{seed}.parquet")

    def _arrivals(self, task: Task, random: np.random.Generator) -> np.ndarray:
        """Return the times of first attempts: a Poisson process whose rate changes from second to second."""
        seconds = np.arange(self.days * DAY)
        level = task.per_minute / MINUTE * (1 + self.curve * np.sin((seconds / HOUR - 8) * np.pi / 12))
        level *= np.repeat(np.exp(random.normal(0, self.noise, len(seconds) // 300)), 300)
        if task.hourly:
            level *= np.where(seconds % HOUR < 3 * MINUTE, HOUR / (3 * MINUTE), 0.0)
        for begin, end, factor in self.peaks:
            level[(seconds >= begin) & (seconds < end)] *= factor
        counts = random.poisson(level)
        return np.repeat(seconds, counts) + np.sort(random.random(counts.sum()))

    def _failing(self, task: Task, at: np.ndarray, random: np.random.Generator) -> np.ndarray:
        """Return by attempt the number of its outage, -1 for a chronic failure, -2 for a success."""
        found = np.where(random.random(len(at)) < task.chronic, -1, -2)
        for number, each in enumerate(self.outages):
            if each.cause in (task.name, *task.dependencies):
                hit = (at >= each.start) & (at < each.end) & (random.random(len(at)) < each.share)
                found[hit] = number
        return found

    def _of_task(self, task: Task, start: datetime, random: np.random.Generator, name: str) -> pa.Table:
        times = self._arrivals(task, random)
        causes = self._failing(task, times, random)
        for number, each in enumerate(self.outages):
            if (hit := int((causes == number).sum())) > 0:
                each.tasks.add(task.name)
                each.failures.append(hit)
        slots, counts = np.unique(times[causes == -2] // ROLLUP, return_counts=True)
        parts = [_rows(start, task, slots * ROLLUP, kind="rollup", ok_count=counts, event=f"{name}-ok", ladder=())]
        ids = np.flatnonzero(causes != -2)
        at, causes = times[ids], causes[ids]
        for attempt in range(len(self.ladder) + 1):
            ended = at + random.exponential(0.5, len(at))
            failed, last = causes != -2, attempt == len(self.ladder)
            common = {"attempt": attempt, "ladder": self.ladder}
            if attempt:
                parts.append(_rows(start, task, ended[~failed], ids[~failed], kind="recovered", event=name, **common))
            kind = "exhausted" if last else "parked"
            exceptions, prints = self._reasons(task, causes[failed], ids[failed])
            common |= {"exception": exceptions, "fingerprint": prints, "reason": "retries_used" if last else None}
            common["tier"] = None if last else attempt + 1
            parts.append(_rows(start, task, ended[failed], ids[failed], kind=kind, event=name, **common))
            if last:
                break
            ids = ids[failed]
            delay = self.ladder[attempt] * random.uniform(1 - JITTER, 1 + JITTER, len(ids))
            at = ended[failed] + delay
            within = at < self.days * DAY
            ids, at = ids[within], at[within]
            causes = self._failing(task, at, random)
        return pa.concat_tables(parts)

    def _reasons(self, task: Task, causes: np.ndarray, ids: np.ndarray) -> tuple[list[str], list[str]]:
        exceptions = [task.chronic_exception if one < 0 else self.outages[one].exception for one in causes]
        prints = [
            f"{task.name}-{number}" if cause < 0 and task.many_fingerprints else f"{task.name}-{exception}-{cause < 0}"
            for cause, exception, number in zip(causes, exceptions, ids, strict=True)
        ]
        short = {each: hashlib.sha1(each.encode(), usedforsecurity=False).hexdigest()[:16] for each in set(prints)}
        return exceptions, [short[each] for each in prints]


def _rows(
    start: datetime,
    task: Task,
    seconds: np.ndarray,
    ids: np.ndarray | None = None,
    *,
    kind: str,
    event: str,
    ladder: Sequence[float],
    attempt: int = 0,
    tier: int | None = None,
    reason: str | None = None,
    exception: Sequence[str] | None = None,
    fingerprint: Sequence[str] | None = None,
    ok_count: np.ndarray | None = None,
) -> pa.Table:
    count = len(seconds)
    began = int(start.timestamp() * 1e6)
    numbers = range(count) if ids is None else ids
    delays = [round(each * 1000) for each in ladder]
    values: dict[str, object] = {
        "event_id": [f"{event}-{number}-{attempt}-{kind}" for number in numbers],
        "kind": [kind] * count,
        "occurred_at": pa.array(began + (seconds * 1e6).astype(np.int64)).cast(TIME),
        "task": [task.name] * count,
        "queue": [task.queue] * count,
        "worker": [f"worker@{task.queue}"] * count,
        "generation": np.zeros(count, np.int32),
        "attempt": np.full(count, attempt, np.int32),
        "crashes": np.zeros(count, np.int32),
        "ladder_ms": [delays] * count,
    }
    if ids is not None:
        values |= {"task_id": [f"{event}-{number}" for number in ids], "runtime_ms": [500] * count}
    values |= {"tier": [tier] * count, "delay_ms": [delays[tier - 1] if tier else None] * count}
    more = {"exception_type": exception, "fingerprint": fingerprint, "ok_count": ok_count, "reason": [reason] * count}
    values |= {name: value for name, value in more.items() if value is not None}
    arrays = [
        pa.array(values[each.name], each.type) if each.name in values else pa.nulls(count, each.type) for each in SCHEMA
    ]
    return pa.Table.from_arrays(arrays, schema=SCHEMA)


def quiet(seed: int) -> Load:
    """Return one queue with few failures, and twelve total outages of five minutes to an hour."""
    random = np.random.default_rng([seed, 1])
    outages = [
        Outage("quiet", "api", "ConnectionError", begin, begin + random.uniform(5, 60) * MINUTE)
        for begin in (np.arange(12) * 4 + random.uniform(0.2, 2.5, 12)) * HOUR
    ]
    return Load("quiet", 2, [Task("shop.pay", "payments", 12.0, ("api",))], outages)


def busy_neighbour(seed: int) -> Load:
    """Return a total outage of an hour with 600 tasks, behind another queue with 60 failures a minute."""
    random = np.random.default_rng([seed, 2])
    begin = random.uniform(2, 21) * HOUR
    tasks = [
        Task("shop.pay", "payments", 10.0, ("api",)),
        Task("feeds.fetch", "feeds", 600.0, (), 0.1, "ReadTimeout"),
    ]
    return Load("busy neighbour", 1, tasks, [Outage("busy neighbour", "api", "ConnectionError", begin, begin + HOUR)])


#: Exceptions of dependencies: two have the same one.
EXCEPTIONS = {
    "postgres": "psycopg.OperationalError",
    "redis": "redis.exceptions.ConnectionError",
    "stripe": "httpx.ConnectTimeout",
    "smtp": "smtplib.SMTPServerDisconnected",
    "search": "httpx.ConnectTimeout",
}


def mixed(seed: int) -> Load:
    """Return six queues and 20 tasks over three days, outages of several kinds, and traffic peaks without trouble."""
    random = np.random.default_rng([seed, 3])
    names = list(EXCEPTIONS)
    tasks = [Task("feeds.fetch", "feeds", 600.0, (), 0.1, "httpx.ReadTimeout")]
    for number in range(19):
        needs = tuple(str(each) for each in random.choice(names, 1 if number % 3 else 2, replace=False))
        if number < len(names):
            needs = (names[number],)
        is_chronic = number % 3 == 0
        tasks.append(
            Task(
                f"shop.task{number:02}",
                f"queue{number % 5}",
                float(np.exp(random.uniform(np.log(3), np.log(60)))),
                needs,
                float(random.uniform(0.01, 0.15)) if is_chronic else 0.001,
                EXCEPTIONS[needs[0]] if number % 6 == 0 else "ValueError",
                many_fingerprints=number % 9 == 0,
                hourly=number == 18,
            )
        )
    slots = [float(each) for each in random.permutation(np.arange(3, 66, 4)) if each // 4 not in (5, 11)]

    def begin() -> float:
        return (slots.pop() + random.uniform(0, 0.9)) * HOUR

    def down(kind: str, cause: str, start: float, minutes: float, share: float = 1.0) -> Outage:
        return Outage(kind, cause, EXCEPTIONS.get(cause, "TypeError"), start, start + minutes * MINUTE, share)

    which = [str(each) for each in random.permutation(names)]
    together = begin()
    outages = [
        down("total", which[0], begin(), random.uniform(30, 90)),
        down("partial", which[1], begin(), random.uniform(30, 60), 0.3),
        down("short", which[2], begin(), 5),
        down("over midnight", which[3], random.uniform(22.2, 23.5) * HOUR + DAY * random.integers(0, 2), 180),
        down("deploy", tasks[int(random.integers(1, 20))].name, begin(), random.uniform(20, 60)),
        down("two at once", which[4], together, random.uniform(20, 60)),
        down("two at once", which[0], together + random.uniform(0, 10) * MINUTE, random.uniform(20, 60)),
    ]
    peaks = [(start := begin(), start + random.uniform(10, 60) * MINUTE, 4.0) for _ in range(3)]
    return Load("mixed", 3, tasks, outages, peaks=peaks, curve=0.7, noise=0.3)


LOADS = {"quiet": quiet, "busy neighbour": busy_neighbour, "mixed": mixed}
FIRST = datetime(2025, 1, 6, tzinfo=timezone.utc)
#: Days between the beginnings of two histories: more than those on which the incidents of a day depend.
APART = timedelta(days=10)
