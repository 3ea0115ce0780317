"""Workers as processes behind the interface of pytest-celery's nodes."""

import contextlib
import os
import signal
from pathlib import Path

import psutil
import redis
from pytest_celery import CeleryTestNode

from tests.support.waiting import BUSY, SECONDS, wait_for
from tests.support.workers.program import Program
from tests.support.workers.project import VARIABLE, Config


class Worker(CeleryTestNode):
    """A ``celery worker`` in a session of its own, so that it can be killed with all its children."""

    def __init__(self, config: Config, folder: Path, name: str, options: tuple[str, ...]) -> None:
        super().__init__(container=None)
        self._name, self._config, self._options = name, config, options
        self._log = folder / f"{name}.log"
        self._process: Program

    def start(self) -> None:
        arguments = ["-A", "tests.support.workers.project", "worker", "--hostname", f"{self._name}@test"]
        environ = {**os.environ, VARIABLE: self._config.dumps()}
        self._process = Program([*arguments, "--loglevel", "INFO", *self._options], environ, self._log)

    def start_ready(self) -> None:
        """Start it, and wait until it consumes."""
        seen = self._starts()
        self.start()
        with contextlib.suppress(AssertionError):  # the next one has the log
            wait_for(lambda: self._starts() > seen or self.exited, pause=0.05)
        assert self._starts() > seen, f"worker {self._name} did not get ready:\n{self.logs()[-4000:]}"

    def _starts(self) -> int:
        with redis.Redis.from_url(self._config.backend) as store:
            hosts = store.lrange(f"{self._config.attempts}:ready", 0, -1)
        return hosts.count(f"{self._name}@test".encode())

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exited(self) -> bool:
        return self._process.poll() is not None

    def name(self) -> str:
        return self._name

    def wait_for_log(self, log: str, message: str = "", timeout: float = SECONDS) -> None:
        """Wait as other tests do: the node itself looks once a second."""
        wait_for(lambda: log in self.logs(), message or f"a line with {log!r}", timeout)

    def logs(self) -> str:
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    def main_rss(self) -> int:
        """Bytes of resident memory of the main process."""
        return psutil.Process(self.pid).memory_info().rss

    def send(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def begin_stop(self) -> None:
        """Begin a warm shutdown."""
        self.send(signal.SIGTERM)
        self.wait_for_log("Warm shutdown")

    def wait(self, seconds: float = SECONDS) -> int:
        return self._process.wait(seconds)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Stop it, if it runs; SIGTERM: warmly."""
        if not self.exited:
            self.send(number)
            self.wait()
            _kill_session(self.pid)

    def kill(self) -> None:
        process = self._process  # a supervisor may start another one as soon as this one has ended
        _kill_session(process.pid)
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
        process.wait(SECONDS)
        _kill_session(process.pid)

    def end(self) -> None:
        """Kill it, or stop it warmly if coverage is measured, which is written at a process's end."""
        if "COVERAGE_PROCESS_CONFIG" in os.environ and not self.exited:
            self.send(signal.SIGTERM)
            with contextlib.suppress(AssertionError):  # some tasks never end
                self.wait(BUSY)
        self.kill()

    def restart(self) -> None:
        self.stop()
        self.start_ready()


def _kill_session(leader: int) -> None:
    with contextlib.suppress(ProcessLookupError):  # it has no session yet, or all have ended
        os.killpg(leader, signal.SIGKILL)
