"""A running shop for tests of its pages: the demo's stack, a web server, and other processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from celery_rmq_delay.testing import PrivateBroker
from celery_rmq_delay.testing.servers.host import free_port
from celery_rmq_delay.testing.servers.process import KeptProcess, tails, wait_until_ready
from tests.support import ROOT
from tests.support.waiting import SECONDS

PROJECT = ROOT / "example_django_project"
ADMIN = ("admin", "admin's password")


class Shop:
    """RabbitMQ and Redis are given; partners, worker, database and web server are started. A context manager."""

    def __init__(
        self, broker_url: str, redis_url: str, folder: Path, *, settings: str = "tests.support.browser.settings"
    ) -> None:
        self.folder, self.settings = folder, settings
        self.url = ""
        self._given = {**os.environ, "BROKER_URL": broker_url, "REDIS_URL": redis_url}
        self._exit = ExitStack()

    def __enter__(self) -> Shop:
        try:
            self._start_stack()
            self.call("add_superuser", *ADMIN)
            self.url = self.start_web()
        except BaseException:
            self._exit.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._exit.close()

    def call(self, function: str, *arguments: object) -> Any:
        """Call a function of the module `inside` in the shop's process and return its result."""
        with suppress(BrokenPipeError):  # no answer will come
            self._orders.write(json.dumps([function, arguments]) + "\n")
            self._orders.flush()
        result, problem = self._receive()
        assert problem is None, problem
        return result

    def start(self, name: str, *command: str, **environment: str) -> KeptProcess:
        """Start ``manage.py COMMAND`` under a name; its output is in the folder's ``NAME.log``."""
        process = KeptProcess(
            [sys.executable, str(PROJECT / "manage.py"), *command],
            env={**self.environment, **environment},
            output=self.folder / f"{name}.log",
        )
        self._exit.callback(process.close)
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
        assert self._stack.stdin and self._stack.stdout
        self._orders, self._answers = self._stack.stdin, self._stack.stdout
        self._exit.callback(self._end_stack)
        self.environment = {**self._given, **self._receive()}

    def _end_stack(self) -> None:
        with self._stack as stack:
            with suppress(BrokenPipeError):
                self._orders.close()
            try:
                stack.wait(timeout=SECONDS)
            except subprocess.TimeoutExpired:
                stack.kill()
                raise

    def _receive(self) -> Any:
        line = self._answers.readline()
        if not line:
            raise AssertionError(f"The shop's process ended.\n{(self.folder / 'stack.log').read_text()}")
        return json.loads(line)


@contextmanager
def running(broker: Any, redis: Any, folder: Path) -> Iterator[Shop]:
    """Run a shop; on a private broker it has a vhost of its own."""
    is_private = isinstance(broker, PrivateBroker)
    with Shop(broker.vhost(folder.name) if is_private else broker.url, redis.url, folder) as shop:
        yield shop
    if is_private:
        broker.delete_vhost(folder.name)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/admin/login/", timeout=10):
            return True
    except urllib.error.HTTPError:
        return True  # it runs; tests check the page
    except OSError:
        return False
