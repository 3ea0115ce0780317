"""How the tasks' processes tell the runner of their attempts, at a cost of about a microsecond each."""

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


class AttemptLog:
    """Counts this process's attempts in a mapped file; ``with_times`` also writes down when each one was."""

    def __init__(self, directory: str, *, with_times: bool) -> None:
        self._directory, self._with_times = Path(directory), with_times
        self._pid = self._times = 0
        self._slot: mmap.mmap | None = None
        self._count, self._first = 0, 0.0
        self._lock = threading.Lock()

    def add(self, number: int, started: float) -> None:
        """Write down that task ``number`` was attempted from ``started`` (monotonic seconds) to now."""
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


class Progress(NamedTuple):
    """What all processes of a worker have attempted up to now."""

    attempts: int
    #: Monotonic seconds.
    first: float
    last: float


def read_progress(directory: Path) -> Progress:
    """Return what the processes that log into ``directory`` have attempted."""
    slots = [_SLOT.unpack(data) for path in directory.glob("*.slot") if len(data := path.read_bytes()) == _SLOT.size]
    started = [slot for slot in slots if slot[0]]
    if not started:
        return Progress(0, 0.0, 0.0)
    counts, firsts, lasts = zip(*started, strict=True)
    return Progress(sum(counts), min(firsts), max(lasts))


def read_lateness(directory: Path, delay: float) -> list[float]:
    """Return how late (seconds) the second attempt of each task was, sorted; tasks that had only one are left out.

    Late is what lies between the planned start, ``delay`` seconds after the end of the first attempt, and the start.
    """
    attempts = defaultdict(list)
    for path in directory.glob("*.times"):
        data = path.read_bytes()
        for number, started, ended in _TIMES.iter_unpack(data[: len(data) // _TIMES.size * _TIMES.size]):
            attempts[number].append((started, ended))
    pairs = (sorted(times)[:2] for times in attempts.values() if len(times) > 1)
    return sorted(second[0] - first[1] - delay for first, second in pairs)
