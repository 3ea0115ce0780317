"""Lock an output for one run: a file names the run that writes, and the file's age shows whether the run is alive.

The age is computed from the storage's times of the file's last change and of the present, so the clocks of machines do
not matter, and a lock that cannot be read while it is being written has its true age. On a local disk only one process
at a time takes, renews or removes a lock, so exactly one run gets it.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NamedTuple

from pyspark.sql import SparkSession

from ...exceptions import AnalyticsError, RunLostError
from .files import Storage, open_storage

LOCK = "_lock.json"
#: Seconds between two heartbeats, and seconds after the last one when the writer is considered dead.
BEAT = 20.0
DEAD_AFTER = 180.0
#: Seconds after which two runs that take over the same lock at the same time check which one holds it, on storage where
#: this is not exact.
SETTLED = 2.0
_READS, _BETWEEN_READS = 4, 0.1


class _Found(NamedTuple):
    """An existing lock: its content, empty if it cannot be read, and the time of its last change."""

    holder: dict[str, Any]
    modified_ms: int


@dataclass(frozen=True)
class Lock:
    """The lock of an output, held by a run."""

    storage: Storage
    path: str
    run: str

    def check(self) -> None:
        """Write a heartbeat. Raises `RunLostError` if this run no longer holds the lock, or it cannot be read."""
        with self.held():
            pass

    @contextmanager
    def held(self) -> Iterator[None]:
        """Write a heartbeat, and keep the lock during the block (local disk). Raises `RunLostError` if it is lost."""
        with self._alone():
            found = _find(self.storage, self.path)
            if found is None or found.holder.get("run") != self.run:
                raise RunLostError(
                    f"{self.path}: {_lost(found)}. That happens if a run writes no heartbeat for {DEAD_AFTER:.0f} s,"
                    " for example because the machine was suspended, or if the lock is removed. The output is"
                    " unchanged: run again."
                )
            self.storage.write(self.path, _text(self.run))
            yield

    def now(self) -> datetime:
        """Return the time by the storage's clock."""
        probe = f"{self.path}.{self.run}"
        self.storage.write(probe, "")
        entry = self.storage.find(probe)
        self.storage.delete(probe)
        return datetime.fromtimestamp(time.time() if entry is None else entry.modified_ms / 1000, timezone.utc)

    def _alone(self) -> AbstractContextManager[bool]:
        return self.storage.alone(self.storage.url)

    def _live(self, beat: float, ended: threading.Event) -> None:
        """Write heartbeats. Errors are ignored, as the storage may recover; the last `check` decides."""
        while not ended.wait(beat):
            with suppress(AnalyticsError):
                self.check()

    def _release(self) -> None:
        # If that fails, the next run takes it over when it is old enough.
        with suppress(AnalyticsError), self._alone():
            found = _find(self.storage, self.path)
            if found is not None and found.holder.get("run") == self.run:
                self.storage.delete(self.path)


@contextmanager
def locked(
    spark: SparkSession, output: str, run: str, *, beat: float = BEAT, settled: float = SETTLED
) -> Iterator[Lock]:
    """Hold the lock of the output. Raises `AnalyticsError`, which names the holder, if another run holds it.

    A lock is taken over if its process ran on this machine and has ended, or if it has no heartbeat for `DEAD_AFTER`
    seconds. On object stores two runs that start at the same time can both get it; only one of them can publish.
    """
    storage = open_storage(spark, output)
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
    with lock._alone() as is_exact:
        if _try(lock):
            if is_exact:
                return
            # Another run may have found the same old lock, and removed this one instead.
            time.sleep(settled)
            again = _find(lock.storage, lock.path)
            if again is not None and again.holder.get("run") == lock.run:
                return
    raise AnalyticsError(f"{lock.path}: another run took the lock at the same time. Wait for it.")


def _try(lock: Lock) -> bool:
    """Write the lock if there is none, or a dead one. Raises `AnalyticsError` if a run holds it."""
    storage, path = lock.storage, lock.path
    if storage.write(path, _text(lock.run), replace=False):
        return True
    found = _find(storage, path)
    if found is not None:
        age = lock.now().timestamp() - found.modified_ms / 1000
        if age < DEAD_AFTER and not _has_ended(found.holder):
            raise AnalyticsError(
                f"{path}: the run {found.holder.get('run', '?')} (process {found.holder.get('pid', '?')}) writes there;"
                f" its last heartbeat was {max(age, 0):.0f} s ago. Wait for it, or use another --output. If it is"
                f" dead, its lock can be taken over {DEAD_AFTER:.0f} s after its last heartbeat."
            )
        if _find(storage, path) == found:
            storage.delete(path)
    return storage.write(path, _text(lock.run), replace=False)


def _text(run: str) -> str:
    return json.dumps({"run": run, "pid": os.getpid(), "machine": _machine()})


def _lost(found: _Found | None) -> str:
    if found is None:
        return "the lock of this run is gone"
    run = found.holder.get("run")
    return f"the run {run} has taken over the lock of this one" if run else "the lock of this run cannot be read"


def _find(storage: Storage, path: str) -> _Found | None:
    """Return the lock. A lock that cannot be read is read again, as it may be half written."""
    for _ in range(_READS):
        entry = storage.find(path)
        if entry is None:
            return None
        holder = None
        with suppress(AnalyticsError, ValueError):
            holder = json.loads(storage.read(path) or "")
        found = _Found(holder if isinstance(holder, dict) else {}, entry.modified_ms)
        if found.holder:
            break
        time.sleep(_BETWEEN_READS)
    return found


def _has_ended(holder: dict[str, Any]) -> bool:
    """Return whether the process ran on this machine and has ended."""
    if holder.get("machine") == _machine() and isinstance(holder.get("pid"), int):
        with suppress(PermissionError, OverflowError):
            try:
                os.kill(holder["pid"], 0)
            except ProcessLookupError:
                return True
    return False


def _machine() -> str:
    """Return a name of this machine since its start; containers do not see each other's processes, and differ."""
    space, start = Path("/proc/self/ns/pid"), Path("/proc/sys/kernel/random/boot_id")
    known = (space.readlink() if space.exists() else "", start.read_text() if start.exists() else "")
    return " ".join([socket.gethostname(), *map(str.strip, map(str, known))]).strip()
