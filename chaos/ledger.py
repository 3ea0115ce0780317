"""The events of a run, written by the processes themselves: JSON lines, one file per process, one write per line.

A killed process leaves complete lines: each is one `write` to a file opened with O_APPEND, which the kernel then has.
Times are seconds of CLOCK_MONOTONIC, which all processes of a machine share and which cannot be stepped.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any


class Ledger:
    """The file of one process in a shared folder; a forked child opens its own."""

    def __init__(self, folder: Path, who: str) -> None:
        self._folder, self._who = folder, who
        self._file, self._pid = -1, 0

    def note(self, kind: str, **facts: Any) -> float:
        """Write a line; return its time."""
        if self._pid != os.getpid():
            self._pid = os.getpid()
            path = self._folder / f"{self._who}-{self._pid}.jsonl"
            self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        now = time.monotonic()
        os.write(self._file, (json.dumps({"kind": kind, "at": now, **facts}) + "\n").encode())
        return now


def read(folder: Path, who: str = "") -> Iterator[dict[str, Any]]:
    """Yield the lines of all processes whose name begins with ``who``; by file, each in order."""
    for path in sorted(folder.glob(f"{who}*.jsonl")):
        with path.open("rb") as lines:
            for line in lines:
                if line.endswith(b"\n"):  # the disk may have been full
                    yield json.loads(line)
