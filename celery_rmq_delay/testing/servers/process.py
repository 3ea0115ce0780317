"""A server process that never outlives the Python process that started it, and the base of private servers."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from ...exceptions import PrivateServerError, ServerStartError

_KEEPER = Path(__file__).with_name("keeper.py")
ANSWER_TIMEOUT = 90.0
"""Seconds a keeper may take to execute its server."""


class KeptProcess:
    """A server under a keeper: a small process that ends the server when its owner dies, even by SIGKILL.

    ``command`` must run the server by ``exec``. ``env`` is its whole environment, the file ``output`` gets its standard
    output and error. ``helper``: a second command that runs from now until `close`. ``remove``: a folder to delete at
    the end. ``account``: ids of the user and the group that run the commands; only root can use others. ``farewell``: a
    signal after which the server may take 5 s to end at `close`; without it, SIGKILL is sent at once.
    """

    def __init__(
        self, command: Sequence[str], *, env: Mapping[str, str], output: Path, helper: Sequence[str] | None = None,
        remove: Path | None = None, account: tuple[int, int] | None = None, farewell: signal.Signals | None = None,
    ) -> None:  # fmt: skip
        self._command = list(command)
        self._folder = remove
        self._spec = {
            "env": dict(env),
            "output": str(output),
            "helper": list(helper) if helper else None,
            "remove": str(remove) if remove else None,
            "account": account,
            "farewell": farewell,
        }
        self._owner = os.getpid()
        self._is_closed = False
        try:
            self._keep()
        except BaseException:
            self._remove()
            raise
        self.pid: int | None = None
        self.exit_code: int | None = None
        self.was_ordered_to_end = False
        atexit.register(self.close)

    def _keep(self) -> None:
        self._keeper = subprocess.Popen(  # noqa: S603 - a script of this package
            [sys.executable, "-I", "-S", str(_KEEPER), json.dumps(self._spec)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            cwd="/",
        )
        self._news: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, name="private-server-keeper", daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._keeper.stdout is not None  # noqa: S101 - opened above
        for line in self._keeper.stdout:
            self._news.put(line.decode().strip())
        self._news.put("gone")

    def run(self, command: Sequence[str], *, timeout: float) -> int | None:
        """Run a command to its end in the server's place, before the server starts.

        Return its exit code, or None when it still runs after ``timeout`` seconds. Raises `ServerStartError`.
        """
        self.start(command)
        self._wait(timeout)
        return self.exit_code

    def start(self, command: Sequence[str] | None = None) -> None:
        """Start the server (or ``command`` in its place), which must not be running; under a new keeper if need be.

        Raises `ServerStartError` when it cannot be executed, or its keeper does not reply.
        """
        if self._keeper.poll() is not None and not self._is_closed:
            self._let_go()
            self._keep()
        self.exit_code, self.was_ordered_to_end = None, False
        self._order(f"start {json.dumps(list(command or self._command))}")
        try:
            word, _, rest = self._news.get(timeout=ANSWER_TIMEOUT).partition(" ")
        except queue.Empty:
            raise ServerStartError(
                f"The server's keeper, process {self._keeper.pid}, did not start it within {ANSWER_TIMEOUT:g} s."
            ) from None
        if word != "started":
            raise ServerStartError(f"The server could not be executed: {rest or word}.")
        self.pid = int(rest)

    def is_running(self) -> bool:
        """Return whether the server runs now."""
        self._listen(timeout=0)
        return self.pid is not None

    def end(self, order: str, *, timeout: float) -> bool:
        """End the server, wait up to ``timeout`` seconds, and return whether it ended.

        ``order``: ``term``, ``int`` or ``kill``, a signal to the server; ``crash``, SIGKILL to its children, too.
        """
        if not self.is_running():
            return True
        self.was_ordered_to_end = True
        self._order(order)
        self._wait(timeout)
        return self.pid is None

    def _wait(self, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        while self.pid is not None and (left := deadline - time.monotonic()) > 0:
            self._listen(timeout=left)

    def close(self) -> None:
        """Kill the server and all its processes, and wait until they have ended. Safe to call twice."""
        if os.getpid() != self._owner:
            return  # a forked child must not end its parent's server
        atexit.unregister(self.close)
        if self._keeper.poll() is None:
            self._order("quit")
            try:
                self._keeper.wait(timeout=20)
            except subprocess.TimeoutExpired:
                self._keeper.kill()
                self._keeper.wait()
        self._remove()
        self._is_closed = True
        self._let_go()
        self.pid = None

    def _remove(self) -> None:
        """Delete the directory, which a killed keeper leaves."""
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _let_go(self) -> None:
        """Close the pipes to a keeper that has ended."""
        self._reader.join(timeout=5)
        for pipe in (self._keeper.stdin, self._keeper.stdout):
            if pipe is not None and not pipe.closed:
                with contextlib.suppress(BrokenPipeError):  # an order that it did not read
                    pipe.close()

    def _order(self, order: str) -> None:
        assert self._keeper.stdin is not None  # noqa: S101 - opened above
        try:
            self._keeper.stdin.write(f"{order}\n".encode())
            self._keeper.stdin.flush()
        except (OSError, ValueError) as error:
            if order != "quit":
                raise PrivateServerError("The server's keeper process has ended: the server was closed.") from error

    def _listen(self, *, timeout: float) -> None:
        try:
            word, _, rest = self._news.get(block=timeout > 0, timeout=timeout).partition(" ")
        except queue.Empty:
            return
        if word in {"exited", "gone"}:
            self.pid, self.exit_code = None, int(rest or -1)


@contextlib.contextmanager
def kept_folder(prefix: str, *, inside: str | None = None) -> Iterator[Path]:
    """Create a directory that is deleted after the block, or 10 s after this process dies.

    ``inside``: its parent folder; by default that of temporary files.
    """
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=inside))
    keeper = KeptProcess([], env={}, output=folder / "output.txt", remove=folder)
    try:
        yield folder
    finally:
        keeper.close()


def wait_until_ready(
    probe: Callable[[], bool], process: KeptProcess, *, what: str, timeout: float, logs: Sequence[Path]
) -> None:
    """Call ``probe`` until it is true, for ``timeout`` seconds at most.

    Raises `ServerStartError` then, or as soon as the process ended; with the tails of ``logs``.
    """
    deadline = time.monotonic() + timeout
    while not probe():
        if not process.is_running():
            raise ServerStartError(f"{what} ended with code {process.exit_code} at start.\n{tails(logs)}")
        if time.monotonic() > deadline:
            raise ServerStartError(f"{what} was not ready after {timeout:g} s.\n{tails(logs)}")
        time.sleep(0.05)


def tails(logs: Sequence[Path], *, lines: int = 100) -> str:
    """Return the last lines of each log file that has any, each under its path."""
    parts = []
    for path in logs:
        text = path.read_text(errors="replace") if path.is_file() else ""
        if text.strip():
            parts.append(f"--- end of {path}\n" + "\n".join(text.splitlines()[-lines:]))
    return "\n".join(parts) or f"Nothing was written to {', '.join(map(str, logs))}."


_Server = TypeVar("_Server", bound="PrivateServer")


class PrivateServer(ABC):
    """A server that starts on entry of a ``with`` block, and ends, with its data, on exit or when the start fails."""

    _process: KeptProcess | None = None

    @property
    def pid(self) -> int | None:
        """The process id of the server, or None when it does not run."""
        return self._process.pid if self._process is not None and self._process.is_running() else None

    def revive(self) -> str | None:
        """Start the server again if it has ended; return how it ended if this object did not end it.

        Data that it kept only in memory is lost. Raises `ServerStartError` with the tail of its log.
        """
        process = self._process
        if process is None or process.is_running():
            return None
        loss = None if process.was_ordered_to_end else f"{self!r} ended unexpectedly, with code {process.exit_code}."
        self.start()
        return loss

    @abstractmethod
    def start(self) -> None:
        """Start and wait until it is ready."""

    @abstractmethod
    def stop(self) -> None:
        """End it."""

    def close(self) -> None:
        """End it and delete its data, as the end of the ``with`` block does."""
        self.stop()

    def __enter__(self: _Server) -> _Server:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
