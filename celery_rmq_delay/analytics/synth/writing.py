"""Write a synthetic history chunk by chunk, in several processes, each with bounded memory."""

from __future__ import annotations

import json
import multiprocessing
import uuid
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from datetime import datetime, timezone
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import fs

from ...exceptions import SettingsError
from ...history.columns import day_folder
from ...history.output import open_folder
from .failing import draw_episodes
from .rows import duplicates_of, rollup_table, task_table
from .spec import Spec
from .spoiling import bad_files, bad_rows
from .truth import NAME, Tally, truth_of
from .world import world_of

_DAY_US = 86_400_000_000

#: Called with the number of attempts written since the last call.
Progress = Callable[[int], object]


def write(url: str, spec: Spec, *, processes: int = 1, progress: Progress | None = None) -> dict[str, Any]:
    """Write the history that ``spec`` describes under ``url``; return its truth, which is also in ``_truth.json``.

    ``url`` is a folder, or a URL of `pyarrow.fs` (``s3://``, ``gs://``, ``hdfs://``). The files are like those of the
    collector. The same ``spec`` writes the same rows into the same files, with any number of ``processes``; a script
    that uses several needs ``if __name__ == "__main__":``. Raises `SettingsError` if the folder is not empty.
    """
    if processes < 1:
        raise SettingsError("processes", processes, "Use at least 1.")
    _check_empty(url)
    tally = Tally(spec)
    with _mapped(processes) as mapped:
        for attempts, part in mapped(_write_chunk, [(url, spec, chunk) for chunk in range(_chunks(spec))]):
            tally.add(part)
            if progress is not None:
                progress(attempts)
    _spoil(url, spec, tally)
    text = json.dumps(truth_of(spec, world_of(spec), tally), indent=1)
    system, root = open_folder(url)
    with system.open_output_stream(f"{root}/{NAME}") as file:
        file.write(text.encode())
    found: dict[str, Any] = json.loads(text)
    return found


@contextmanager
def _mapped(processes: int) -> Iterator[Callable[..., Iterable[Any]]]:
    if processes == 1:
        yield map
        return
    # A fork would copy the locks of Arrow's threads.
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
        yield pool.map


def _chunks(spec: Spec) -> int:
    return -(-spec.attempts // spec.chunk_attempts)


def _write_chunk(job: tuple[str, Spec, int]) -> tuple[int, Tally]:
    """Generate and write one chunk: a share of the tasks in time order; return its attempts and its counts."""
    url, spec, chunk = job
    chunks = _chunks(spec)
    attempts = (chunk + 1) * spec.attempts // chunks - chunk * spec.attempts // chunks
    share = chunk / chunks, (chunk + 1) / chunks
    world, random = world_of(spec), np.random.default_rng([spec.seed, 3, chunk])
    tally = Tally(spec)
    episodes = draw_episodes(spec, world, random, attempts, share)
    tally.add_episodes(episodes)
    tasks = task_table(spec, episodes, random)
    rollups = rollup_table(spec, world, random, round(attempts * spec.rollups), share)
    repeated = duplicates_of(tasks, spec.duplicates, random)
    for kind, count in zip(
        *np.unique(tasks.column("kind").to_numpy(zero_copy_only=False), return_counts=True), strict=True
    ):
        tally.counts[f"events.{kind}"] += int(count)
    tally.counts["attempts"] += attempts
    tally.counts["episodes"] += len(episodes)
    tally.counts["events.rollup"] += rollups.num_rows
    tally.counts["ok_count"] += pc.sum(rollups.column("ok_count")).as_py() or 0
    tally.counts["duplicates"] += repeated.num_rows
    table = pa.concat_tables([tasks, rollups, repeated])
    tally.counts["rows"] += table.num_rows
    is_late = random.random(table.num_rows) < spec.late
    for late in (False, True):
        mine = table.filter(pa.array(is_late == late))
        tally.counts["files"] += _write_days(url, spec, mine, f"{spec.seed}/{chunk}/{late}")
    tally.counts["late"] += int(is_late.sum())
    return attempts, tally


def _write_days(url: str, spec: Spec, table: pa.Table, name: str) -> int:
    """Write rows into the folders of their days, in time order; return the number of files."""
    system, root = open_folder(url)
    table = table.sort_by("occurred_at")
    days = pc.cast(table.column("occurred_at"), pa.int64()).to_numpy() // _DAY_US
    count = 0
    for day in np.unique(days):
        begin, end = np.searchsorted(days, [day, day + 1])
        folder = f"{root}/{day_folder(datetime.fromtimestamp(int(day) * 86_400, timezone.utc))}"
        system.create_dir(folder)
        for at in range(begin, end, spec.file_rows):
            part = uuid.uuid5(uuid.NAMESPACE_OID, f"{name}/{day}/{at}").hex
            rows = table.slice(at, min(spec.file_rows, end - at))
            pq.write_table(rows, f"{folder}/part-{part}.parquet", filesystem=system, compression="zstd")
            count += 1
    return count


def _spoil(url: str, spec: Spec, tally: Tally) -> None:
    """Add bad rows and files, if requested."""
    system, root = open_folder(url)
    folder = f"{root}/{day_folder(spec.start)}"
    system.create_dir(folder)
    if spec.bad_rows:
        rows, reasons = bad_rows(spec)
        tally.counts.update({f"bad.{reason}": count for reason, count in reasons.items()})
        pq.write_table(rows, f"{folder}/part-bad-rows.parquet", filesystem=system)
    if spec.bad_files:
        for name, content in bad_files(spec).items():
            with system.open_output_stream(f"{folder}/part-{name}.parquet") as file:
                file.write(content)
            tally.counts[f"bad_file.{name}"] += 1


def _check_empty(url: str) -> None:
    system, root = open_folder(url)
    found = system.get_file_info(fs.FileSelector(root, allow_not_found=True))
    if found:
        hint = f"It contains {found[0].base_name!r}: use a new folder, or delete its contents."
        raise SettingsError("output", url, hint)
    system.create_dir(root)
