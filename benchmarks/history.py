"""What the pipeline over the history costs, by the number of attempts, and what DuckDB takes for the same tables.

    python -m benchmarks history                              # 1, 10 and 100 million attempts; see _DISK_PER_ATTEMPT
    python -m benchmarks history --keep FOLDER --json found.json --resume
    python -m benchmarks history --sizes 1e5 -- --conf spark.driver.memory=2g

Each size is generated (`celery_rmq_delay.analytics.synth`) and read by
``python -m celery_rmq_delay.analytics run --no-compact`` in a process of its own, on two cores. Memory is the largest
sum of resident bytes of its process tree (JVM and Python workers), looked at twice a second. What the run counted is
compared with the truth of the history. Sizes up to ``--duckdb-up-to`` are then done by DuckDB, also in its own process,
and the tables compared. Everything written is deleted afterwards, but for the histories with ``--keep``, which the next
run finds there. ``--json`` is written after every size; with ``--resume`` sizes that are in it are not measured again.
Exit code 1 where figures or tables differ or a bound is not kept.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from benchmarks.history_duckdb import differences
from benchmarks.processes import resident, usage
from benchmarks.report import machine
from benchmarks.telling import print_closing, print_tables, table_lines, terminal
from celery_rmq_delay.analytics import synth

#: Aims, on two cores: cost of 100 million attempts against 10 million, seconds and bytes for 100 million.
RATIO, SECONDS, BYTES = 11.0, 1_800.0, 8 * 1024**3
CORES = 2

_SAMPLE_S = 0.5
#: Disk that an attempt takes at most: input, output, and what Spark spills.
_DISK_PER_ATTEMPT = 400
_PACKAGES = ("celery-rmq-delay", "pyspark", "duckdb", "pyarrow", "numpy")


@dataclass(frozen=True)
class Cost:
    """What a process took: wall and CPU seconds, and the most resident bytes of its tree."""

    seconds: float
    cpu: float
    peak_bytes: int


@dataclass(frozen=True)
class Row:
    """One engine over one size."""

    engine: str
    attempts: int
    cost: Cost
    rows_in: int
    bytes_in: int
    bytes_out: int
    #: Seconds by stage, as the engine tells them.
    stages: dict[str, float]
    #: What was found wrong with its figures or tables.
    errors: list[str] = field(default_factory=list)


@dataclass
class Results:
    """Everything that was measured."""

    rows: list[Row] = field(default_factory=list)

    def ratio(self) -> float | None:
        """Return the cost of the largest size of the pipeline against that with a tenth of it."""
        took = {row.attempts: row.cost.seconds for row in self.rows if row.engine == "pipeline"}
        largest = max(took, default=0)
        return took[largest] / took[largest // 10] if largest // 10 in took else None

    def errors(self) -> list[str]:
        """Return what was wrong, and which bounds were not kept."""
        found = [f"{row.attempts:,} attempts: {each}" for row in self.rows for each in row.errors]
        ratio = self.ratio()
        if ratio is not None and ratio > RATIO:
            found.append(f"ten times the attempts cost {ratio:.1f} times the seconds: aim at most {RATIO:.0f}")
        for row in self.rows:
            if row.engine == "pipeline" and row.attempts <= 100_000_000:
                if row.cost.seconds > SECONDS:
                    found.append(f"{row.attempts:,} attempts: {row.cost.seconds:,.0f} s, aim {SECONDS:,.0f} s")
                if row.cost.peak_bytes > BYTES:
                    found.append(f"{row.attempts:,} attempts: {_mb(row.cost.peak_bytes)} MB, aim {_mb(BYTES)} MB")
        return found

    def to_json(self, facts: dict[str, str]) -> str:
        """Return everything, for `measured_before`."""
        rows = [asdict(row) for row in self.rows]
        return json.dumps({"machine": facts, "rows": rows, "ratio": self.ratio(), "errors": self.errors()}, indent=1)


def measured_before(text: str) -> Results:
    """Return the rows of an earlier `Results.to_json`."""
    rows = json.loads(text)["rows"]
    return Results([Row(**{**row, "cost": Cost(**row["cost"])}) for row in rows])


def measure(command: Sequence[str], log: Path) -> Cost:
    """Run a command until it ends; its output goes to ``log``. Raises `SystemExit` with its end where it fails."""
    most, cpu, before, done = 0, 0.0, set[int](), threading.Event()
    begun = time.perf_counter()
    with log.open("wb") as output, subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT) as process:

        def look() -> None:
            nonlocal most, cpu, before
            while not done.wait(_SAMPLE_S):
                cpu = max(cpu, usage(process.pid).cpu)
                found = resident(process.pid)
                # What Java forks seems to have all its memory, until it becomes another program: a moment later.
                most = max(most, sum(size for pid, size in found.items() if pid in before))
                before = set(found)

        watcher = threading.Thread(target=look)
        watcher.start()
        code = process.wait()
        seconds = time.perf_counter() - begun
        done.set()
        watcher.join()
    if code:
        raise SystemExit(f"{' '.join(command)}: exit code {code}\n{log.read_text(errors='replace')[-4_000:]}")
    return Cost(seconds, cpu, most)


def history_of(attempts: int, folder: Path, options: argparse.Namespace) -> tuple[Path, dict[str, int]]:
    """Return a history of so many attempts, and what its truth counts: one that is in the folder, or a new one."""
    history = folder / f"history-{attempts}-{options.days}-days-seed-{options.seed}"
    truth = history / synth.TRUTH
    if not truth.exists():  # it is written last
        shutil.rmtree(history, ignore_errors=True)
        begun = time.perf_counter()
        spec = synth.Spec(attempts=attempts, days=options.days, seed=options.seed)
        synth.write(str(history), spec, processes=CORES)
        _say(f"{attempts:,} attempts were made in {time.perf_counter() - begun:.0f} s")
    counts: dict[str, int] = json.loads(truth.read_text())["counts"]
    _say(f"{attempts:,} attempts in {counts['rows']:,} rows and {_mb(_bytes_of(history))} MB")
    return history, counts


def run_size(attempts: int, folder: Path, options: argparse.Namespace) -> list[Row]:
    """Measure the engines over so many attempts."""
    history, counts = history_of(attempts, options.keep or folder, options)
    ours, theirs = folder / "pipeline", folder / "duckdb"
    rows, bytes_in = counts["rows"], _bytes_of(history)

    run = [sys.executable, "-m", "celery_rmq_delay.analytics", "run", "--master", f"local[{CORES}]", "--no-compact"]
    cost = measure([*run, "--input", str(history), "--output", str(ours), *options.run], folder / "run.log")
    [report] = (json.loads(path.read_text()) for path in (ours / "runs").glob("*.json"))
    expected = {"rows_in": rows, "duplicates": counts["duplicates"], "events": rows - counts["duplicates"]}
    wrong = [f"{name}: {report[name]:,}, made {made:,}" for name, made in expected.items() if report[name] != made]
    found = [Row("pipeline", attempts, cost, rows, bytes_in, _bytes_of(ours), report["seconds"], wrong)]
    _say(_told(found[0]))

    if attempts <= options.duckdb_up_to:
        engine = [sys.executable, "-m", "benchmarks.history_duckdb", "--threads", str(CORES)]
        cost = measure([*engine, "--input", str(history), "--output", str(theirs)], folder / "duckdb.log")
        stages = json.loads((folder / "duckdb.log").read_text())
        found.append(
            Row("DuckDB", attempts, cost, rows, bytes_in, _bytes_of(theirs), stages, differences(ours, theirs))
        )
        _say(_told(found[1]))
        _say("The tables agree." if not found[1].errors else "\n".join(found[1].errors[:20]))
    return found


def _told(row: Row) -> str:
    stages = ", ".join(f"{name} {seconds:.1f}" for name, seconds in row.stages.items())
    return (
        f"{row.engine}: {row.cost.seconds:.1f} s, {row.cost.cpu:.0f} s of CPU, {_mb(row.cost.peak_bytes)} MB ({stages})"
    )


def titles() -> list[str]:
    """Return the titles of the table's columns."""
    return ["engine", "attempts", "seconds", "CPU s", "rows/s", "peak MB", "MB in", "MB out"]


