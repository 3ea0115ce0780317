"""A running shop for tests of its pages: the demo's stack, a web server, and other processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO, Any

from celery_rmq_delay.testing.servers.host import free_port
from celery_rmq_delay.testing.servers.process import KeptProcess, tails, wait_until_ready
from tests.support import ROOT
from tests.support.browser import inside
from tests.support.waiting import SECONDS

PROJECT = ROOT / "example_django_project"
ADMIN = ("admin", "admin's password")


class ShopEndedError(AssertionError):
    """The shop's own process has ended."""


class Shop:
    """RabbitMQ and Redis are given; partners, worker, database and web server are started. A context manager.

    ``processes`` are those that were started beside the stack, by their names. ``settings``: Django's settings module.
    """

    def __init__(
        self, broker_url: str, redis_url: str, folder: Path, *, settings: str = "tests.support.browser.settings"
    ) -> None:
        self.folder, self.settings = folder, settings
        self.url = ""
        self.processes: dict[str, KeptProcess] = {}
        self._given = {**os.environ, "BROKER_URL": broker_url, "REDIS_URL": redis_url}
        self._exit = ExitStack()

    def __enter__(self) -> Shop:
        try:
            self._start_stack()
            self.call(inside.add_superuser, *ADMIN)
            self.url = self.start_web()
        except BaseException:
            self._exit.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._exit.close()

    def call(self, function: Callable[..., Any], *arguments: object) -> Any:
        """Call a function of a module in the shop's process and return its result; see the module `inside`.

        :raises ShopEndedError: where that process has ended.
        """
        self._send([function.__module__, function.__name__, arguments])
        result, problem = self._receive()
        assert problem is None, problem
        return result

    def ended(self) -> list[str]:
        """Return which of its processes have ended, by their names."""
        try:
            has_worker = self.call(inside.worker_is_running)
        except ShopEndedError:
            return ["own process"]
        served = [name for name, process in self.processes.items() if not process.is_running()]
        return served if has_worker else [*served, "worker"]

    def start(self, name: str, *command: str, **environment: str) -> KeptProcess:
        """Start ``manage.py COMMAND`` under a name; its output is in the folder's ``NAME.log``."""
        process = KeptProcess(
            [sys.executable, str(PROJECT / "manage.py"), *command],
            env={**self.environment, **environment},
            output=self.folder / f"{name}.log",
        )
        self._exit.callback(process.close)
        self.processes[name] = process
        process.start()
        return process

    def start_web(self, name: str = "web", **environment: str) -> str:
        """Start a web server with changed environment variables; return its address."""
        url = f"http://127.0.0.1:{(port := free_port())}"
        process = self.start(name, "runserver", "--noreload", f"127.0.0.1:{port}", **environment)
        logs = [self.folder / f"{name}.log"]
        wait_until_ready(lambda: _answers(url), process, what=f"the web server {url}", timeout=SECONDS, logs=logs)
        return url

    def logs(self) -> str:
        """Return the ends of all logs."""
        return tails(
            [*sorted(self.folder.glob("*.log")), Path(self.environment["SQLITE_PATH"]).with_name("worker.log")]
        )

    def _start_stack(self) -> None:
        log = self._exit.enter_context((self.folder / "stack.log").open("w"))
        self._stack = subprocess.Popen(
            [sys.executable, "-m", "tests.support.browser.shop_process", self.settings],
            cwd=ROOT,
            env=self._given,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
        self._exit.callback(self._end_stack)
        self.environment = {**self._given, **self._receive()}

    def _end_stack(self) -> None:
        with self._stack as stack:
            with suppress(BrokenPipeError):
                self._pipe(stack.stdin).close()
            try:
                stack.wait(timeout=SECONDS)
            except subprocess.TimeoutExpired:
                stack.kill()
                raise

    def _send(self, order: object) -> None:
        stdin = self._pipe(self._stack.stdin)
        with suppress(BrokenPipeError):  # no answer will come
            stdin.write(json.dumps(order) + "\n")
            stdin.flush()

    def _receive(self) -> Any:
        line = self._pipe(self._stack.stdout).readline()
        if not line:
            raise ShopEndedError(f"The shop's process ended.\n{(self.folder / 'stack.log').read_text()}")
        return json.loads(line)

    @staticmethod
    def _pipe(pipe: IO[str] | None) -> IO[str]:
        assert pipe is not None
        return pipe


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/admin/login/", timeout=10):
            return True
    except urllib.error.HTTPError:
        return True  # it runs; tests check the page
    except OSError:
        return False
