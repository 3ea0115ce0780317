"""Report the measured memory and disk of a broker: the table, and the constants for ``rmq-delay capacity``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from rich.console import Console

from benchmarks.output import print_tables, terminal
from celery_rmq_delay.ladders import QueueType
from celery_rmq_delay.operations.capacity import CONSTANTS, VERSIONS

TYPES: tuple[QueueType, ...] = ("classic", "quorum")
EXCHANGES = ("direct", "topic")


@dataclass(frozen=True)
class Row:
    """Bytes for one of ``count`` objects. ``at_once`` is memory before any garbage collection."""

    what: str
    kind: str
    size: int
    count: int
    at_once: float
    memory: float
    rss: float
    disk: float


def constants(facts: dict[str, Any], rows: Sequence[Row], deaths: Sequence[int]) -> dict[str, float]:
    """Return the measured constants of `celery_rmq_delay.operations.capacity`.

    The largest over all sizes; memory after a collection, for queues the resident memory if that is larger.
    """

    def of(what: str, kind: str, *, over: bool = False) -> Iterator[Row]:
        for row in rows:
            if row.what.startswith(what) and row.kind == kind:
                body = row.size if over else 0
                yield replace(row, memory=row.memory - body, disk=row.disk - body)

    parked = {kind: list(of("parked message", kind, over=True)) for kind in TYPES}
    kept = min(row.memory + row.size for row in parked["classic"]) > min(row.size for row in parked["classic"])
    flushed = list(of("parked message, flushed", "quorum"))
    logged = [row for row in parked["quorum"] if row.what == "parked message"]
    empty = {kind: list(of("empty delay queue", kind)) for kind in TYPES}
    return {
        "node": facts["rss"],
        "classic_kept": max(row.memory for row in parked["classic"]) if kept else 0,
        "classic_stored": 0 if kept else max(row.memory for row in of("parked message", "classic")),
        "classic_disk": max(row.disk for row in parked["classic"]),
        "classic_queue": max(max(row.memory, row.rss) for row in empty["classic"]),
        "classic_queue_disk": max(row.disk for row in empty["classic"]),
        "quorum_message": max(row.memory for row in flushed),
        "quorum_disk": max(row.disk for row in parked["quorum"]),
        "quorum_queue": max(max(row.memory, row.rss) for row in empty["quorum"]),
        "quorum_queue_disk": max(row.disk for row in empty["quorum"]),
        "wal_message": max(row.memory for row in logged),
        "binding": max(row.memory for kind in EXCHANGES for row in of("binding", kind)),
        "binding_disk": max(row.disk for kind in EXCHANGES for row in of("binding", kind)),
        "exchange": max(row.memory for row in of("exchange", "headers")),
        "death": deaths[0],
        "death_more": max(after - before for before, after in pairwise(deaths)),
    }


def print_rows(rows: Sequence[Row], title: str) -> Console:
    console = terminal(140)
    table = []
    for row in rows:
        cells = [row.what, row.kind, str(row.size or "-"), f"{row.count:,}"]
        table.append([*cells, *(f"{value:,.0f}" for value in (row.at_once, row.memory, row.rss, row.disk))])
    head = ("what", "kind", "body", "count", "at once", "collected", "RSS", "disk")
    print_tables(console, [(title, head, table)], texts=2)
    return console


def print_report(facts: dict[str, Any], rows: Sequence[Row], deaths: Sequence[int]) -> None:
    console = print_rows(rows, f"Bytes each, RabbitMQ {facts['rabbitmq']}, one node")
    version = ".".join(facts["rabbitmq"].split(".")[:2])
    planned = {each.name: each.of(version) for each in CONSTANTS if version in VERSIONS}
    known = [
        [name, f"{value:,.0f}", f"{planned[name]:,.0f}" if planned else "-"]
        for name, value in constants(facts, rows, deaths).items()
    ]
    print_tables(console, [("Constants of rmq-delay capacity", ("constant", "measured", "in capacity.py"), known)])
    console.print(f"headers that a tier adds, bytes by retries: {', '.join(map(str, deaths))}")
    console.print(
        f"an idle node: {facts['memory'] / 2**20:.0f} MiB of Erlang memory, {facts['rss'] / 2**20:.0f} MiB RSS"
    )
    console.print(f"high watermark {facts['high_watermark']:g}, write-ahead log {facts['wal_max_size_bytes']:,} bytes")
