"""Measure the cost of the history pipeline by the number of attempts, and DuckDB's cost for the same tables.

    python -m benchmarks history                              # 1, 10 and 100 million attempts; see _DISK_PER_ATTEMPT
    python -m benchmarks history --keep FOLDER --json found.json --resume
    python -m benchmarks history --sizes 1e5 -- --conf spark.driver.memory=2g

Each size is generated (`celery_rmq_delay.analytics.synth`) and read by
``python -m celery_rmq_delay.analytics run --no-compact`` in a separate process, on two cores. Memory is the largest sum
of resident bytes of its process tree (JVM and Python workers), sampled twice a second. The counts of the run are
compared with the truth of the history. Sizes up to ``--duckdb-up-to`` are then processed by DuckDB, also in a separate
process, and the tables compared. Everything written is deleted afterwards, except the histories with ``--keep``, which
the next run reuses. ``--json`` is written after every size; with ``--resume`` sizes that it contains are not measured
again. Exit code 1 if figures or tables differ or a bound is exceeded.
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
from benchmarks.output import print_closing, print_tables, table_lines, terminal
from benchmarks.processes import resident, usage
from benchmarks.report import machine
from celery_rmq_delay.analytics import synth
from celery_rmq_delay.history.output import open_tables, table_files

#: Aims, on two cores: cost of 100 million attempts against 10 million, seconds and bytes for 100 million.
RATIO, SECONDS, BYTES = 11.0, 1_800.0, 8 * 1024**3
CORES = 2

_SAMPLE_S = 0.5
#: Most disk space per attempt: input, output, and Spark's spilled data.
_DISK_PER_ATTEMPT = 400
_PACKAGES = ("celery-rmq-delay", "pyspark", "duckdb", "pyarrow", "numpy")


@dataclass(frozen=True)
class Cost:
    """The cost of a process: wall and CPU seconds, and the peak resident bytes of its tree."""

    seconds: float
    cpu: float
    peak_bytes: int


@dataclass(frozen=True)
class Row:
    """The results of one engine for one size."""

    engine: str
    attempts: int
    cost: Cost
    rows_in: int
    bytes_in: int
    bytes_out: int
    #: Seconds by stage, as reported by the engine.
    stages: dict[str, float]
    #: Errors found in its figures or tables.
    errors: list[str] = field(default_factory=list)


@dataclass
class Results:
    """All measurements."""

    rows: list[Row] = field(default_factory=list)

    def ratio(self) -> float | None:
        """Return the ratio of the pipeline's cost for the largest size to that for a tenth of it."""
        took = {row.attempts: row.cost.seconds for row in self.rows if row.engine == "pipeline"}
        largest = max(took, default=0)
        return took[largest] / took[largest // 10] if largest // 10 in took else None

    def errors(self) -> list[str]:
        """Return the errors, and the bounds that were exceeded."""
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
        """Return all measurements, for `measured_before`."""
        rows = [asdict(row) for row in self.rows]
        return json.dumps({"machine": facts, "rows": rows, "ratio": self.ratio(), "errors": self.errors()}, indent=1)


def measured_before(text: str) -> Results:
    """Return the rows of an earlier `Results.to_json`."""
    rows = json.loads(text)["rows"]
    return Results([Row(**{**row, "cost": Cost(**row["cost"])}) for row in rows])


def measure(command: Sequence[str], log: Path) -> Cost:
    """Run a command until it ends; its output goes to ``log``. Raises `SystemExit` with the log's end if it fails."""
    most, cpu, before, done = 0, 0.0, set[int](), threading.Event()
    begun = time.perf_counter()
    with log.open("wb") as output, subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT) as process:

        def sample() -> None:
            nonlocal most, cpu, before
            while not done.wait(_SAMPLE_S):
                cpu = max(cpu, usage(process.pid).cpu)
                found = resident(process.pid)
                # A process forked by Java shows all of Java's memory until it executes another program.
                most = max(most, sum(size for pid, size in found.items() if pid in before))
                before = set(found)

        watcher = threading.Thread(target=sample)
        watcher.start()
        code = process.wait()
        seconds = time.perf_counter() - begun
        done.set()
        watcher.join()
    if code:
        raise SystemExit(f"{' '.join(command)}: exit code {code}\n{log.read_text(errors='replace')[-4_000:]}")
    return Cost(seconds, cpu, most)


