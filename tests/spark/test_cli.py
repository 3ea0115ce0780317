"""The commands in the running session: output, files and errors."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pyarrow import parquet

from celery_rmq_delay.analytics.cli import main
from celery_rmq_delay.analytics.storage.compaction import LEAST_FILES
from tests.support.corpus import corpus
from tests.support.spark.frames import NOON, event
from tests.support.spark.history_files import days_of, write

DAY = NOON.date()
ROWS = 2 * LEAST_FILES


@dataclass(frozen=True)
class Done:
    """A history, the output of a run, and what the run printed."""

    history: Path
    output: Path
    report: dict[str, Any]


def command(*words):
    return CliRunner().invoke(main, [str(word) for word in words], catch_exceptions=False)


@pytest.fixture(scope="module")
def done(shared_spark, tmp_path_factory):
    """Small files that are merged into one, in a folder whose name is escaped in a URL, and leftovers of a merge."""
    place = tmp_path_factory.mktemp("commands")
    history, output = place / "my history", place / "my insights"
    for number in range(LEAST_FILES):
        parked = event("parked", number, f"t{number}", tier=1, delay_ms=10_000)
        write(history, [parked, event("recovered", number + 11, f"t{number}", attempt=1)])
    left = history / f"day={DAY}" / "_compact-left"
    left.mkdir()
    (left / "part-0.parquet").write_text("unfinished")
    where = ("--input", history.as_uri(), "--output", f"{place.as_uri()}/my%20insights")
    words = ("run", *where, "--from", DAY, "--to", DAY, "--lookback", "1d", "--no-advice", "--json")
    found = shared_spark.run(lambda spark: command(*words, "--conf", "spark.sql.session.timeZone=UTC"))
    assert found.exit_code == 0, found.output
    return Done(history, output, json.loads(found.stdout))


@pytest.mark.slow
def test_run_reads_and_writes_at_the_urls_and_reports_it(done):
    assert done.report["input"] == f"file://{done.history}"
    assert (done.report["rows_in"], done.report["events"], done.report["first_day"]) == (ROWS, ROWS, str(DAY))
    assert days_of(done.output, "attempts") == days_of(done.output, "episodes") == [DAY]
    assert days_of(done.output, "recovery_curve") == []


@pytest.mark.slow
def test_run_merges_the_small_files_of_a_day_that_is_over_and_loses_no_row(done):
    assert done.report["compacted"] == {"files": LEAST_FILES, "into": 1}
    (file,) = (done.history / f"day={DAY}").glob("[!.]*")
    rows = parquet.read_table(file).to_pylist()
    assert len({(row["task_id"], row["kind"]) for row in rows}) == len(rows) == ROWS


def test_describe_lists_the_contents_of_a_history_and_an_output(spark, done):
    (day,) = json.loads(command("describe", "--input", done.history, "--json").stdout)["rows"]
    assert (day["day"], day["files"], day["rows"]) == (str(DAY), 1, ROWS)
    tables = json.loads(command("describe", "--output", done.output, "--json").stdout)["rows"]
    counts = {row["table"]: row["rows"] for row in tables}
    assert (counts["attempts"], counts["episodes"]) == (ROWS, LEAST_FILES)
    assert f"{LEAST_FILES} rows of the kind parked" in command("describe", "--input", done.history).stdout


def test_what_if_estimates_the_results_of_ladders(spark, done):
    limits = ("--max-median", "5m", "--max-p95", "1h", "--min-recovery", "0.5", "--bootstrap-rounds", "0")
    ladders = ("--ladder", "payments=30s,5m", "--ladder", "payments=1m", "--ladder", "mails=1s")
    days = ("--from", DAY, "--to", DAY)
    found = json.loads(command("what-if", "--output", done.output, *days, *ladders, *limits, "--json").stdout)
    assert [(row["queue"], row["ladder"]) for row in found["rows"]] == [("payments", "30s,5m"), ("payments", "1m")]
    assert "no retried failure of the queue mails" in found["notes"]


def test_errors_that_the_user_can_fix_are_one_line(spark, tmp_path):
    for words in (
        ("run", "--input", tmp_path / "none", "--output", tmp_path / "output"),
        ("describe", "--output", "x"),
    ):
        found = command(*words)
        assert (found.exit_code, found.stdout) == (2, "")
        assert "there is no such folder" in found.stderr.splitlines()[-1]


@corpus(
    "words, message",
    [
        ("run --input x --output y --from soon", "--from"),
        ("run --input x --output y --conf spark.driver.memory", "Write NAME=VALUE"),
        ("run --input x --output y --ladder payments", "Write QUEUE=DELAYS"),
        ("run --input x --output y --max-tiers 0", "max_tiers"),
        ("run --input x --output y --max-p95 soon", "--max-p95: found 'soon'. This is not a delay."),
        ("what-if --output y --ladder payments=soon", "--ladder payments: found 'soon'. This is not a delay."),
        ("what-if --output y", "Give at least one --ladder"),
        ("describe", "Give --input, or --output"),
        ("describe --input x --output y", "Give --input, or --output"),
    ],
)
def test_invalid_arguments_are_refused_before_spark_starts(words, message):
    found = command(*words.split())
    assert found.exit_code == 2
    assert message in found.stderr
