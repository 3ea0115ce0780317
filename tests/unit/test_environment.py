"""The environment that a test run inherits from its parent process."""

import os
import resource
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.support import environment
from tests.support.corpus import corpus
from tests.support.environment import FILES, clean, place_of_temporary_files
from tests.support.waiting import SECONDS, wait_for

KEPT = ("BROKER_URL", "HOME", "JAVA_HOME", "PATH", "RMQ_DELAY_BROKER_TREES", "RMQ_DELAY_DIST")
CHANGING = (
    *("CELERY_BROKER_URL", "CELERY_RESULT_BACKEND", "DD_TRACE_AGENT_URL", "DJANGO_SETTINGS_MODULE"),
    *("ELASTIC_APM_SERVER_URL", "FLOWER_BASIC_AUTH", "FORCE_COLOR", "HTTPS_PROXY", "NEW_RELIC_LICENSE_KEY"),
    *("OTEL_TRACES_EXPORTER", "PGSSLMODE", "PYTHONSAFEPATH", "PYTHONUNBUFFERED", "RMQ_DELAY_MANAGEMENT_URL"),
    *("SENTRY_DSN", "SPARK_CONF_DIR", "http_proxy"),
)


def test_a_test_run_takes_no_settings_and_no_proxy_from_its_environment():
    environ = dict.fromkeys((*KEPT, *CHANGING), "x")
    clean(environ)
    assert environ == dict.fromkeys(KEPT, "x")
    assert not {*CHANGING} & {*os.environ}, "those of this run"


def run(code, prepare):
    """Run code in a process that ``prepare`` prepares; return its outputs."""
    command = [sys.executable, "-c", f"from tests.support.environment import *\n{code}"]
    done = subprocess.run(command, capture_output=True, text=True, preexec_fn=prepare, timeout=SECONDS)
    return done.stdout + done.stderr


def test_a_test_run_receives_signals_that_its_parent_ignored_or_blocked():
    def as_a_daemon():
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM, signal.SIGINT, signal.SIGTERM])

    code = """
import signal, subprocess, sys
take_signals()
print(subprocess.run([sys.executable, "-c", "raise SystemExit(3)"]).returncode, signal.pthread_sigmask(0, []))
"""
    assert run(code, as_a_daemon) == "3 set()\n"


@corpus(
    "hard, output",
    [
        (FILES, f"{FILES}\n"),
        (200, "RuntimeError: These tests need 1,024 open files, and this process may have 200 at most"),
    ],
)
def test_a_test_run_takes_the_open_files_that_it_needs_or_reports_the_limit(hard, output):
    code = "have_files(); import resource; print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])"
    assert output in run(code, lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (200, hard)))


@corpus("room, given, found", [(0, None, "memory"), (2**62, None, "of Python"), (0, "/var/tmp", "/var/tmp")])
def test_temporary_files_are_in_memory_only_where_it_has_room(monkeypatch, tmp_path, room, given, found):
    monkeypatch.delenv("TMPDIR")
    if given:
        monkeypatch.setenv("TMPDIR", given)
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(environment, "MEMORY", str(tmp_path))
    monkeypatch.setattr(environment, "ROOM_FOR_FILES", room)
    assert place_of_temporary_files() == {"memory": str(tmp_path), "of Python": tempfile.gettempdir()}.get(found, found)


@corpus("killed", [False, True])
def test_temporary_files_of_a_run_are_deleted_and_their_names_leave_room_for_sockets(tmp_path, killed):
    (long := tmp_path / ("long" * 25)).mkdir()
    code = f"""
import os, signal, tempfile
from tests.support.environment import own_temporary_files
with own_temporary_files():
    assert tempfile.gettempdir() == os.environ["TMPDIR"]
    print(os.path.dirname(tempfile.mkstemp()[1]), flush=True)
    {"os.kill(os.getpid(), signal.SIGKILL)" if killed else ""}
"""
    environ = {**os.environ, "TMPDIR": str(long)}
    done = subprocess.run([sys.executable, "-c", code], env=environ, stdout=subprocess.PIPE, text=True, timeout=SECONDS)
    folder = Path(done.stdout.strip())
    assert done.returncode == (-signal.SIGKILL if killed else 0)
    assert len(str(folder)) < 30
    wait_for(lambda: not folder.exists(), "the removal of the files")
    assert not list(long.iterdir())
