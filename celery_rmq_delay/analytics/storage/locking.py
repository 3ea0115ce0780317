"""One run at a time on an output: a file that says who writes, and that tells by its age whether they still do.

Its age is what the storage says of the file's last change and of the present, so that no clock of a machine counts,
and a lock that is being written, and cannot be read just now, is as young as it is.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from pyspark.sql import SparkSession

from ...exceptions import AnalyticsError
from .files import Storage

LOCK = "_lock.json"
#: Seconds between two signs of life, and how old the last one is when the writer is taken for dead.
BEAT = 20.0
DEAD_AFTER = 180.0
#: Seconds after which two runs that take over the same lock in one moment see who has it.
SETTLED = 2.0
_READS, _BETWEEN_READS = 4, 0.1


class _Found(NamedTuple):
    """A lock that is there: what it says, which is nothing where it cannot be read, and when it was changed last."""

    holder: dict[str, Any]
    modified_ms: int


@dataclass(frozen=True)
class Lock:
    """The lock of an output, held by a run."""

    storage: Storage
    path: str
    run: str

    def check(self) -> None:
        """Give a sign of life. Raises `AnalyticsError` where the lock is not this run's any more, or not to be read."""
        found = _find(self.storage, self.path)
        if found is None or found.holder.get("run") != self.run:
            raise AnalyticsError(
                f"{self.path}: {_lost(found)}. That happens where a run gives no sign of life for {DEAD_AFTER:.0f} s,"
                " as on a machine that was asleep, or where somebody removes the lock. The output is as it was: run"
                " again."
            )
        self.storage.write(self.path, _text(self.run))

    def _live(self, beat: float, ended: threading.Event) -> None:
        """Give signs of life. A storage that does not answer for a while may do so later; `check` judges in the end."""
        while not ended.wait(beat):
            with suppress(AnalyticsError):
                self.check()

    def _release(self) -> None:
        with suppress(AnalyticsError):  # it is taken over when it is old
            found = _find(self.storage, self.path)
            if found is not None and found.holder.get("run") == self.run:
                self.storage.delete(self.path)


@contextmanager
def locked(
    spark: SparkSession, output: str, run: str, *, beat: float = BEAT, settled: float = SETTLED
) -> Iterator[Lock]:
    """Hold the output's lock. Raises `AnalyticsError`, which says who holds it, where another run does.

    The lock of a process of this machine that has ended, and one without a sign of life for `DEAD_AFTER` seconds, are
    taken over. On object stores two runs that start in the same moment can both get it.
    """
    storage = Storage(spark, output)
    lock = Lock(storage, f"{storage.url}/{LOCK}", run)
    storage.make_folder(storage.url)
    _take(lock, settled)
    ended = threading.Event()
    heart = threading.Thread(target=lock._live, args=(beat, ended), daemon=True, name="lock")
    heart.start()
    try:
        yield lock
    finally:
        ended.set()
        heart.join()
        lock._release()


def _take(lock: Lock, settled: float) -> None:
    storage, path = lock.storage, lock.path
    if storage.write(path, _text(lock.run), replace=False):
        return
    found = _find(storage, path)
    if found is not None:
        age = (_present_ms(lock) - found.modified_ms) / 1000
        if age < DEAD_AFTER and not _has_ended(found.holder):
            raise AnalyticsError(
                f"{path}: the run {found.holder.get('run', '?')} (process {found.holder.get('pid', '?')}) writes there,"
                f" and gave a sign of life {max(age, 0):.0f} s ago. Wait for it, or give another --output. Should it be"
                f" dead, its lock is taken over {DEAD_AFTER:.0f} s after its last sign of life."
            )
        if _find(storage, path) == found:
            storage.delete(path)
    if storage.write(path, _text(lock.run), replace=False):
        # Another run may have found the same old lock, and have removed this one for it.
        time.sleep(settled)
        again = _find(storage, path)
        if again is not None and again.holder.get("run") == lock.run:
            return
    raise AnalyticsError(f"{path}: another run took it in this moment. Wait for it.")


def _present_ms(lock: Lock) -> int:
    """Return the time by the storage's clock."""
    probe = f"{lock.path}.{lock.run}"
    lock.storage.write(probe, "")
    entry = lock.storage.find(probe)
    lock.storage.delete(probe)
    return entry.modified_ms if entry is not None else round(time.time() * 1000)


def _text(run: str) -> str:
    return json.dumps({"run": run, "pid": os.getpid(), "machine": _machine()})


def _lost(found: _Found | None) -> str:
    if found is None:
        return "the lock of this run is gone"
    run = found.holder.get("run")
    return f"the run {run} has taken over the lock of this one" if run else "the lock of this run cannot be read"


def _find(storage: Storage, path: str) -> _Found | None:
    """Return the lock. One that cannot be read is tried again for a moment, as it may be half written."""
    for _ in range(_READS):
        entry = storage.find(path)
        if entry is None:
            return None
        found = _Found(_said(storage, path), entry.modified_ms)
        if found.holder:
            break
        time.sleep(_BETWEEN_READS)
    return found


def _said(storage: Storage, path: str) -> dict[str, Any]:
    try:
        said = json.loads(storage.read(path))
    except (AnalyticsError, ValueError):
        return {}
    return said if isinstance(said, dict) else {}


def _has_ended(holder: dict[str, Any]) -> bool:
    """Tell whether the process was one of this machine, and is no more."""
    if holder.get("machine") != _machine() or not isinstance(holder.get("pid"), int):
        return False
    try:
        os.kill(holder["pid"], 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False


def _machine() -> str:
    """Name this machine; two containers of it count as two, as they do not see each other's processes."""
    space = Path("/proc/self/ns/pid")
    return f"{socket.gethostname()} {space.readlink() if space.exists() else ''}".strip()
