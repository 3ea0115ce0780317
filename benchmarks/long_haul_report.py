"""The results of `benchmarks.long_haul`: samples over time, tables, verdicts and charts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any

from benchmarks.charts import OTHER, OURS, Lines
from benchmarks.growth import trend
from benchmarks.output import Table

#: Most growth in MB that counts as flat, for each process in a soak, and for the worker with a million parked.
BOUNDS = {"worker": 2.0, "collector": 4.0, "broker": 10.0}
#: Share of a soak until everything is warm.
WARM_UP = 1 / 6
_MB = 1024 * 1024
_BROKER = "#6a1b9a"


@dataclass(frozen=True)
class Sample:
    """One sample: bytes, messages, attempts; ``seconds`` since the first one. None if not applicable."""

    seconds: float
    #: Resident bytes of the worker's processes, and of the collector's.
    worker: int
    collector: int | None
    #: Bytes allocated by the broker (in a soak without garbage), its resident bytes, and its files.
    broker: int
    broker_rss: int | None
    disk: int | None
    #: Messages that wait in the first delay queue and in the queue of the tasks, and attempts up to now.
    parked: int
    ready: int
    attempts: int


@dataclass
class Record:
    """The samples of a run and its events: ``marks`` by the seconds of the samples."""

    #: The kind of run: ``classic`` or ``quorum`` for the parked million, ``soak``.
    name: str
    machine: dict[str, str] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    samples: list[Sample] = field(default_factory=list)
    marks: dict[str, float] = field(default_factory=dict)

    def to_json(self) -> str:
        """Return the record as JSON, for `from_json`."""
        return json.dumps({**asdict(self), "samples": [list(asdict(each).values()) for each in self.samples]}) + "\n"

    def at(self, mark: str) -> Sample:
        """Return the first sample from a mark on, or the last one."""
        return next((each for each in self.samples if each.seconds >= self.marks[mark]), self.samples[-1])

    def between(self, first: str, last: str) -> list[Sample]:
        """Return the samples from one mark to another; at least one."""
        found = [each for each in self.samples if self.marks[first] <= each.seconds <= self.marks[last]]
        return found or [self.at(first)]


def from_json(text: str) -> Record:
    """Return an earlier run's record."""
    found = json.loads(text)
    return Record(**{**found, "samples": [Sample(*values) for values in found["samples"]]})


def tables(record: Record) -> list[Table]:
    """Return (title, titles of the columns, rows) of all tables; the first column is text."""
    return _soak_tables(record) if record.name == "soak" else _haul_tables(record)


def _haul_tables(record: Record) -> list[Table]:
    warm, most = record.at("warm"), max(record.samples, key=lambda each: each.parked)
    waiting = record.between("parked", "due")
    rows = [
        ["worker MB, warm", _mb(warm.worker)],
        [f"worker MB, {most.parked:,} parked (most)", _mb(max(each.worker for each in waiting))],
        ["worker grew by, MB", f"{worker_growth(record):+.1f} ({'flat' if is_flat(record) else 'grows'})"],
        ["broker MB, before and with all parked", f"{_mb(warm.broker)}, {_mb(most.broker)}"],
        ["broker RSS MB, before and with all parked", f"{_mb(warm.broker_rss)}, {_mb(most.broker_rss)}"],
        ["broker files MB, before and with all parked", f"{_mb(warm.disk)}, {_mb(most.disk)}"],
        ["broker bytes per parked task: memory, files", _each(record, warm, most)],
    ]
    counts = [("rejected by the worker", "rejected"), ("published into the delay queue", "published")]
    rows += [[f"tasks {text}", f"{record.facts[name]:,}"] for text, name in counts]
    rates = [("rejected", "reject_rate"), ("published, confirmed", "publish_rate")]
    rates += [
        ("back from the delay queue, at most", "return_rate"),
        ("done by the worker while they come back", "done_rate"),
    ]
    rows += [[f"{text}, a second", f"{rate:,.0f}"] for text, name in rates if (rate := record.facts.get(name))]
    rows.append(["tasks that were done", f"{record.facts['done']:,} of {record.facts['messages']:,}"])
    return [(f"{most.parked:,} parked, {record.name}", ["", "measured"], rows)]


