"""The benchmark of the history: DuckDB's tables agree with the truth; measurements and errors."""

from __future__ import annotations

import sys
from pathlib import Path

import duckdb
import pytest

from benchmarks import history, history_duckdb
from celery_rmq_delay.analytics import synth


def test_the_tables_of_duckdb_agree_with_the_truth(tmp_path: Path) -> None:
    truth = synth.write(str(tmp_path / "in"), synth.Spec(attempts=5_000, days=2))
    counts = truth["counts"]
    history_duckdb.run(tmp_path / "in", tmp_path / "out", memory="500MB")
    with duckdb.connect() as connection:

        def one(query: str) -> tuple[int, ...]:
            found = connection.execute(query).fetchone()
            assert found is not None
            return found

        def table(name: str) -> str:
            return f"read_parquet('{tmp_path}/out/{name}.parquet')"

        assert one(f"SELECT count(*) FROM {table('attempts')} WHERE outcome <> 'discarded'") == (counts["attempts"],)
        assert one(f"SELECT count(*), sum(failed_attempts) FROM {table('episodes')}") == (
            counts["episodes"],
            counts["attempts"] - counts["events.recovered"],
        )
        assert one(f"SELECT sum(failures), sum(recovered), sum(first_attempts) FROM {table('hourly')}") == (
            counts["attempts"] - counts["events.recovered"],
            counts["events.recovered"],
            counts["ok_count"] + counts["episodes"],
        )
        assert one(f"SELECT sum(parked) FROM {table('tier_outcomes')}") == (counts["attempts"] - counts["episodes"],)
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        f"{name}.parquet" for name in history_duckdb.STEPS if name != "clean"
    }


def test_a_difference_between_the_outputs_is_found(tmp_path: Path) -> None:
    for name, seed in (("one", 1), ("other", 2)):
        synth.write(str(tmp_path / f"{name}-in"), synth.Spec(attempts=500, days=2, seed=seed))
        history_duckdb.run(tmp_path / f"{name}-in", tmp_path / name, memory="500MB")

    def ours(table: str) -> list[str]:
        return [str(tmp_path / "one" / f"{table}.parquet")]

    assert history_duckdb.differences(ours, tmp_path / "one") == []
    found = history_duckdb.differences(ours, tmp_path / "other")
    assert {each.partition(",")[0] for each in found} == set(history_duckdb.SAME)


def test_a_process_is_measured_with_its_memory(tmp_path: Path) -> None:
    hold = "import time\nheld = b'x' * 80_000_000\ntime.sleep(1.5)\nprint('done')"
    cost = history.measure([sys.executable, "-c", hold], tmp_path / "log")
    assert cost.peak_bytes > 80_000_000
    assert cost.seconds > 1.5
    assert (tmp_path / "log").read_text() == "done\n"


def test_a_process_that_fails_ends_the_benchmark_with_its_output(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"exit code 3\nno Java"):
        history.measure([sys.executable, "-c", "print('no Java'); raise SystemExit(3)"], tmp_path / "log")


def test_bounds_that_are_not_kept_are_errors() -> None:
    def row(attempts: int, seconds: float, peak: int = 10**9) -> history.Row:
        return history.Row("pipeline", attempts, history.Cost(seconds, seconds, peak), attempts, 1, 1, {})

    good = history.Results([row(10_000_000, 100), row(100_000_000, 1_000)])
    bad = history.Results([row(10_000_000, 100), row(100_000_000, 1_900, 9 * 1024**3)])
    assert good.errors() == []
    assert [error.split(":")[0] for error in bad.errors()] == [
        "ten times the attempts cost 19.0 times the seconds",
        "100,000,000 attempts",
        "100,000,000 attempts",
    ]


def test_earlier_measurements_are_read_back() -> None:
    cost = history.Cost(1.5, 2.5, 10**9)
    measured = history.Results([history.Row("pipeline", 1_000, cost, 1_100, 5, 6, {"attempts": 1.25}, ["one"])])
    assert history.measured_before(measured.to_json({})) == measured
