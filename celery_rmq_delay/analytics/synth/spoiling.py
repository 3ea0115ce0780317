"""Bad rows and files, which no collector writes, to test cleaning."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ...events import schema as events
from ...history.schema import SCHEMA
from .rows import worker_names
from .spec import Spec

_Row = dict[str, Any]
_NULLABLE = pa.schema([field.with_nullable(True) for field in SCHEMA])


def _changed(**values: Any) -> Callable[[_Row], _Row]:
    return lambda row: row | values


#: Ways to spoil a row, by the reason that cleaning reports.
_WAYS: tuple[tuple[str, Callable[[_Row], _Row]], ...] = (
    ("missing:task", _changed(task=None)),
    ("missing:queue", _changed(queue=None)),
    ("missing:kind", _changed(kind=None)),
    ("missing:event_id", _changed(event_id=None)),
    ("missing:occurred_at", _changed(occurred_at=None)),
    ("unknown_kind", _changed(kind="vanished")),
    ("from_the_future", _changed(occurred_at=datetime(2200, 1, 1, tzinfo=timezone.utc))),
    ("bad_count", _changed(attempt=-1)),
    ("bad_count", _changed(delay_ms=-5)),
    ("no_task_id", _changed(task_id=None)),
)


def bad_rows(spec: Spec) -> tuple[pa.Table, Counter[str]]:
    """Return ``spec.bad_rows`` unusable rows, and their number by reason."""
    ways = [_WAYS[index % len(_WAYS)] for index in range(spec.bad_rows)]
    rows = [spoil(_good_row(spec, index)) for index, (_reason, spoil) in enumerate(ways)]
    return pa.Table.from_pylist(rows, _NULLABLE), Counter(reason for reason, _spoil in ways)


def bad_files(spec: Spec) -> dict[str, bytes]:
    """Return contents of files that cannot be read, or not correctly, by what is wrong with them."""
    good = pa.Table.from_pylist([_good_row(spec, index) for index in range(10)], SCHEMA)
    whole = _parquet(good)
    without = good.drop_columns(["queue"])
    kinds = good.set_column(SCHEMA.get_field_index("ladder_ms"), "ladder_ms", pa.array(["10s, 1m"] * good.num_rows))
    return {
        "truncated": whole[: len(whole) // 2],
        "empty": b"",
        "no-parquet": b"task,queue\nshop.tasks.charge,payments\n",
        "no-rows": _parquet(good.slice(0, 0)),
        "missing-column": _parquet(without),
        "wrong-type": _parquet(kinds),
    }


def _good_row(spec: Spec, index: int) -> _Row:
    task = spec.shop.tasks[0]
    task_id = f"bad-{spec.seed}-{index}"
    moment = datetime.combine(spec.start, datetime.min.time(), timezone.utc) + timedelta(seconds=index % 86_000)
    return {
        "event_id": events.event_id(task_id, 0, 0, events.PARKED),
        "kind": events.PARKED,
        "occurred_at": moment,
        "task_id": task_id,
        "root_id": task_id,
        "task": task.name,
        "queue": task.queue,
        "worker": worker_names(spec)[0],
        "generation": 0,
        "attempt": 0,
        "tier": 1,
        "delay_ms": 10_000,
        "due_at": moment + timedelta(seconds=10),
        "first_failed_at": moment,
        "crashes": 0,
        "ladder_ms": [10_000],
    }


def _parquet(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]