def history_of(attempts: int, folder: Path, options: argparse.Namespace) -> tuple[Path, dict[str, int]]:
    """Return a history of this many attempts, and the counts of its truth: an existing one or a new one."""
    history = folder / f"history-{attempts}-{options.days}-days-seed-{options.seed}"
    truth = history / synth.TRUTH
    if not truth.exists():  # it is written last
        shutil.rmtree(history, ignore_errors=True)
        begun = time.perf_counter()
        spec = synth.Spec(attempts=attempts, days=options.days, seed=options.seed)
        synth.write(str(history), spec, processes=CORES)
        _log(f"{attempts:,} attempts were generated in {time.perf_counter() - begun:.0f} s")
    counts: dict[str, int] = json.loads(truth.read_text())["counts"]
    _log(f"{attempts:,} attempts in {counts['rows']:,} rows and {_mb(_bytes_of(history))} MB")
    return history, counts


def run_size(attempts: int, folder: Path, options: argparse.Namespace) -> list[Row]:
    """Measure the engines with this many attempts."""
    history, counts = history_of(attempts, options.keep or folder, options)
    ours, theirs = folder / "pipeline", folder / "duckdb"
    rows, bytes_in = counts["rows"], _bytes_of(history)

    run = [sys.executable, "-m", "celery_rmq_delay.analytics", "run", "--master", f"local[{CORES}]", "--no-compact"]
    cost = measure([*run, "--input", str(history), "--output", str(ours), *options.run], folder / "run.log")
    tables = open_tables(str(ours))
    report = tables.report(tables.manifest.run)
    expected = {"rows_in": rows, "duplicates": counts["duplicates"], "events": rows - counts["duplicates"]}
    wrong = [f"{name}: {report[name]:,}, made {made:,}" for name, made in expected.items() if report[name] != made]
    found = [Row("pipeline", attempts, cost, rows, bytes_in, _bytes_of(ours), report["seconds"], wrong)]
    _log(_summary(found[0]))

    def ours_by_table(table: str) -> list[str]:
        return table_files(str(ours), table)

    if attempts <= options.duckdb_up_to:
        engine = [sys.executable, "-m", "benchmarks.history_duckdb", "--threads", str(CORES)]
        cost = measure([*engine, "--input", str(history), "--output", str(theirs)], folder / "duckdb.log")
        stages = json.loads((folder / "duckdb.log").read_text())
        found.append(
            Row("DuckDB", attempts, cost, rows, bytes_in, _bytes_of(theirs), stages, differences(ours_by_table, theirs))
        )
        _log(_summary(found[1]))
        _log("The tables agree." if not found[1].errors else "\n".join(found[1].errors[:20]))
    return found


def _summary(row: Row) -> str:
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
    """Measure, print; exit code 1 if there are errors."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="1e6,1e7,1e8", help="numbers of attempts, separated by commas")
    parser.add_argument("--days", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--duckdb-up-to", type=float, default=1e7, help="the largest size that DuckDB processes, too")
    parser.add_argument("--folder", type=Path, help="working folder (default: the folder for temporary files)")
    parser.add_argument(
        "--keep", type=Path, metavar="FOLDER", help="keep histories in this folder, and use existing ones"
    )
    parser.add_argument("--json", type=Path, help="write all measurements into this file")
    parser.add_argument("--resume", action="store_true", help="measure only the sizes that --json does not contain")
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
    comparison = [] if ratio is None else [f"Ten times the attempts cost {ratio:.2f} times the seconds {aim}."]
    markdown = ["\n".join(table_lines(*table)) for table in (whole, stages)]
    print_closing(console, facts, [*markdown, *comparison, *results.errors()])


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


def _log(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    main()
