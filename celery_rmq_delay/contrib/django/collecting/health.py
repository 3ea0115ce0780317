"""Health of a collector: a file that it touches, and pages over HTTP."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from ....exceptions import RmqDelayError

logger = logging.getLogger(__name__)

#: Seconds after its last good turn for which a collector counts as healthy.
FRESH = 30.0
#: Seconds between two touches of the file.
_TOUCH = 1.0

#: The status, the content type and the body of an HTTP response.
Answer = tuple[int, str, bytes]
Page = Callable[[], Answer]


class HealthFile:
    """A file that is touched once in `_TOUCH` seconds at most. Where it cannot be, that is logged, and is no error.

    Raises `RmqDelayError` if its folder does not exist.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._touched_at = float("-inf")
        self._problem: str | None = None
        try:
            (path.parent / "..").stat()  # unlike `is_dir`, also an error where this process may not enter the folder
        except OSError as error:
            raise RmqDelayError(
                f"--health-file: found {path.parent}: {error.strerror}. "
                "Use a folder that exists and that this process may enter."
            ) from error

    def touch(self, now: float) -> None:
        """Touch the file at the monotonic time ``now``, unless it was touched just before."""
        if now - self._touched_at < _TOUCH:
            return
        self._touched_at = now
        try:
            self._path.touch()
        except OSError as error:
            problem = error.strerror
            if problem != self._problem:
                hint = "Collecting continues; create its folder, free disk space, or permit this process to write it"
                logger.warning("--health-file %s cannot be written: %s. %s", self._path, problem, hint)
        else:
            problem = None
            if self._problem is not None:
                logger.info("--health-file %s is written again", self._path)
        self._problem = problem


class Health:
    """Whether the collector is connected to the broker and can write what it receives.

    Raises `RmqDelayError` if the folder of ``file`` does not exist.
    """

    def __init__(self, file: Path | None = None) -> None:
        self._file = None if file is None else HealthFile(file)
        self._good_at = float("-inf")
        #: The last problem; None after a good turn.
        self.problem: str | None = "It has not connected to the broker yet."

    def good(self) -> None:
        """Note a good turn."""
        self.problem, self._good_at = None, time.monotonic()
        if self._file is not None:
            self._file.touch(self._good_at)

    @property
    def is_well(self) -> bool:
        """Whether the last good turn is at most `FRESH` seconds ago."""
        return time.monotonic() - self._good_at < FRESH

    def page(self) -> Answer:
        """Return the response of ``/healthz``: 200, or 503 with the problem."""
        state = {"ok": self.is_well, "problem": self.problem}
        return (200 if self.is_well else 503), "application/json", json.dumps(state).encode() + b"\n"


class HealthServer:
    """A context manager that serves pages on an address, in daemon threads."""

    def __init__(self, address: str, pages: Mapping[str, Page]) -> None:
        host, port = parse_address(address)
        try:
            self._server = ThreadingHTTPServer((host, port), _handler(pages))
        except OSError as error:
            raise RmqDelayError(
                f"--http {address}: found {error}. Use an address of this host and a free port."
            ) from error
        self._server.daemon_threads = True
        self.port = int(self._server.server_address[1])

    def __enter__(self) -> HealthServer:
        """Serve."""
        threading.Thread(target=self._server.serve_forever, name="rmq-delay-http", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()


def parse_address(address: str) -> tuple[str, int]:
    """Return host and port of ``HOST:PORT`` or ``:PORT``, which binds to 127.0.0.1 only. Raises `RmqDelayError`."""
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65_535:
        raise RmqDelayError(f"--http: found {address!r}. Write HOST:PORT, such as 127.0.0.1:9808.")
    return host.strip("[]") or "127.0.0.1", int(port)


def _handler(pages: Mapping[str, Page]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            page = pages.get(self.path.partition("?")[0])
            status, kind, body = page() if page else (404, "text/plain; charset=utf-8", b"No such page.\n")
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class calls it so
            logger.debug(format, *args)

    return Handler
