"""The tests' own reports of failures."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.support import ROOT
from tests.support.waiting import SECONDS

FAILS_AMONG_FINALIZERS = """
import ast, gc

class Parsing:
    def __init__(self):
        self.cycle = self

    def __del__(self):
        ast.parse("a + b")

class Odd(Exception):
    def __str__(self):
        for _ in range(300):
            Parsing()
            ast.parse("a + b * c" + "\\n" * 50)
        return "an odd one"

def test_fails():
    gc.set_threshold(20)
    raise Odd
"""


def test_a_failure_is_reported_while_finalizers_parse_source(tmp_path: Path) -> None:
    """On CPython 3.11 it would be an internal error of pytest, which ends the run."""
    (tmp_path / "test_odd.py").write_text(FAILS_AMONG_FINALIZERS)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "tests.support.reports",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        tmp_path,
    ]
    done = subprocess.run(
        [*command, tmp_path],
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": ""},
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert (done.returncode, "1 failed" in done.stdout) == (1, True), done.stdout
    assert "SystemError" not in done.stdout
    assert "Odd: an odd one" in done.stdout
