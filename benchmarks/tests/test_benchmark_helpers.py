"""Counting and sampling of the benchmarks, on the test's own processes."""

import os
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.attempts import AttemptLog, read_lateness, read_progress
from benchmarks.contenders import CHECKOUT
from benchmarks.memory_report import TYPES, Row, constants
from benchmarks.processes import end, tree, usage
from benchmarks.retry_roundtrip import package_at
from celery_rmq_delay.operations.capacity import CONSTANTS
from tests.support.waiting import wait_for


def test_attempts_of_several_processes_add_up(tmp_path):
    log = AttemptLog(str(tmp_path), with_times=False)
    log.add(1, started=10.0)
    child = os.fork()
    if not child:
        log.add(2, started=5.0)
        os._exit(0)
    os.waitpid(child, 0)
    progress = read_progress(tmp_path)
    assert (progress.attempts, progress.first) == (2, 5.0)
    assert progress.last <= time.monotonic()


def test_the_lateness_of_a_retry_is_its_wait_beyond_the_delay(tmp_path):
    attempts = [(1, 0.0, 0.5), (2, 0.0, 1.0), (1, 5.75, 6.0), (3, 0.0, 1.0), (2, 6.0, 6.5), (1, 20.0, 21.0)]
    (tmp_path / "1.times").write_bytes(b"".join(struct.pack("<qdd", *each) for each in attempts) + b"cut off")
    assert read_lateness(tmp_path, delay=5.0) == [0.0, 0.25]


def test_a_process_is_measured_and_ended_with_its_children():
    burn = "import time\nuntil = time.process_time() + 0.2\nwhile time.process_time() < until: pass\n"
    parent = subprocess.Popen(
        [
            sys.executable,
            "-c",
            f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {burn!r} + 'time.sleep(60)'])",
        ],
        start_new_session=True,
    )
    try:
        wait_for(lambda: usage(parent.pid).children_cpu >= 0.1, "the child to work")
        used, everyone = usage(parent.pid), tree(parent.pid)
    finally:
        end(parent)
    assert used.children_cpu >= 0.1
    assert used.children_rss > 0
    assert len(everyone) == 2
    assert not _runs(everyone[1])


def _runs(pid: int) -> bool:
    """Whether a process is alive: an orphan that has ended may wait for init to reap it."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def test_the_constants_on_paper_are_those_that_the_benchmark_prints():
    def row(what, kind, size, memory, rss=0):
        return Row(what, kind, size, 10, at_once=0, memory=memory, rss=rss, disk=size + 7)

    rows = [row("parked message", kind, size, 3) for kind in TYPES for size in (100, 5000)]
    rows += [row("parked message, flushed", "quorum", size, 2) for size in (100, 5000)]
    rows += [row("empty delay queue", kind, 0, 40, rss=50) for kind in TYPES]
    rows += [row("binding", kind, 0, 9) for kind in ("direct", "topic")] + [row("exchange", "headers", 0, 8)]
    found = constants({"rss": 10**8}, rows, [300, 450])
    assert {"quorum_message": 2, "quorum_disk": 7, "quorum_queue": 50, "classic_kept": 0}.items() <= found.items()
    assert {"classic_stored": 3, "death": 300, "death_more": 150}.items() <= found.items()
    measured = {each.name for each in CONSTANTS if each.source.startswith("measured")}
    assert set(found) == measured - {"many_queues"}
    kept = [each if each.kind == "quorum" else row(each.what, each.kind, each.size, each.size + 60) for each in rows]
    assert constants({"rss": 1}, kept, [300, 450])["classic_kept"] == 60


@pytest.mark.skipif(not (CHECKOUT / ".git").exists(), reason="no git checkout: it has no earlier commit")
def test_a_contender_of_an_earlier_commit_runs_the_package_of_that_commit():
    with package_at("HEAD") as folder:
        program = "import benchmarks, celery_rmq_delay; print(benchmarks.__file__); print(celery_rmq_delay.__file__)"
        done = subprocess.run([sys.executable, "-c", program], cwd=folder, capture_output=True, text=True, check=True)
    assert [Path(each).parent.parent for each in done.stdout.split()] == [folder, folder]


@pytest.mark.skipif(not (CHECKOUT / ".git").exists(), reason="no git checkout: it has no earlier commit")
def test_an_unknown_commit_is_named():
    with pytest.raises(SystemExit, match="git has no package at no-such-commit"), package_at("no-such-commit"):
        pass
