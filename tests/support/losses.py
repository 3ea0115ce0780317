"""Lost shared processes: the test that used one fails, and the teardown of the last test; no test in between."""

import os
import re
import shutil
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

from tests.support import ROOT


class Losses:
    def __init__(self) -> None:
        self._found: list[str] = []

    def add(self, what: str, *details: str) -> None:
        """Remember a loss, and the test that it was found in."""
        during = os.environ.get("PYTEST_CURRENT_TEST", "the start")
        self._found.append("\n".join([f"{what} during, or before, {during}", *details]))

    def report(self) -> None:
        """Raise `AssertionError` if a process was lost."""
        assert not self._found, "\n".join(self._found)


def run_alone(
    conftest: Path | None, module: str, folder: Path, chosen: str = "", **variables: str
) -> tuple[dict[str, set[str]], str]:
    """Run tests in a pytest of their own; return names by outcome, and the output.

    They have the fixtures of servers, and those of the conftest.py. ``chosen`` is the value of pytest's ``-k``.
    """
    if conftest is not None:
        shutil.copy(conftest, folder)
    (folder / "test_alone.py").write_text(module)
    fixtures = ("-p", "tests.support.servers.fixtures", "-p", "tests.support.brokers.fixtures")
    options = ("-rA", "-W", "error", *fixtures, "-p", "no:cacheprovider", "--rootdir", str(folder), "-k", chosen)
    # With CI set, pytest writes complete messages.
    outer = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment = {**outer, "PYTHONPATH": str(ROOT), "CI": "true", **variables}
    command = [sys.executable, "-m", "pytest", *options, str(folder)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    outcomes = defaultdict(set)
    for outcome, name in re.findall(r"^(PASSED|FAILED|ERROR) [^:\n]*::(\w+)", done.stdout, re.M):
        outcomes[outcome].add(name)
    return dict(outcomes), done.stdout + done.stderr
