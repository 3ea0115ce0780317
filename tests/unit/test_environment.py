"""What a test run inherits from who starts it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from tests.support.environment import clean
from tests.support.waiting import SECONDS

KEPT = {"BROKER_URL": "b", "HOME": "/root", "JAVA_HOME": "/java", "PATH": "/bin", "RMQ_DELAY_BROKER_TREES": "/trees"}
CHANGING = (
    "CELERY_BROKER_URL",
    "CELERY_RESULT_BACKEND",
    "DJANGO_SETTINGS_MODULE",
    "FLOWER_BASIC_AUTH",
    "HTTPS_PROXY",
    "PGSSLMODE",
    "PYTHONUNBUFFERED",
    "RMQ_DELAY_MANAGEMENT_URL",
    "SPARK_CONF_DIR",
    "http_proxy",
)


def test_a_test_run_takes_no_settings_and_no_proxy_from_its_environment() -> None:
    environ = KEPT | dict.fromkeys(CHANGING, "x")
    clean(environ)
    assert environ == KEPT


def test_this_run_has_none_of_them() -> None:
    assert not {*CHANGING} & {*os.environ}


def test_a_test_run_takes_its_signals_whatever_is_ignored_or_blocked() -> None:
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
