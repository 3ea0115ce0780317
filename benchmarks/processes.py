"""CPU and memory of a process and its descendants, from Linux's /proc."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import NamedTuple

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


class Usage(NamedTuple):
    """The usage of a process tree; the children's share includes children that have ended."""

    #: CPU seconds, user and system.
    root_cpu: float
    children_cpu: float
    #: Resident bytes; pages that processes share count in each of them.
    root_rss: int
    children_rss: int

    @property
    def cpu(self) -> float:
        """CPU seconds of the whole tree."""
        return self.root_cpu + self.children_cpu

    @property
    def rss(self) -> int:
        """Resident bytes of the whole tree."""
        return self.root_rss + self.children_rss


def tree(pid: int) -> list[int]:
    """Return a process and its living descendants, parents first."""
    found = [pid]
    for each in found:
        for task in Path(f"/proc/{each}/task").glob("*/children"):
            with contextlib.suppress(OSError):  # it ended meanwhile
                found += map(int, task.read_text().split())
    return found


def usage(pid: int) -> Usage:
    """Return the usage of a process tree up to now."""
    root, *children = tree(pid)
    own, reaped, rss = _stat(root)
    children_cpu, children_rss = reaped, 0
    for child in children:
        cpu, its_reaped, its_rss = _stat(child)
        children_cpu += cpu + its_reaped
        children_rss += its_rss
    return Usage(own, children_cpu, rss, children_rss)


def resident(pid: int) -> dict[int, int]:
    """Return the resident bytes of each process of a tree."""
    return {each: _stat(each)[2] for each in tree(pid)}


def proportional(pid: int) -> int:
    """Return the proportional set size (PSS) of a tree: a page that *n* processes share counts 1/*n* in each."""
    found = 0
    for each in tree(pid):
        with contextlib.suppress(OSError):  # it ended meanwhile
            lines = Path(f"/proc/{each}/smaps_rollup").read_text().splitlines()
            found += next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")), 0)
    return found


def kill(pid: int) -> None:
    """Kill a process and its descendants at once, like a failure of the machine; parents first."""
    for each in tree(pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(each, signal.SIGKILL)


def _stat(pid: int) -> tuple[float, float, int]:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0, 0.0, 0
    user, system, reaped_user, reaped_system = map(int, fields[11:15])
    return (user + system) / _TICKS, (reaped_user + reaped_system) / _TICKS, int(fields[21]) * _PAGE


def end(process: subprocess.Popen[bytes], timeout: float = 10.0) -> None:
    """End a process and all its descendants: gracefully first, by force after ``timeout`` seconds."""
    everyone = tree(process.pid)
    process.terminate()
    try:
        process.wait(timeout)
    except subprocess.TimeoutExpired:
        everyone = list(dict.fromkeys([*everyone, *tree(process.pid)]))
        process.kill()
        process.wait()
    for pid in everyone[1:]:
        _kill_left_over(pid, process.pid)


def _kill_left_over(pid: int, session: int) -> None:
    """Wait up to 2 seconds for an orphan of the session to end, then kill it."""
    deadline = time.monotonic() + 2
    while _is_ours(pid, session):
        if time.monotonic() > deadline:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)


def _is_ours(pid: int, session: int) -> bool:
    """Whether the process runs and belongs to the session: its id may have been reused."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return False
    return fields[0] != "Z" and int(fields[3]) == session
