"""SIGTERM and SIGINT during a run in a process of its own: the exit code, one line, and nothing left behind."""

import os
import signal
import subprocess
import sys

import pytest

from celery_rmq_delay.history.output import CURRENT
from tests.support.spark.cluster import STARTS_SOONER
from tests.support.spark.frames import NOON, event
from tests.support.spark.history_files import shown, write

pytestmark = pytest.mark.slow

SECONDS = 120
ROWS = 3_000


@pytest.fixture
def history(tmp_path):
    rows = [event("parked", number, f"t{number}", tier=1, delay_ms=10_000) for number in range(ROWS)]
    write(tmp_path / "history", rows)
    return tmp_path / "history"


def run(history, output):
    """Start a run in a process group of its own."""
    conf = ("--master", "local[2]", "--conf", "spark.driver.memory=1g")
    java = ("--conf", f"spark.driver.extraJavaOptions={STARTS_SOONER}")
    command = [sys.executable, "-m", "celery_rmq_delay.analytics", "run", *conf, *java]
    return subprocess.Popen(
        [*command, "--input", str(history), "--output", str(output), "--no-advice", "--no-progress", "--no-compact"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def lines_until(process, start):
    """Read what a run prints until a line begins with ``start``."""
    assert process.stderr is not None
    for line in process.stderr:
        yield line
        if line.startswith(start):
            return
    raise AssertionError("the run has ended")


@pytest.mark.parametrize(
    ("number", "to_all"),
    [
        (signal.SIGTERM, False),
        pytest.param(signal.SIGINT, False, marks=pytest.mark.slow),
        pytest.param(signal.SIGTERM, True, marks=pytest.mark.slow),
    ],
    ids=["SIGTERM", "SIGINT", "SIGTERM to Java, too"],
)
def test_a_signal_ends_a_run_with_one_line_and_leaves_nothing_behind(history, tmp_path, number, to_all):
    output = tmp_path / "output"
    with run(history, output) as process:
        for _line in lines_until(process, "attempts: "):
            pass
        assert len(list((output / "runs").iterdir())) == 1
        (os.killpg if to_all else os.kill)(process.pid, number)
        printed, errors = process.communicate(timeout=SECONDS)
    assert process.returncode == 128 + number
    assert printed == ""
    others = [line for line in errors.splitlines() if not line.endswith((" ...", " s"))]
    assert others == [f"Stopped by {number.name}: ending the running job."]
    assert [path for path in output.rglob("*") if path.name != "runs"] == []


@pytest.mark.slow
def test_a_run_that_is_stopped_after_it_was_published_keeps_its_tables(history, tmp_path):
    output = tmp_path / "output"
    with run(history, output) as process:
        for _line in lines_until(process, "publish ..."):
            pass
        while not (output / CURRENT).exists():
            assert process.poll() is None
        process.terminate()
        process.communicate(timeout=SECONDS)
    assert process.returncode in (0, 143), "it may have ended already"
    assert sorted(path.name for path in output.iterdir()) == [CURRENT, "runs"]
    assert NOON.date() in shown(output).tables["attempts"]
