"""Convert failure episodes into events, as rows of the history files; and rows and files that no collector writes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ...events import schema as events
from ...events.fingerprint import fingerprint
from ...history.schema import SCHEMA
from . import failing
from .failing import Episodes, Flags, Ints, World
from .spec import REPEATED_S, Spec

_KINDS = (events.PARKED, events.FORWARDED, events.RECOVERED, events.EXHAUSTED, events.DISCARDED)
_PARKED, _FORWARDED, _RECOVERED, _EXHAUSTED, _DISCARDED = range(len(_KINDS))
_REASONS = ("retries_used", "gave_up", "crashed", "revoked")
_REASON_OF = {failing.USED_UP: 0, failing.GAVE_UP: 1, failing.CRASHED: 2, failing.DISCARDED: 3}
#: Share of failed attempts that are published into their delay queue and not rejected into it.
_FORWARDED_SHARE = 0.03
_MAX_CRASHES = 2
_OWN_FAULTS = (
    ("shop.errors.InvalidOrder", "order 4711 has no address"),
    ("billiard.exceptions.WorkerLostError", "Worker exited prematurely: signal 9 (SIGKILL)"),
)


def start_us(spec: Spec) -> int:
    """Return the history's start in microseconds since the epoch."""
    return int(datetime.combine(spec.start, datetime.min.time(), timezone.utc).timestamp()) * 1_000_000


def worker_names(spec: Spec) -> list[str]:
    """Return the names of the shop's workers."""
    return [f"worker{number + 1}@shop" for number in range(spec.workers)]


def skews_us(spec: Spec) -> Ints:
    """Return the constant error of each worker's clock, in microseconds."""
    random = np.random.default_rng([spec.seed, 2])
    return (random.uniform(-spec.skew_s, spec.skew_s, spec.workers) * 1_000_000).astype(np.int64)


class _TaskEvents(NamedTuple):
    """An element per event, ``kind`` as in `_KINDS`, microseconds; ``attempt`` of a discard: the one not made."""

    episode: Ints
    attempt: Ints
    kind: Ints
    worker: Ints
    ended: Ints
    first_failed: Ints
    runtime: Ints


