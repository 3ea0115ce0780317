"""Processes that are restarted whenever they have ended, as by an init system."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from random import Random

import psutil

from celery_rmq_delay.testing.servers.process import KeptProcess
from tests.support.waiting import wait_for

CHECKOUT = Path(__file__).parents[1]
#: Seconds between two checks.
_PAUSE = 0.05


def environment(**more: str) -> dict[str, str]:
    """Return the environment of a process of the run: the present one, with the checkout on the import path."""
    return {**os.environ, "PYTHONPATH": str(CHECKOUT), **more}


class Supervised:
    """One named process; ended permanently by `retire`, or when it exits with 0."""

    def __init__(self, name: str, command: Sequence[str], environ: dict[str, str], folder: Path) -> None:
        self.name, self.starts = name, 0
        self._spec = [sys.executable, *command]
        self._environ, self._log = environ, folder / f"{name}.log"
        self._lock = threading.RLock()
        self._process: KeptProcess | None = None
        self.wanted = True

    @property
    def pid(self) -> int | None:
        """The process id, or None while it does not run."""
        with self._lock:
            return self._process.pid if self._process is not None and self._process.is_running() else None

    def pids(self) -> list[int]:
        """Return its process id and those of its children."""
        return [] if self.pid is None else [self.pid, *self.children()]

    def children(self) -> list[int]:
        """Return the process ids of its children, the oldest first."""
        try:
            found = psutil.Process(self.pid or -1).children()
        except (psutil.NoSuchProcess, ValueError):
            return []
        return sorted(child.pid for child in found if child.status() != psutil.STATUS_ZOMBIE)

    def tend(self) -> None:
        """Start it if it is wanted and does not run."""
        if not self._lock.acquire(blocking=False):
            return  # another thread is changing it
        try:
            if not self.wanted or self.pid is not None:
                return
            if self._process is not None and self._process.exit_code == 0:
                self.wanted = False
                return
            if self._process is None:
                self._process = KeptProcess(self._spec, env=environment(**self._environ), output=self._log)
            self._process.start()
            self.starts += 1
        finally:
            self._lock.release()

    def retire(self, timeout: float = 60.0) -> bool:
        """End it permanently, with SIGKILL after ``timeout`` seconds; return whether it ended gracefully."""
        with self._lock:
            self.wanted = False
            if self._process is None:
                return True
            in_order = self._process.end("term", timeout=timeout)
            self._process.close()
            self._process = None
            return in_order

    def change(self, environ: dict[str, str]) -> bool:
        """Use another environment from the next start on; end the present process like `retire`."""
        with self._lock:
            in_order = self.retire()
            self._environ = {**self._environ, **environ}
            self.wanted = True
            return in_order


def running(processes: Sequence[Supervised], dice: Random) -> Supervised:
    """Return one of the running processes."""
    found = wait_for(lambda: [each for each in processes if each.pid is not None], "a running process")
    chosen: Supervised = dice.choice(found)
    return chosen


class Supervisor:
    """Restarts its processes from a thread; a context manager that ends all of them."""

    def __init__(self) -> None:
        self.processes: list[Supervised] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="supervisor", daemon=True)
        self.error: BaseException | None = None

    def add(self, process: Supervised) -> Supervised:
        """Start a process and supervise it from now on."""
        process.tend()
        self.processes.append(process)
        return process

    def _watch(self) -> None:
        while not self._stop.wait(_PAUSE):
            for process in list(self.processes):
                try:
                    process.tend()
                except Exception as error:  # noqa: BLE001, PERF203 - the run ends with it
                    self.error = error
                    return

    def __enter__(self) -> Supervisor:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        begun = time.monotonic()
        for process in reversed(self.processes):
            process.retire(timeout=max(0.1, 10 + begun - time.monotonic()))