def _each(record: Record, warm: Sample, most: Sample) -> str:
    parked = max(1, most.parked - warm.parked)
    files = "-" if most.disk is None or warm.disk is None else f"{(most.disk - warm.disk) / parked:,.0f}"
    return f"{(most.broker - warm.broker) / parked:,.0f}, {files}"


def worker_growth(record: Record) -> float:
    """Return the worker's largest growth in MB while everything was parked."""
    return (max(each.worker for each in record.between("parked", "due")) - record.at("warm").worker) / _MB


def is_flat(record: Record) -> bool:
    """Whether the worker's memory stayed within the bound while everything was parked."""
    return worker_growth(record) <= BOUNDS["worker"]


def _soak_tables(record: Record) -> list[Table]:
    times = [each.seconds for each in record.samples]
    rows = []
    for name, bound in BOUNDS.items():
        values = [value / _MB for each in record.samples if (value := getattr(each, name)) is not None]
        found = trend(times, values, after=times[-1] * WARM_UP) if len(values) == len(times) else None
        if found is None:
            rows.append([name, *["-"] * 5, "too few samples"])
            continue
        sure = f"{found.low:+.2f} to {found.high:+.2f}"
        cells = [f"{found.first:.1f}", f"{found.last:.1f}", f"{found.per_hour:+.2f}", sure, f"{found.growth:+.2f}"]
        rows.append([name, *cells, f"{found.verdict(bound)} (bound {bound:g})"])
    head = ["", "MB, warm", "MB, end", "MB an hour", "95 %", "grew by, MB", "verdict"]
    counts = [[name, f"{value:,}"] for name, value in record.facts.items() if isinstance(value, int)]
    return [("Growth in the soak", head, rows), ("What was done", ["", "count"], counts)]


def panels(record: Record) -> list[Lines]:
    """Return the panels of the chart: memory, messages, and for the parked million rates and files."""
    minutes = [each.seconds / 60 for each in record.samples]
    marks = [(record.marks[name] / 60, name) for name in ("rejected", "parked", "due") if name in record.marks]

    def of(field_name: str, label: str, colour: str, unit: float) -> tuple[str, str, Sequence[float], Sequence[float]]:
        found = [
            (at, value / unit)
            for at, each in zip(minutes, record.samples, strict=True)
            if (value := getattr(each, field_name)) is not None
        ]
        return label, colour, [at for at, _ in found], [value for _, value in found]

    memory = [of("worker", "worker, RSS", OURS, _MB), of("broker", "broker, allocated", _BROKER, _MB)]
    waiting = [of("parked", "parked", OURS, 1000), of("ready", "ready", OTHER, 1000)]
    if record.name == "soak":
        memory.append(of("collector", "collector, RSS", "#ef6c00", _MB))
        waiting[0] = of("parked", "in the first delay queue", OURS, 1000)
        return [Lines("MB", "minutes", memory), Lines("Thousand messages", "minutes", waiting)]
    memory.append(of("broker_rss", "broker, RSS", OTHER, _MB))
    return [
        Lines("Thousand messages", "minutes", waiting, marks),
        Lines("Worker, MB", "minutes", memory[:1], marks),
        Lines("Broker, MB", "minutes", memory[1:], marks),
        Lines("Broker's files, MB", "minutes", [of("disk", "files", _BROKER, _MB)], marks),
    ]


def most_per_second(samples: Sequence[Sample]) -> float:
    """Return the highest rate, over 10 s, at which messages left the delay queue."""
    best = 0.0
    for number, first in enumerate(samples):
        last = next((each for each in samples[number + 1 :] if each.seconds - first.seconds >= 10), None)
        if last is not None:
            best = max(best, (first.parked - last.parked) / (last.seconds - first.seconds))
    if not best:
        best = max(
            ((one.parked - two.parked) / (two.seconds - one.seconds) for one, two in pairwise(samples)), default=0.0
        )
    return best


def _mb(value: int | None) -> str:
    return "-" if value is None else f"{value / _MB:,.1f}"
