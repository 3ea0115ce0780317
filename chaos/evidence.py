"""What is left when a run has come to rest: in the broker, in the tables, in the history files. Read plainly, with SQL
and Parquet, and not through the package."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import amqp
import psycopg
import pyarrow.parquet as parquet

from chaos.world import World

#: An attempt as tables and files have it: event id, task id, kind, attempt.
Told = tuple[str, str, str, int]


@dataclass
class Record:
    """A row of the tasks' table."""

    state: str
    attempt: int
    reason: str


@dataclass
class Evidence:
    """All that is left."""

    queues: dict[str, int] = field(default_factory=dict)
    #: Task ids by the queue that they are left in.
    left: dict[str, list[str]] = field(default_factory=dict)
    records: dict[str, Record] = field(default_factory=dict)
    attempts: list[Told] = field(default_factory=list)
    history: list[Told] = field(default_factory=list)

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)))

    @classmethod
    def load(cls, path: Path) -> Evidence:
        raw = json.loads(path.read_text())
        records = {task: Record(**record) for task, record in raw["records"].items()}
        told = {name: [tuple(each) for each in raw[name]] for name in ("attempts", "history")}
        return cls(raw["queues"], raw["left"], records, told["attempts"], told["history"])


def gather(world: World) -> Evidence:
    """Read what is left; what is in queues is taken out of them."""
    queues = {name: count for name, count in world.queues().items() if count}
    found = Evidence(queues, {name: list(_ids(world, name)) for name in queues})
    with psycopg.connect(world.database_url) as connection:
        rows = connection.execute("SELECT task_id, state, attempt, reason FROM rmq_delay_taskrecord")
        found.records = {task: Record(state, attempt, reason) for task, state, attempt, reason in rows}
        told = connection.execute(
            "SELECT event_id, task_id, kind, a.attempt FROM rmq_delay_attempt a "
            "JOIN rmq_delay_taskrecord t ON t.id = a.record_id"
        )
        found.attempts = [tuple(row) for row in told]
    found.history = history(world.history)
    return found


def _ids(world: World, queue: str) -> list[str]:
    found = []
    with amqp.Connection(f"127.0.0.1:{world.living_node.port}", "guest", "guest") as connection:
        channel: Any = connection.channel()
        while message := channel.basic_get(queue):
            found.append(str((message.headers or {}).get("id")))
    return found


def history(folder: Path) -> list[Told]:
    """Return the attempts in the history files; rollups are none."""
    found: list[Told] = []
    for path in sorted(folder.glob("**/*.parquet")):
        table = parquet.read_table(path, columns=["event_id", "task_id", "kind", "attempt"], partitioning=None)
        found += [
            (each["event_id"], each["task_id"], each["kind"], each["attempt"])
            for each in table.to_pylist()
            if each["kind"] != "rollup"
        ]
    return found
