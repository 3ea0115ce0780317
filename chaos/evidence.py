"""The state at the end of a run: in the broker, in the tables, in the history files. Read directly, with SQL and
Parquet, not through the package."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import amqp
import psycopg
import pyarrow.parquet as parquet

from chaos.world import World

#: An attempt in tables and files: event id, task id, kind, attempt.
AttemptRow = tuple[str, str, str, int]


@dataclass
class Record:
    """A row of the table of tasks."""

    state: str
    attempt: int
    reason: str


@dataclass
class Evidence:
    """All data at the end of a run."""

    queues: dict[str, int] = field(default_factory=dict)
    #: Task ids by the queue in which their messages are left.
    left: dict[str, list[str]] = field(default_factory=dict)
    records: dict[str, Record] = field(default_factory=dict)
    attempts: list[AttemptRow] = field(default_factory=list)
    history: list[AttemptRow] = field(default_factory=list)

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)))

    @classmethod
    def load(cls, path: Path) -> Evidence:
        raw = json.loads(path.read_text())
        records = {task: Record(**record) for task, record in raw["records"].items()}
        rows = {name: [tuple(each) for each in raw[name]] for name in ("attempts", "history")}
        return cls(raw["queues"], raw["left"], records, rows["attempts"], rows["history"])


def gather(world: World) -> Evidence:
    """Read all data; messages in queues are consumed."""
    queues = {name: count for name, count in world.queues().items() if count}
    found = Evidence(queues, {name: list(_ids(world, name)) for name in queues})
    with psycopg.connect(world.database_url) as connection:
        rows = connection.execute("SELECT task_id, state, attempt, reason FROM rmq_delay_taskrecord")
        found.records = {task: Record(state, attempt, reason) for task, state, attempt, reason in rows}
        attempts = connection.execute(
            "SELECT event_id, task_id, kind, a.attempt FROM rmq_delay_attempt a "
            "JOIN rmq_delay_taskrecord t ON t.id = a.record_id"
        )
        found.attempts = [tuple(row) for row in attempts]
    found.history = history(world.history)
    return found


def _ids(world: World, queue: str) -> list[str]:
    found = []
    with amqp.Connection(f"127.0.0.1:{world.living_node.port}", "guest", "guest") as connection:
        channel: Any = connection.channel()
        while message := channel.basic_get(queue):
            found.append(str((message.headers or {}).get("id")))
    return found


def history(folder: Path) -> list[AttemptRow]:
    """Return the attempts in the history files, without rollups."""
    found: list[AttemptRow] = []
    for path in sorted(folder.glob("**/*.parquet")):
        table = parquet.read_table(path, columns=["event_id", "task_id", "kind", "attempt"], partitioning=None)
        found += [
            (each["event_id"], each["task_id"], each["kind"], each["attempt"])
            for each in table.to_pylist()
            if each["kind"] != "rollup"
        ]
    return found
