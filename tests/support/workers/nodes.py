"""Workers as processes behind pytest-celery's nodes, which expect containers but use only what is here."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import celery
import psutil
import redis
from pytest_celery import CeleryTestWorker

from tests.support.waiting import BUSY, SECONDS
from tests.support.workers.program import Program
from tests.support.workers.project import VARIABLE, Config


class WorkerProcess:
    """A ``celery worker`` in a session of its own, so that it can be killed with all its children."""

    def __init__(self, config: Config, folder: Path, name: str, options: tuple[str, ...]) -> None:
        self.name = self.id = name
        self.celeryconfig: dict[str, Any] = {}
        self._config, self._options = config, options
        self._log = folder / f"{name}.log"
        self._process: Program | None = None

    def start(self) -> None:
        arguments = ["-A", "tests.support.workers.project", "worker", "--hostname", f"{self.name}@test"]
        environ = {**os.environ, VARIABLE: self._config.dumps()}
        self._process = Program([*arguments, "--loglevel", "INFO", *self._options], environ, self._log)

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def status(self) -> str:
        return "running" if self._process is not None and self._process.poll() is None else "exited"

    @property
    def exit_code(self) -> int | None:
        return None if self._process is None else self._process.poll()

    def logs(self) -> str:
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    def ready(self) -> bool:
        seen, deadline = self._starts(), time.monotonic() + SECONDS
        if self._process is None:
            self.start()
        while self._starts() <= seen:
            if self.status != "running" or time.monotonic() > deadline:
                raise AssertionError(f"worker {self.name} did not get ready:\n{self.logs()[-4000:]}")
            time.sleep(0.05)
        return True

    def _starts(self) -> int:
        with redis.Redis.from_url(self._config.backend) as store:
            hosts = store.lrange(f"{self._config.attempts}:ready", 0, -1)
        return hosts.count(f"{self.name}@test".encode())

    def kill(self, signal: Any = "SIGKILL") -> None:
        """Send a signal to the worker; SIGKILL reaches all of its processes."""
        number = getattr(signal_module, signal) if isinstance(signal, str) else signal
        process = self._process  # a supervisor may start another one as soon as this one has ended
        assert process is not None
        if number == signal_module.SIGKILL:
            with contextlib.suppress(ProcessLookupError):  # it has no session yet
                os.killpg(process.pid, number)
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, number)
        if number in (signal_module.SIGKILL, signal_module.SIGTERM):
            process.wait(SECONDS)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal_module.SIGKILL)

    def end(self) -> None:
        """Kill it, or stop it warmly if coverage is measured, which is written at a process's end."""
        if "COVERAGE_PROCESS_CONFIG" in os.environ and self.status == "running":
            os.kill(self.pid, signal_module.SIGTERM)
            with contextlib.suppress(AssertionError):  # some tasks never end
                self.wait(BUSY)
        self.kill("SIGKILL")

    def reload(self) -> None:
        """Do nothing: there is no container to reload."""

    def restart(self, timeout: float = 0) -> None:
        self.teardown()
        self._process = None
        self.ready()

    def teardown(self) -> None:
        if self._process is not None and self.status == "running":
            self.kill("SIGTERM")

    def wait(self, timeout: float) -> int:
        assert self._process is not None
        return self._process.wait(timeout)

    def main_rss(self) -> int:
        """Bytes of resident memory of the main process."""
        return psutil.Process(self.pid).memory_info().rss

    def version(self) -> str:
        return celery.__version__

    def log_level(self) -> str:
        return "INFO"

    def worker_name(self) -> str:
        return self.name

    def worker_queue(self) -> str:
        return "shop"

    def exec_run(self, command: str) -> tuple[int, bytes]:
        done = subprocess.run(command, shell=True, capture_output=True, check=False)
        return done.returncode, done.stdout


signal_module = signal


class Worker(CeleryTestWorker):
    """pytest-celery's worker node over a `WorkerProcess`."""

    container: WorkerProcess

    def logs(self) -> str:
        return self.container.logs()

    @property
    def exited(self) -> bool:
        return self.container.status != "running"
