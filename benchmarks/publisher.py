"""A contender's publisher in a separate process, which takes one order at a time."""

from __future__ import annotations

import json
import selectors
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.processes import end
from benchmarks.run import Run, RunError


class Publisher:
    """Talks to `benchmarks.contenders.delayed` through pipes."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self._process, self._log = process, log

    def ask(self, order: str, *, timeout: float = 120.0, **options: Any) -> dict[str, Any]:
        """Send an order to the publisher and return its answer; raise `RunError` after ``timeout`` seconds."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"do": order, **options}).encode() + b"\n")
        self._process.stdin.flush()
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            line = self._process.stdout.readline() if selector.select(timeout) else b""
        if not line:
            raise RunError(f"the publisher did not complete {order} in {timeout:g} s{_last_line(self._log)}")
        answer: dict[str, Any] = json.loads(line)
        return answer


@contextmanager
def publisher(run: Run) -> Iterator[Publisher]:
    """Start the publisher of a run, and end it afterwards."""
    path = run.directory / "publisher.log"
    with path.open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.contenders.delayed"],
            cwd=run.contender.folder,
            env=run.env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,
        )
        try:
            with process:
                try:
                    started = Publisher(process, path)
                    started.ask("prepare")
                    yield started
                finally:
                    end(process)
        except BrokenPipeError as error:
            raise RunError(f"the publisher has ended{_last_line(path)}") from error


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").split("\n")
    return "".join(f": {line}" for line in lines[-2:] if line)
