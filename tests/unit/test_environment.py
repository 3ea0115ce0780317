"""The environment that a test run inherits from its parent process."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.support import environment
from tests.support.corpus import corpus
from tests.support.environment import FILES, clean, place_of_temporary_files
from tests.support.waiting import SECONDS, wait_for

KEPT = {
    "BROKER_URL": "b",
    "HOME": "/root",
    "JAVA_HOME": "/java",
    "PATH": "/bin",
    "RMQ_DELAY_BROKER_TREES": "/trees",
    "RMQ_DELAY_DIST": "built",
}
CHANGING = (
    "CELERY_BROKER_URL",
    "CELERY_RESULT_BACKEND",
    "DD_TRACE_AGENT_URL",
    "DJANGO_SETTINGS_MODULE",
    "ELASTIC_APM_SERVER_URL",
    "FLOWER_BASIC_AUTH",
    "FORCE_COLOR",
    "HTTPS_PROXY",
    "NEW_RELIC_LICENSE_KEY",
    "OTEL_TRACES_EXPORTER",
    "PGSSLMODE",
    "PYTHONSAFEPATH",
    "PYTHONUNBUFFERED",
    "RMQ_DELAY_MANAGEMENT_URL",
    "SENTRY_DSN",
    "SPARK_CONF_DIR",
    "http_proxy",
)


def test_a_test_run_takes_no_settings_and_no_proxy_from_its_environment() -> None:
    environ = KEPT | dict.fromkeys(CHANGING, "x")
    clean(environ)
    assert environ == KEPT


def test_this_run_has_no_variables_that_change_it() -> None:
    assert not {*CHANGING} & {*os.environ}


def test_a_test_run_receives_signals_that_its_parent_ignored_or_blocked() -> None:
    def as_a_daemon() -> None:
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM, signal.SIGINT, signal.SIGTERM])

    code = """
import signal, subprocess, sys
from tests.support.environment import take_signals
take_signals()
print(subprocess.run([sys.executable, "-c", "raise SystemExit(3)"]).returncode, signal.pthread_sigmask(0, []))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, preexec_fn=as_a_daemon, timeout=SECONDS
    )
    assert (done.stdout, done.stderr) == ("3 set()\n", "")


@corpus(
    "hard, output",
    [
        (FILES, f"{FILES}\n"),
        (200, "RuntimeError: These tests need 1,024 open files, and this process may have 200 at most"),
    ],
)
def test_a_test_run_takes_the_open_files_that_it_needs_or_reports_the_limit(hard: int, output: str) -> None:
    code = """
import resource
from tests.support.environment import have_files
have_files()
print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (200, hard)),
        timeout=SECONDS,
    )
    assert output in done.stdout + done.stderr


def test_temporary_files_are_in_memory_only_where_it_has_room(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("TMPDIR")
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(environment, "MEMORY", str(tmp_path))
    monkeypatch.setattr(environment, "ROOM_FOR_FILES", 0)
    assert place_of_temporary_files() == str(tmp_path)
    monkeypatch.setattr(environment, "ROOM_FOR_FILES", 2**62)
    assert place_of_temporary_files() == tempfile.gettempdir()
    monkeypatch.setenv("TMPDIR", "/var/tmp")
    monkeypatch.setattr(environment, "ROOM_FOR_FILES", 0)
    monkeypatch.setattr(tempfile, "tempdir", None)
    assert place_of_temporary_files() == "/var/tmp"


@corpus("killed", [False, True])
def test_temporary_files_of_a_run_are_deleted_and_their_names_leave_room_for_sockets(
    tmp_path: Path, killed: bool
) -> None:
    (long := tmp_path / ("long" * 25)).mkdir()
    code = f"""
import os, signal, tempfile
from tests.support.environment import own_temporary_files
with own_temporary_files():
    assert tempfile.gettempdir() == os.environ["TMPDIR"]
    print(os.path.dirname(tempfile.mkstemp()[1]), flush=True)
    {"os.kill(os.getpid(), signal.SIGKILL)" if killed else ""}
"""
    with subprocess.Popen(
        [sys.executable, "-c", code], env={**os.environ, "TMPDIR": str(long)}, stdout=subprocess.PIPE, text=True
    ) as process:
        folder = Path(process.communicate(timeout=SECONDS)[0].strip())
    assert process.returncode == (-signal.SIGKILL if killed else 0)
    assert len(str(folder)) < 30
    wait_for(lambda: not folder.exists(), "the removal of the files")
    assert not list(long.iterdir())
