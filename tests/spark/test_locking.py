"""The lock of an output: which run gets it, keeps it, and notices that it is lost."""

import json
import os
import subprocess
import sys
import threading
import time
from contextlib import nullcontext
from datetime import datetime, timezone

import pytest

from celery_rmq_delay.analytics.storage import files
from celery_rmq_delay.analytics.storage.files import LocalStorage
from celery_rmq_delay.analytics.storage.locking import DEAD_AFTER, LOCK, Lock, locked
from celery_rmq_delay.exceptions import AnalyticsError, RunLostError
from tests.support.waiting import wait_for


def held_elsewhere(output, text=None, *, age=0):
    """Let another machine hold the lock, with its last heartbeat this many seconds ago."""
    path = output / LOCK
    path.write_text(json.dumps({"run": "first", "pid": 1, "machine": "another"}) if text is None else text)
    (output / f".{LOCK}.crc").unlink(missing_ok=True)
    return aged(path, age)


def aged(path, seconds):
    """Let a file have been changed last so many seconds ago."""
    os.utime(path, (time.time() - seconds,) * 2)
    return path


def holder(output):
    try:
        found: str = json.loads((output / LOCK).read_text())["run"]
    except (OSError, ValueError):
        return None
    return found


def test_a_second_run_is_refused_and_the_first_one_removes_its_lock(spark, tmp_path):
    with (
        locked(spark, str(tmp_path), "first"),
        pytest.raises(AnalyticsError, match=rf"the run first \(process {os.getpid()}\) writes there"),
        locked(spark, str(tmp_path), "second"),
    ):
        pass
    assert list(tmp_path.iterdir()) == []


def test_the_lock_of_a_process_that_has_ended_is_taken_over(spark, tmp_path):
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    with locked(spark, str(tmp_path), "first"):
        held = json.loads((tmp_path / LOCK).read_text())
    held_elsewhere(tmp_path, json.dumps({**held, "pid": ended.pid}))
    with locked(spark, str(tmp_path), "second", settled=0):
        assert holder(tmp_path) == "second"
    assert holder(tmp_path) is None


@pytest.mark.parametrize("text", [None, "", '{"run": "fir', "[]"], ids=["whole", "empty", "half", "other"])
def test_a_lock_is_as_old_as_its_file_whether_or_not_it_can_be_read(spark, tmp_path, text):
    held_elsewhere(tmp_path, text, age=DEAD_AFTER - 60)
    with (
        pytest.raises(AnalyticsError, match=r"last heartbeat was 1[2-7]\d s ago"),
        locked(spark, str(tmp_path), "second"),
    ):
        pass
    held_elsewhere(tmp_path, text, age=DEAD_AFTER + 1)
    with locked(spark, str(tmp_path), "second", settled=0):
        assert holder(tmp_path) == "second"


def test_a_run_refreshes_its_lock(spark, tmp_path):
    with locked(spark, str(tmp_path), "first", beat=0.01):
        path = aged(tmp_path / LOCK, 100)
        wait_for(lambda: time.time() - path.stat().st_mtime < 50, "a heartbeat")


def test_the_lock_is_refreshed_after_the_storage_failed(spark, tmp_path, monkeypatch):
    failed = []

    def fail(storage, path):
        failed.append(path)
        raise AnalyticsError("no answer")

    with locked(spark, str(tmp_path), "first", beat=0.01):
        with monkeypatch.context() as patch:
            patch.setattr(LocalStorage, "find", fail)
            wait_for(lambda: len(failed) > 2, "failures")
        path = aged(tmp_path / LOCK, 100)
        wait_for(lambda: time.time() - path.stat().st_mtime < 50, "a heartbeat")


def test_a_run_whose_lock_was_taken_over_notices_and_leaves_it_alone(spark, tmp_path):
    with locked(spark, str(tmp_path), "slept") as lock:
        path = held_elsewhere(tmp_path, age=50)
        with pytest.raises(RunLostError, match="the run first has taken over the lock of this one"):
            lock.check()
        path.unlink()
        with pytest.raises(RunLostError, match="the lock of this run is gone"):
            lock.check()
        path.touch()
        with pytest.raises(RunLostError, match="the lock of this run cannot be read"):
            lock.check()
        held_elsewhere(tmp_path, age=50)
    assert holder(tmp_path) == "first"
    assert time.time() - path.stat().st_mtime > 40


def test_the_later_of_two_runs_that_take_over_a_lock_holds_it(spark, tmp_path, monkeypatch):
    """The slower run has checked the old lock, and removes the lock of the faster one: possible on object stores."""
    monkeypatch.setattr(LocalStorage, "alone", lambda storage, folder: nullcontext(False))
    held_elsewhere(tmp_path, age=DEAD_AFTER + 10)
    write = LocalStorage.write

    def overtaken(storage, path, text, *, replace=True):
        done = write(storage, path, text, replace=replace)
        if done and "faster" in text:
            write(storage, path, text.replace("faster", "slower"))
        return done

    monkeypatch.setattr(LocalStorage, "write", overtaken)
    with pytest.raises(AnalyticsError, match="another run took"), locked(spark, str(tmp_path), "faster", settled=0):
        pass
    assert holder(tmp_path) == "slower"


def test_a_lock_that_changed_since_it_was_checked_is_left_alone(spark, tmp_path, monkeypatch):
    held_elsewhere(tmp_path, age=DEAD_AFTER + 10)
    monkeypatch.setattr(Lock, "now", lambda lock: _wake(lock, tmp_path))
    with pytest.raises(AnalyticsError, match="another run took"), locked(spark, str(tmp_path), "second", settled=0):
        pass
    assert holder(tmp_path) == "first"


def test_one_of_many_that_take_over_a_dead_lock_at_the_same_time_gets_it(spark, tmp_path):
    """Locks of folders belong to open files, so threads exclude each other as processes do."""
    for number in range(20):
        output = tmp_path / str(number)
        output.mkdir()
        held_elsewhere(output, age=DEAD_AFTER + 10)
        start, end, winners = threading.Barrier(4), threading.Barrier(4), []

        def take(run, output=output, start=start, end=end, winners=winners):
            start.wait()
            try:
                with locked(spark, str(output), run):
                    winners.append(run)
                    end.wait()
            except AnalyticsError:
                end.wait()

        threads = [threading.Thread(target=take, args=(f"r{each}",)) for each in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(winners) == 1
        assert list(output.iterdir()) == []


def test_a_suspended_run_cannot_lose_its_lock_while_it_publishes(spark, tmp_path, monkeypatch):
    monkeypatch.setattr(files, "_MOMENTS", 0.2)
    with locked(spark, str(tmp_path), "slow", beat=1000) as lock:
        with lock.held():
            aged(tmp_path / LOCK, DEAD_AFTER + 10)
            with (
                pytest.raises(AnalyticsError, match=r"another run has locked this folder .* and may be suspended"),
                locked(spark, str(tmp_path), "fast"),
            ):
                pass
        assert holder(tmp_path) == "slow"


def test_a_lock_that_cannot_be_written_is_not_left_empty(tmp_path, monkeypatch):
    with pytest.raises(TypeError):
        files._create(tmp_path / LOCK, None)  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


def _wake(lock, output):
    held_elsewhere(output)
    return datetime.now(timezone.utc)