def cells(row: Row) -> list[str]:
    """Return a row of the table."""
    return [
        row.engine,
        f"{row.attempts:,}",
        f"{row.cost.seconds:,.1f}",
        f"{row.cost.cpu:,.0f}",
        f"{row.rows_in / row.cost.seconds:,.0f}",
        _mb(row.cost.peak_bytes),
        _mb(row.bytes_in),
        _mb(row.bytes_out),
    ]


def main() -> None:
    """Measure, print; exit code 1 where something is not as it should be."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="1e6,1e7,1e8", help="attempts, with commas")
    parser.add_argument("--days", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--duckdb-up-to", type=float, default=1e7, help="the largest size that DuckDB does, too")
    parser.add_argument("--folder", type=Path, help="where to work (default: the folder for temporary files)")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep histories there, and use those that it has")
    parser.add_argument("--json", type=Path, help="write everything there")
    parser.add_argument("--resume", action="store_true", help="measure only the sizes that --json does not have yet")
    parser.add_argument("run", nargs="*", help="more options of the pipeline, after --")
    options = parser.parse_args()
    sizes = sorted(int(float(each)) for each in options.sizes.split(","))
    facts, results = machine(None, _PACKAGES), Results()
    if options.resume and options.json and options.json.exists():
        results = measured_before(options.json.read_text())
    for attempts in sizes:
        if attempts in {row.attempts for row in results.rows}:
            continue
        with tempfile.TemporaryDirectory(prefix="rmq-delay-history-", dir=options.folder) as folder:
            _check_disk(Path(folder), attempts)
            results.rows += run_size(attempts, Path(folder), options)
        if options.json:
            options.json.write_text(results.to_json(facts))
    _print(results, facts)
    sys.exit(1 if results.errors() else 0)


def _print(results: Results, facts: dict[str, str]) -> None:
    console = terminal(200)
    whole = titles(), [cells(row) for row in results.rows]
    stages = _stages(results.rows)
    print_tables(console, [("The pipeline over the history", *whole), ("Seconds by stage", *stages)])
    ratio = results.ratio()
    aim = f"(aim at most {RATIO:.0f})"
    told = [] if ratio is None else [f"Ten times the attempts cost {ratio:.2f} times the seconds {aim}."]
    markdown = ["\n".join(table_lines(*table)) for table in (whole, stages)]
    print_closing(console, facts, [*markdown, *told, *results.errors()])


def _stages(rows: list[Row]) -> tuple[list[str], list[list[str]]]:
    """Return the seconds of each stage by engine and size: the titles, and the rows."""
    names = list(dict.fromkeys(name for row in rows for name in row.stages))
    found = [[f"{row.stages[name]:,.1f}" if name in row.stages else "" for row in rows] for name in names]
    titles = [f"{row.engine}, {row.attempts:,}" for row in rows]
    return ["stage", *titles], [[name, *each] for name, each in zip(names, found, strict=True)]


def _check_disk(folder: Path, attempts: int) -> None:
    free, needed = shutil.disk_usage(folder).free, attempts * _DISK_PER_ATTEMPT
    if free < needed:
        raise SystemExit(
            f"{folder}: {_mb(free)} MB free, {attempts:,} attempts may take {_mb(needed)} MB: use --folder"
        )


def _bytes_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _mb(count: int) -> str:
    return f"{count / 1e6:,.0f}"


def _say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    main()
