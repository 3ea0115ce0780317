"""A private Redis server for tests."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import tempfile
from pathlib import Path

from celery_rmq_delay.exceptions import ServerNotFoundError
from celery_rmq_delay.testing.servers.host import free_port
from celery_rmq_delay.testing.servers.process import KeptProcess, PrivateServer, wait_until_ready

START_TIMEOUT = 30.0
"""Seconds a Redis server may take until it is ready."""


class PrivateRedis(PrivateServer):
    """A redis-server on 127.0.0.1 that belongs to this process and writes nothing to disk; a context manager.

    >>> with PrivateRedis() as redis:  # doctest: +SKIP
    ...     app = Celery(backend=redis.url)

    :param server: path of the ``redis-server`` to run; default: the one in PATH.
    :raises ServerNotFoundError: when there is none.
    """

    def __init__(self, server: str | os.PathLike[str] | None = None) -> None:
        """Find the server; :meth:`start` or ``with`` starts it."""
        found = shutil.which(os.fspath(server or "redis-server"))
        if found is None:
            raise ServerNotFoundError(
                f"No {server or 'redis-server'} was found in PATH. Install it (Debian: apt-get install redis-server; "
                "macOS: brew install redis), or set REDIS_URL to use a running server."
            )
        self.server = found
        self.port = free_port()

    def __repr__(self) -> str:
        """Name the server and where it listens."""
        return f"<PrivateRedis on port {self.port} from {self.server}>"

    @property
    def url(self) -> str:
        """The URL of database 0."""
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        """Start the server, empty, and wait until it is ready. Does nothing when it runs.

        :raises ServerStartError: with the tail of its log.
        """
        if self._process is None:
            self._process = self._prepare()
        if self._process.is_running():
            return
        self._process.start()
        wait_until_ready(
            self._is_ready,
            self._process,
            what=f"{self.server} on port {self.port}",
            timeout=START_TIMEOUT,
            logs=[self._log],
        )

    def kill(self) -> None:
        """End the server with SIGKILL; :meth:`start` starts an empty one on the same port."""
        if self._process is not None:
            self._process.end("kill", timeout=20)

    def stop(self) -> None:
        """End the server and delete its directory. Safe to call twice."""
        if self._process is not None:
            self._process.close()
        self._process = None

    def _prepare(self) -> KeptProcess:
        home = Path(tempfile.mkdtemp(prefix="redis-"))
        self._log = home / "output.txt"
        options = [
            "--port",
            str(self.port),
            "--bind",
            "127.0.0.1",
            "--dir",
            str(home),
            "--save",
            "",
            "--daemonize",
            "no",
        ]
        return KeptProcess(
            [self.server, *options],
            env={"PATH": os.environ.get("PATH", ""), "LANG": "C"},
            output=self._log,
            remove=home,
        )

    def _is_ready(self) -> bool:
        with (
            contextlib.suppress(OSError),
            socket.create_connection(("127.0.0.1", self.port), timeout=5) as client,
        ):
            client.sendall(b"PING\r\n")
            return client.recv(64).startswith(b"+PONG")
        return False
