"""Step the clock of a running process with libfaketime, which reads the offset from a file.

The monotonic clock is not changed, as on a machine whose clock is stepped.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

from chaos.processes import CHECKOUT

_PLACES = ("usr/lib/*/faketime/libfaketimeMT.so.1", "usr/lib/faketime/libfaketimeMT.so.1")


@cache
def library() -> Path | None:
    """Return the library (Debian: libfaketime), or None if it is not installed."""
    return next((path for place in _PLACES for path in Path("/").glob(place)), None)


def environ(file: Path) -> dict[str, str]:
    """Return the environment of a process whose clock `step` can change."""
    return {
        "PYTHONPATH": os.pathsep.join((str(CHECKOUT), str(Path(__file__).parent / "stepped"))),
        "LD_PRELOAD": str(library()),
        "FAKETIME_TIMESTAMP_FILE": str(file),
        "FAKETIME_CACHE_DURATION": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "NO_FAKE_STAT": "1",
    }


def step(file: Path, seconds: int) -> None:
    """Set the clock offset in seconds of the processes that read ``file``; it applies within a second."""
    new = file.with_suffix(".new")
    new.write_text(f"{seconds:+d}\n")
    new.rename(file)
