"""Report attempts from the tasks' processes to the runner, at a cost of about a microsecond each."""

from __future__ import annotations

import mmap
import os
import struct
import threading
import time
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

_SLOT = struct.Struct("<qdd")  # attempts, start of the first, time of the last
_TIMES = struct.Struct("<qdd")  # task number, start and end of one attempt

#: Capacity of a ledger in tasks; the file is sparse.
LEDGER_SIZE = 1 << 21


class AttemptLog:
    """Counts the attempts of this process in a mapped file; ``with_times`` also records their times."""

    def __init__(self, directory: str, *, with_times: bool) -> None:
        self._directory, self._with_times = Path(directory), with_times
        self._pid = self._times = 0
        self._slot: mmap.mmap | None = None
        self._count, self._first = 0, 0.0
        self._lock = threading.Lock()

    def add(self, number: int, started: float) -> None:
        """Record an attempt of task ``number`` from ``started`` (monotonic seconds) to now."""
        with self._lock:
            if self._pid != os.getpid():  # after a fork, too
                self._open(started)
            self._count += 1
            now = time.monotonic()
            _SLOT.pack_into(self._slot, 0, self._count, self._first, now)
            if self._with_times:
                os.write(self._times, _TIMES.pack(number, started, now))

    def _open(self, started: float) -> None:
        self._pid, self._count, self._first = os.getpid(), 0, started
        path = self._directory / f"{self._pid}.slot"
        path.write_bytes(bytes(_SLOT.size))
        with path.open("r+b") as file:
            self._slot = mmap.mmap(file.fileno(), _SLOT.size)
        if self._with_times:
            self._times = os.open(path.with_suffix(".times"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)


class Ledger:
    """The attempts of each task, a byte each, in a file that all processes map: it survives killed processes."""

    def __init__(self, directory: str) -> None:
        path = Path(directory) / "ledger"
        if not path.exists():
            with path.open("ab") as file:  # a second process finds the complete file, or sets the same size again
                file.truncate(LEDGER_SIZE)
        with path.open("r+b") as file:
            self._bytes = mmap.mmap(file.fileno(), LEDGER_SIZE)

    def of(self, number: int) -> int:
        """Return how often a task was attempted."""
        return self._bytes[number]

    def add(self, number: int) -> None:
        """Record one more attempt of a task."""
        self._bytes[number] = min(255, self._bytes[number] + 1)


def read_ledger(directory: Path, tasks: int) -> bytes:
    """Return how often each of the first ``tasks`` tasks was attempted."""
    path = directory / "ledger"
    return path.read_bytes()[:tasks] if path.exists() else bytes(tasks)


class Progress(NamedTuple):
    """The attempts of all processes of a worker up to now."""

    attempts: int
    #: Monotonic seconds.
    first: float
    last: float


def read_progress(directory: Path) -> Progress:
    """Return the attempts of the processes that log into ``directory``."""
    slots = [_SLOT.unpack(data) for path in directory.glob("*.slot") if len(data := path.read_bytes()) == _SLOT.size]
    started = [slot for slot in slots if slot[0]]
    if not started:
        return Progress(0, 0.0, 0.0)
    counts, firsts, lasts = zip(*started, strict=True)
    return Progress(sum(counts), min(firsts), max(lasts))


def read_lateness(directory: Path, delay: float) -> list[float]:
    """Return how late (seconds) the second attempt of each task was, sorted; tasks that had only one are left out.

    Lateness is the time from the planned start, ``delay`` seconds after the end of the first attempt, to the start.
    """
    pairs = (times[:2] for times in read_times(directory).values() if len(times) > 1)
    return sorted(second[0] - first[1] - delay for first, second in pairs)


def read_times(directory: Path) -> dict[int, list[tuple[float, float]]]:
    """Return start and end (monotonic seconds) of each task's attempts, the first one first."""
    attempts: dict[int, list[tuple[float, float]]] = defaultdict(list)
    for path in directory.glob("*.times"):
        data = path.read_bytes()
        for number, started, ended in _TIMES.iter_unpack(data[: len(data) // _TIMES.size * _TIMES.size]):
            attempts[number].append((started, ended))
    return {number: sorted(times) for number, times in attempts.items()}