def task_table(spec: Spec, episodes: Episodes, random: np.random.Generator) -> pa.Table:
    """Return the events of ``episodes``: one per attempt, and one per discard."""
    found = _task_events(spec, episodes, random)
    episode, kind, outcome, tasks = found.episode, found.kind, episodes.outcome[found.episode], spec.shop.tasks
    is_unparked = kind > _FORWARDED
    task = episodes.task[episode]
    delays, tiers = (table[task, episodes.half[episode]] for table in failing.ladder_table(spec))
    at_tier = np.minimum(found.attempt, delays.shape[1] - 1)
    delay_ms = delays[np.arange(len(episode)), at_tier].astype(np.int64)
    task_id = _task_ids(random, len(episodes)).take(pa.array(episode))
    event_ids = [
        events.event_id(name, 0, number, _KINDS[which])
        for name, number, which in zip(task_id.to_pylist(), found.attempt.tolist(), kind.tolist(), strict=True)
    ]
    reason = np.select([outcome == each for each in _REASON_OF], list(_REASON_OF.values()), 0)
    is_crash = (kind == _EXHAUSTED) & (outcome == failing.CRASHED)
    is_discard = kind == _DISCARDED
    return _table(
        {
            "event_id": pa.array(event_ids, pa.string()),
            "kind": _chosen(_KINDS, kind),
            "occurred_at": _moments(found.ended),
            "task_id": task_id,
            "root_id": task_id,
            "task": _chosen([each.name for each in tasks], task),
            "queue": _chosen([each.queue for each in tasks], task),
            "worker": _chosen(worker_names(spec), found.worker),
            "generation": np.zeros(len(episode), np.int32),
            "attempt": found.attempt.astype(np.int32),
            "max_retries": tiers.astype(np.int32),
            "tier": pa.array((found.attempt + 1).astype(np.int32), mask=is_unparked),
            "delay_ms": pa.array(delay_ms, mask=is_unparked),
            "due_at": _moments(found.ended + delay_ms * 1000, is_unparked),
            "first_failed_at": _moments(found.first_failed),
            "started_at": _moments(found.ended - found.runtime, is_discard),
            "runtime_ms": pa.array(found.runtime // 1000, mask=is_discard),
            **_failures(spec, episodes, episode, is_unparked & (kind != _EXHAUSTED)),
            "reason": _chosen(_REASONS, reason, kind < _EXHAUSTED),
            "crashes": np.where(is_crash, _MAX_CRASHES, 0).astype(np.int32),
            "ladder_ms": _ladders(spec, task * 2 + episodes.half[episode]),
        },
        len(episode),
    )


def rollup_table(
    spec: Spec, world: World, random: np.random.Generator, count: int, share: tuple[float, float]
) -> pa.Table:
    """Return ``count`` rollups of first attempts that succeeded."""
    tasks, workers = spec.shop.tasks, worker_names(spec)
    rates = np.array([task.rate for task in tasks])
    task = random.choice(len(tasks), count, p=rates / rates.sum())
    worker = random.integers(0, spec.workers, count)
    seconds = world.season.times(share[0] + random.random(count) * (share[1] - share[0]))
    slots = (start_us(spec) // 1_000_000 + seconds.astype(np.int64)) // events.ROLLUP_SECONDS
    nonces = random.integers(0, 2**63, count)
    ids = [
        events.rollup_id(workers[who], tasks[what].name, tasks[what].queue, slot, f"{nonce:016x}")
        for who, what, slot, nonce in zip(worker.tolist(), task.tolist(), slots.tolist(), nonces.tolist(), strict=True)
    ]
    zeros = np.zeros(count, np.int32)
    return _table(
        {
            "event_id": pa.array(ids, pa.string()),
            "kind": _chosen((events.ROLLUP,), zeros),
            "occurred_at": _moments(slots * events.ROLLUP_SECONDS * 1_000_000),
            "task": _chosen([each.name for each in tasks], task),
            "queue": _chosen([each.queue for each in tasks], task),
            "worker": _chosen(workers, worker),
            "generation": zeros,
            "attempt": zeros,
            "crashes": zeros,
            "ladder_ms": pa.array([[]], SCHEMA.field("ladder_ms").type).take(pa.array(zeros)),
            "ok_count": 1 + random.poisson(30 * rates[task] / rates.max()),
        },
        count,
    )


def duplicates_of(table: pa.Table, share: float, random: np.random.Generator) -> pa.Table:
    """Return a share of the rows a second time; half of them are attempts made twice, with a later time."""
    which = np.flatnonzero(random.random(table.num_rows) < share)
    again = table.take(pa.array(which))
    later = (random.random(len(which)) * REPEATED_S * 1_000_000).astype(np.int64) * random.integers(0, 2, len(which))
    index = SCHEMA.get_field_index("occurred_at")
    moments = pc.cast(again.column(index), pa.int64()).to_numpy() + later
    return again.set_column(index, SCHEMA.field(index), _moments(moments))


def _task_events(spec: Spec, episodes: Episodes, random: np.random.Generator) -> _TaskEvents:
    made = np.repeat(np.arange(len(episodes)), episodes.attempts)
    first = np.repeat(np.cumsum(episodes.attempts) - episodes.attempts, episodes.attempts)
    discarded = np.flatnonzero(episodes.outcome == failing.DISCARDED)
    # A discard is an event of its own, after the last attempt that was made.
    episode = np.concatenate([made, discarded])
    attempt = np.concatenate([np.arange(len(made)) - first, episodes.attempts[discarded]])
    is_discard = np.arange(len(episode)) >= len(made)
    kind = np.where(is_discard, _DISCARDED, _PARKED)
    ends = np.where(episodes.outcome == failing.RECOVERED, _RECOVERED, _EXHAUSTED)[episode]
    is_end = (
        ~is_discard & (attempt + 1 == episodes.attempts[episode]) & (episodes.outcome[episode] != failing.DISCARDED)
    )
    kind = np.where(is_end, ends, kind)
    kind[(kind == _PARKED) & (random.random(len(kind)) < _FORWARDED_SHARE)] = _FORWARDED
    worker = random.integers(0, spec.workers, len(episode))

    runtimes = episodes.runtimes[episode, attempt]
    seconds = episodes.origin[episode] + episodes.ends[episode, attempt] - np.where(is_discard, runtimes, 0.0)
    ended = start_us(spec) + (seconds * 1_000_000).astype(np.int64) + skews_us(spec)[worker]
    first_failed = np.zeros(len(episodes), np.int64)
    begins = attempt == 0
    first_failed[episode[begins]] = ended[begins]
    runtime = (runtimes * 1_000_000).astype(np.int64)
    return _TaskEvents(episode, attempt, kind, worker, ended, first_failed[episode], runtime)


def _ladders(spec: Spec, which: Ints) -> pa.Array:
    """Return ladders; ``which`` is twice the task's index, and 1 more in the second half."""
    of_queue = {queue.name: queue.ladders() for queue in spec.shop.queues}
    known = [list(ladder) for task in spec.shop.tasks for ladder in of_queue[task.queue]]
    return pa.array(known, SCHEMA.field("ladder_ms").type).take(pa.array(which))


def _failures(spec: Spec, episodes: Episodes, episode: Ints, nulls: Flags) -> dict[str, pa.Array]:
    """Return the exceptions of the failed attempts."""
    known = [(each.exception_type, each.message) for each in spec.shop.dependencies] + list(_OWN_FAULTS)
    names = [each.name for each in spec.shop.dependencies]
    which = np.array([names.index(task.dependency) for task in spec.shop.tasks])[episodes.task]
    which = np.where(episodes.outcome == failing.GAVE_UP, len(names), which)
    which = np.where(episodes.outcome == failing.CRASHED, len(names) + 1, which)[episode]
    return {
        "exception_type": _chosen([kind for kind, _message in known], which, nulls),
        "exception_message": _chosen([message for _kind, message in known], which, nulls),
        "fingerprint": _chosen([fingerprint(kind, message, None) for kind, message in known], which, nulls),
    }


def _task_ids(random: np.random.Generator, count: int) -> pa.Array:
    """Return ids as Celery creates them: UUIDs as text."""
    raw = np.frombuffer(random.bytes(16 * count), np.uint8).reshape(count, 16)
    digits = np.frombuffer(b"0123456789abcdef", np.uint8)
    text = np.full((count, 36), ord("-"), np.uint8)
    at = [place for place in range(36) if place not in (8, 13, 18, 23)]
    text[:, at[0::2]], text[:, at[1::2]] = digits[raw >> 4], digits[raw & 15]
    text[:, 14] = ord("4")
    text[:, 19] = digits[8 + (raw[:, 8] >> 4) % 4]
    offsets = np.arange(0, 36 * (count + 1), 36, dtype=np.int32)
    return pa.StringArray.from_buffers(count, pa.py_buffer(offsets), pa.py_buffer(text.tobytes()))


def _chosen(values: Sequence[str], which: npt.NDArray[np.integer], nulls: Flags | None = None) -> pa.Array:
    return pa.array(values, pa.string()).take(pa.array(which, mask=nulls))


def _moments(microseconds: Ints, nulls: Flags | None = None) -> pa.Array:
    return pa.array(microseconds, pa.int64(), mask=nulls).cast(SCHEMA.field("occurred_at").type)


def _table(columns: dict[str, object], rows: int) -> pa.Table:
    """Return a table of the history's columns; missing columns are null."""
    nulls = {field.name: pa.nulls(rows, field.type) for field in SCHEMA}
    return pa.table([pa.array({**nulls, **columns}[field.name], field.type) for field in SCHEMA], schema=SCHEMA)


_Row = dict[str, Any]
_NULLABLE = pa.schema([field.with_nullable(True) for field in SCHEMA])


#: Values that spoil a row, by the reason that cleaning reports.
_SPOILT: tuple[tuple[str, _Row], ...] = (
    *((f"missing:{name}", {name: None}) for name in ("task", "queue", "kind", "event_id", "occurred_at")),
    ("unknown_kind", {"kind": "vanished"}),
    ("from_the_future", {"occurred_at": datetime(2200, 1, 1, tzinfo=timezone.utc)}),
    ("bad_count", {"attempt": -1}),
    ("bad_count", {"delay_ms": -5}),
    ("no_task_id", {"task_id": None}),
)


def bad_rows(spec: Spec) -> tuple[pa.Table, Counter[str]]:
    """Return ``spec.bad_rows`` unusable rows, and their number by reason."""
    spoilt = [_SPOILT[index % len(_SPOILT)] for index in range(spec.bad_rows)]
    rows = [_good_row(spec, index) | values for index, (_reason, values) in enumerate(spoilt)]
    return pa.Table.from_pylist(rows, _NULLABLE), Counter(reason for reason, _values in spoilt)


def bad_files(spec: Spec) -> dict[str, bytes]:
    """Return contents of files that cannot be read, or not correctly, by what is wrong with them."""
    good = pa.Table.from_pylist([_good_row(spec, index) for index in range(10)], SCHEMA)
    whole = _parquet(good)
    kinds = good.set_column(SCHEMA.get_field_index("ladder_ms"), "ladder_ms", pa.array(["10s, 1m"] * good.num_rows))
    return {
        "truncated": whole[: len(whole) // 2],
        "empty": b"",
        "no-parquet": b"task,queue\nshop.tasks.charge,payments\n",
        "no-rows": _parquet(good.slice(0, 0)),
        "missing-column": _parquet(good.drop_columns(["queue"])),
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
