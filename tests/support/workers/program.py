"""A Celery worker process that is forked from a process that has imported Celery."""

import ctypes
import multiprocessing
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Sequence
from multiprocessing import connection, forkserver
from pathlib import Path
from typing import Any

_LOADED = multiprocessing.get_context("forkserver")
_LOADED.set_forkserver_preload(
    [
        "celery.apps.worker",
        "celery.backends.redis",
        "celery.bin.celery",
        "celery.concurrency.prefork",
        "celery.worker.components",
        "celery.worker.consumer",
        "celery_rmq_delay.worker.bootstep",
        "celery_rmq_delay.worker.bootstep",
        "celery_rmq_delay.task",
        "kombu.transport.pyamqp",
        "redis",
        "tests.support.workers.matrix",
    ]
)
#: For Linux: the signal that a process gets when its parent ends, as the server does when the tests are killed.
_PR_SET_PDEATHSIG = 1


class Program:
    """A running ``celery`` with these arguments in a session of its own; its output is appended to ``log``."""

    _one_at_a_time = threading.Lock()  # an exit code can be read only once

    def __init__(self, arguments: Sequence[str], environ: dict[str, str], log: Path) -> None:
        # The sockets of the server are in the folder of this run, which is deleted at the end: it has a name only after
        # the import of this module. A folder of its own would stay after a kill.
        known: Any = multiprocessing.current_process()
        known._config.setdefault("tempdir", tempfile.gettempdir())
        self._process = _LOADED.Process(target=_run, args=(arguments, environ, log, Path.cwd()), daemon=True)
        with self._one_at_a_time:
            self._process.start()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def poll(self) -> int | None:
        """Return its exit code once it has ended; that of a signal is negative."""
        with self._one_at_a_time:
            return self._process.exitcode

    def wait(self, seconds: float) -> int:
        ended = connection.wait([self._process.sentinel], seconds)
        assert ended, f"process {self.pid} still runs after {seconds:g} s"
        with self._one_at_a_time:
            self._process.join()
            code = self._process.exitcode
        assert code is not None
        return code


def _run(arguments: Sequence[str], environ: dict[str, str], log: Path, folder: Path) -> None:
    os.setsid()
    if sys.platform == "linux":
        os.close(forkserver._forkserver._forkserver_alive_fd)  # an inherited one would keep the server alive
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    os.chdir(folder)
    descriptor = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    for output in (1, 2):
        os.dup2(descriptor, output)
    os.close(descriptor)
    if "gevent" in arguments:  # which has to patch the standard library before other imports
        os.execve(sys.executable, [sys.executable, "-m", "celery", *arguments], environ)
    os.environ.clear()
    os.environ.update(environ)
    multiprocessing.current_process().name = "MainProcess"  # the name in logs
    sys.argv = ["celery", *arguments]
    from celery.__main__ import main

    main()
