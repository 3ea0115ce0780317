"""Programs that tests start: in the background, and the worker of a page's app."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from celery_rmq_delay.stopping import STOP_SIGNALS
from tests.support.waiting import SECONDS, wait_for


def as_a_background_job() -> None:
    """Ignore SIGINT, as in jobs of a shell with ``&``, and block signals that stop a command; for ``preexec_fn``."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)


@contextmanager
def running_worker(
    folder: Path, app: str, environ: dict[str, str], *options: str, name: str = "worker", python: str = sys.executable
) -> Iterator[Path]:
    """Run a worker of an app in a folder until the end of the block; yield its log."""
    log = folder / f"{name}.log"
    command = [python, "-m", "celery", "-A", app, "worker", "--loglevel", "INFO", *options]
    with (
        log.open("w") as output,
        subprocess.Popen(command, cwd=folder, env=environ, stdout=output, stderr=subprocess.STDOUT) as process,
    ):
        try:
            wait_for(lambda: " ready." in log.read_text() or process.poll() is not None, "the worker")
            assert process.poll() is None, log.read_text()
            yield log
        finally:
            process.terminate()
            process.wait(SECONDS)
            print(log.read_text())


def environment(broker: str, **more: str) -> dict[str, str]:
    """Return the environment of a process whose broker this is."""
    return {**os.environ, "BROKER_URL": broker, **more}
