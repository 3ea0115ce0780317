"""A private Redis server for tests."""

import contextlib
import os
import shutil
import socket
import tempfile
from pathlib import Path

from celery_rmq_delay.exceptions import ServerNotFoundError
from celery_rmq_delay.testing.servers.host import free_port
from celery_rmq_delay.testing.servers.process import KeptProcess, PrivateServer, wait_until_ready


class PrivateRedis(PrivateServer):
    """A redis-server on 127.0.0.1 that belongs to this process and writes nothing to disk; a context manager.

    :raises ServerNotFoundError: when there is none in PATH.
    """

    def __init__(self) -> None:
        found = shutil.which("redis-server")
        if found is None:
            raise ServerNotFoundError(
                "No redis-server was found in PATH. Install it (Debian: apt-get install redis-server; "
                "macOS: brew install redis), or set REDIS_URL to use a running server."
            )
        self.server, self.port = found, free_port()

    def __repr__(self) -> str:
        return f"<PrivateRedis on port {self.port} from {self.server}>"

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        """Start the server, empty, and wait until it is ready. Does nothing when it runs."""
        if self.pid is not None:
            return
        if self._process is None:
            home = Path(tempfile.mkdtemp(prefix="redis-"))
            self._log = home / "output.txt"
            options = f"--port {self.port} --bind 127.0.0.1 --daemonize no --dir".split()
            self._process = KeptProcess(
                [self.server, *options, str(home), "--save", ""],
                env={"PATH": os.environ.get("PATH", ""), "LANG": "C"},
                output=self._log,
                remove=home,
            )
        self._process.start()
        wait_until_ready(self._is_ready, self._process, what=repr(self), timeout=30, logs=[self._log])

    def kill(self) -> None:
        """End the server with SIGKILL; :meth:`start` starts an empty one on the same port."""
        if self._process is not None:
            self._process.end("kill", timeout=20)

    def stop(self) -> None:
        """End the server and delete its directory. Safe to call twice."""
        if self._process is not None:
            self._process.close()
        self._process = None

    def _is_ready(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=5) as client:
            client.sendall(b"PING\r\n")
            return client.recv(64).startswith(b"+PONG")
        return False
