"""Write a synthetic history, chunk by chunk in several processes, and its truth: counts, how long failures last."""

from __future__ import annotations

import json
import multiprocessing
import uuid
from collections import Counter
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
from ...history.output import open_folder
from ...history.tables import day_folder
from . import failing
from .failing import Episodes, World, draw_episodes, world_of
from .rows import bad_files, bad_rows, duplicates_of, rollup_table, task_table
from .spec import Spec

#: The file; readers of the history ignore names that begin with ``_``.
TRUTH = "_truth.json"

#: Seconds for which the truth contains the share of failures that have ended.
GRID = np.geomspace(1, 86_400, 100).round(3)

_OUTCOMES = {
    failing.RECOVERED: "recovered",
    failing.USED_UP: "retries_used",
    failing.GAVE_UP: "gave_up",
    failing.CRASHED: "crashed",
    failing.DISCARDED: "discarded",
}


class Tally:
    """Counts of the chunks of a history. Small, as it is sent between processes."""

    def __init__(self, spec: Spec) -> None:
        tasks = len(spec.shop.tasks)
        self.counts: Counter[str] = Counter()
        #: By task: failure episodes by outcome, attempts, informative failure episodes, and those ended by the grid.
        self.outcomes = np.zeros((tasks, len(_OUTCOMES)), np.int64)
        self.attempts = np.zeros(tasks, np.int64)
        self.informative = np.zeros(tasks, np.int64)
        self.over = np.zeros((tasks, len(GRID)), np.int64)

    def add_episodes(self, episodes: Episodes) -> None:
        """Count these episodes."""
        np.add.at(self.outcomes, (episodes.task, episodes.outcome), 1)
        np.add.at(self.attempts, episodes.task, episodes.attempts)
        for task in range(len(self.informative)):
            lasts = np.sort(episodes.lasts[(episodes.task == task) & episodes.is_informative])
            self.informative[task] += len(lasts)
            self.over[task] += np.searchsorted(lasts, GRID, side="right")

    def add(self, other: Tally) -> None:
        """Add the counts of another chunk."""
        for name, count in vars(other).items():
            setattr(self, name, getattr(self, name) + count)


def truth_of(spec: Spec, world: World, tally: Tally) -> dict[str, Any]:
    """Return the content of ``_truth.json``.

    ``recovery`` has for each task and exception the share of failures that have ended after ``grid_s`` seconds:
    ``drawn`` counted over the generated failure episodes, and for independent failures ``expected`` by the
    distribution. Failure episodes that gave up or crashed the worker are left out.
    """
    tasks = spec.shop.tasks
    exceptions = {each.name: each.exception_type for each in spec.shop.dependencies}
    groups = [("task", task.name, [index]) for index, task in enumerate(tasks)]
    for name in dict.fromkeys(exceptions.values()):
        mine = [index for index, task in enumerate(tasks) if exceptions[task.dependency] == name]
        groups.append(("exception", name, mine))
    return {
        "spec": spec.describe(),
        "counts": dict(sorted(tally.counts.items())),
        "tasks": {
            task.name: {
                "attempts": int(tally.attempts[index]),
                "episodes": int(tally.outcomes[index].sum()),
                **{name: int(tally.outcomes[index, which]) for which, name in _OUTCOMES.items()},
            }
            for index, task in enumerate(tasks)
        },
        "grid_s": GRID.tolist(),
        "recovery": [_recovery(spec, tally, *group) for group in groups if tally.informative[group[2]].sum()],
        "outages": _outages(spec, world),
    }


def _recovery(spec: Spec, tally: Tally, scope: str, name: str, mine: list[int]) -> dict[str, Any]:
    informative = tally.informative[mine].sum()
    found = {
        "scope": scope,
        "name": name,
        "episodes": int(informative),
        "drawn": (tally.over[mine].sum(axis=0) / informative).tolist(),
    }
    if spec.outages == "independent":
        known = {each.name: each for each in spec.shop.dependencies}
        of_tasks = [known[spec.shop.tasks[index].dependency] for index in mine]
        shares = [(1 - each.hard) * each.lasting.over(GRID) for each in of_tasks]
        found["expected"] = (np.average(shares, axis=0, weights=tally.informative[mine])).tolist()
    return found


def _outages(spec: Spec, world: World) -> dict[str, list[list[float]]]:
    """Return start and end of each outage by dependency, in seconds from the history's start."""
    return {
        each.name: np.stack([down.starts, down.ends], axis=1).round(3).tolist()
        for each, down in zip(spec.shop.dependencies, world.downtimes, strict=bool(world.downtimes))
    }


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
    system, root = open_folder(url)
    if found := system.get_file_info(fs.FileSelector(root, allow_not_found=True)):
        hint = f"It contains {found[0].base_name!r}: use a new folder, or delete its contents."
        raise SettingsError("output", url, hint)
    system.create_dir(root)
    tally = Tally(spec)
    with _mapped(processes) as mapped:
        for attempts, part in mapped(_write_chunk, [(url, spec, chunk) for chunk in range(_chunks(spec))]):
            tally.add(part)
            if progress is not None:
                progress(attempts)
    _spoil(url, spec, tally)
    text = json.dumps(truth_of(spec, world_of(spec), tally), indent=1)
    with system.open_output_stream(f"{root}/{TRUTH}") as file:
        file.write(text.encode())
    truth: dict[str, Any] = json.loads(text)
    return truth


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
    tally.counts.update(f"events.{kind}" for kind in tasks.column("kind").to_pylist())
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
