"""The tests' own reports of failures."""

import os
import subprocess
import sys

from tests.support import ROOT
from tests.support.waiting import SECONDS

LEAVES_A_SOCKET = """
import socket

def test_closes():
    with socket.socket():
        pass

def test_leaves():
    cycle = [socket.socket()]
    cycle.append(cycle)
"""


REPORTS_SLOWLY = """
import time, pytest

@pytest.hookimpl(tryfirst=True)
def pytest_runtest_makereport(call):
    if call.excinfo:
        time.sleep(1.5)  # as it takes on a busy machine
"""


def report_of(folder, *options):
    """Return exit code and output of a pytest for the tests of a folder, with our reports only."""
    plugins = ("-p", "tests.support.reports", "-p", "no:cacheprovider")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *plugins, *options, "--rootdir", folder, folder],
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": ""},
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    return done.returncode, done.stdout


def test_a_timeout_does_not_interrupt_the_report_of_a_failure(tmp_path):
    """This would be an internal error of pytest, which ends the run."""
    (tmp_path / "conftest.py").write_text(REPORTS_SLOWLY)
    (tmp_path / "test_slow.py").write_text("def test_fails(): assert 0\ndef test_passes(): ...")
    code, output = report_of(tmp_path, "-p", "pytest_timeout", "--timeout", "1")
    assert (code, "1 failed, 1 passed" in output) == (1, True), output
    assert "INTERNALERROR" not in output


def test_a_test_that_leaves_a_socket_to_the_garbage_collector_is_found(tmp_path):
    (tmp_path / "test_sockets.py").write_text(LEAVES_A_SOCKET)
    code, output = report_of(tmp_path, "-p", "tests.support.leaks", "--leaks")
    assert (code, "2 passed, 1 error" in output) == (1, True), output
    assert "ERROR at teardown of test_leaves" in output
    assert "left to the garbage collector: <socket.socket fd=" in output
