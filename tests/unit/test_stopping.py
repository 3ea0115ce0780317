"""SIGTERM and SIGINT, in processes that have inherited SIGINT ignored, and both blocked."""

import signal
import subprocess
import sys
import threading
from contextlib import contextmanager

import pytest

from celery_rmq_delay.stopping import STOP_SIGNALS, exit_at_once, handling, stop_requested
from tests.support.corpus import corpus
from tests.support.processes import as_a_background_job
from tests.support.waiting import SECONDS

WAITS = """
from celery_rmq_delay.stopping import stop_requested
with stop_requested() as stop:
    print("ready", flush=True)
    stop.wait(60)
print("finished")
"""
EXITS = """
import time
from celery_rmq_delay.stopping import exit_at_once, handling
with handling(exit_at_once):
    try:
        print("ready", flush=True)
        time.sleep(60)
    finally:
        print("undone")
"""
MIGRATES = """
import time
from celery_rmq_delay.cli.base import interruptible
with interruptible() as stopped:
    print("ready", flush=True)
    while not stopped():
        time.sleep(0.01)
    print("finishing", flush=True)
    time.sleep(60)
"""


@contextmanager
def background(code):
    """Run a program as a background job; yield it when it is ready."""
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, preexec_fn=as_a_background_job) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


@corpus("number", STOP_SIGNALS)
def test_a_command_finishes_pending_work(number):
    with background(WAITS) as process:
        process.send_signal(number)
        assert process.communicate(timeout=SECONDS) == ("finished\n", None)
    assert process.returncode == 0


@corpus("number", STOP_SIGNALS)
def test_a_command_undoes_incomplete_work(number):
    with background(EXITS) as process:
        process.send_signal(number)
        assert process.communicate(timeout=SECONDS) == ("undone\n", None)
    assert process.returncode == 128 + number


@corpus("number", STOP_SIGNALS)
def test_the_second_signal_ends_a_migration_at_once(number):
    with background(MIGRATES) as process:
        process.send_signal(number)
        assert process.stdout is not None
        assert process.stdout.readline() == "finishing\n"
        process.send_signal(number)
        assert process.wait(timeout=SECONDS) == 128 + number


def test_signal_handlers_are_restored():
    before = [signal.getsignal(number) for number in STOP_SIGNALS]
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        with handling(exit_at_once):
            assert [signal.getsignal(number) for number in STOP_SIGNALS] == [exit_at_once] * 2
            assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])
        assert signal.SIGINT in signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    assert [signal.getsignal(number) for number in STOP_SIGNALS] == before


def test_signal_handlers_are_restored_after_a_signal_that_waited_until_they_were_installed():
    before = signal.getsignal(signal.SIGTERM)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    try:
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(SystemExit), handling(exit_at_once):
            pytest.fail("the signal did not wait")
        assert signal.getsignal(signal.SIGTERM) is before
        assert signal.SIGTERM in signal.pthread_sigmask(signal.SIG_BLOCK, ())
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def test_outside_the_main_thread_signal_handlers_are_not_changed():
    found = []

    def call():
        with stop_requested() as stop:
            found.append((stop.is_set(), [signal.getsignal(number) for number in STOP_SIGNALS]))

    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
    assert found == [(False, [signal.getsignal(number) for number in STOP_SIGNALS])]
