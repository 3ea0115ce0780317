"""The quickstart and the other runnable pages."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import amqp
import kombu
import pytest

from tests.support import ROOT
from tests.support.snippets import snippets, write
from tests.support.waiting import SECONDS, wait_for

pytestmark = pytest.mark.slow


@contextmanager
def worker(folder: Path, broker: str, app: str) -> Iterator[Path]:
    """Run the worker of a page's app; yield its log."""
    log = folder / "worker.log"
    command = [sys.executable, "-m", "celery", "-A", app, "worker", "--loglevel", "INFO", "--concurrency", "2"]
    with (
        log.open("w") as output,
        subprocess.Popen(
            command, cwd=folder, env={**os.environ, "BROKER_URL": broker}, stdout=output, stderr=subprocess.STDOUT
        ) as process,
    ):
        try:
            wait_for(lambda: " ready." in log.read_text() or process.poll() is not None, "the worker")
            yield log
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(timeout=SECONDS)
            print(log.read_text())


def exhausted(broker: str) -> int | None:
    with kombu.Connection(broker) as connection:
        try:
            return int(connection.default_channel.queue_declare("rmq_delay.exhausted", passive=True).message_count)
        except amqp.NotFound:
            return None


def script(folder: Path, broker: str, name: str, seconds: float) -> subprocess.CompletedProcess[str]:
    """Run a script of the page."""
    return subprocess.run(
        [sys.executable, name],
        cwd=folder,
        env={**os.environ, "BROKER_URL": broker},
        capture_output=True,
        text=True,
        timeout=seconds,
    )


def test_the_quickstart_prints_the_documented_output(rmq_vhost: str, tmp_path: Path) -> None:
    write(ROOT / "docs/start/quickstart.md", tmp_path, "shop.py", "send.py")
    with worker(tmp_path, rmq_vhost, "shop") as log:
        sent = script(tmp_path, rmq_vhost, "send.py", 60)
        assert sent.stdout == "order 7 charged after 2 retries\n", sent.stderr + log.read_text()
        wait_for(lambda: exhausted(rmq_vhost) == 2, "two exhausted tasks")
        text = log.read_text()
    assert "Applied the ladder of queue celery" in text
    assert text.count("retry: Retry in 1.0s: ConnectionError('The gateway does not answer.')") == 1
    assert text.count("retry: Retry in 2.0s: ConnectionError('The gateway does not answer.')") == 1


def test_the_readme_shows_a_call_and_a_worker_whose_log_shows_its_retries(rmq_vhost: str, tmp_path: Path) -> None:
    readme = ROOT / "README.md"
    write(readme, tmp_path, "shop.py", "send.py")
    shop = tmp_path / "shop.py"
    assert '{"tiers": ["10s", "1m",' in shop.read_text()
    shop.write_text(shop.read_text().replace('"10s", "1m"', '"200ms", "400ms"'))
    (started,) = (line for each in snippets(readme) for line in each.code.splitlines() if " worker " in line)
    assert started.startswith("celery -A shop worker --loglevel INFO ")  # as `worker` runs it
    (printed,) = re.findall(r"print.*  # after 70 s: (.*)", (tmp_path / "send.py").read_text())
    with worker(tmp_path, rmq_vhost, "shop") as log:
        sent = script(tmp_path, rmq_vhost, "send.py", 60)
        assert sent.stdout == f"{printed}\n", sent.stderr + log.read_text()
        assert log.read_text().count("retry: Retry in 0.") == 2


def test_the_topology_of_ones_own_holds_a_call(rmq_vhost: str, tmp_path: Path) -> None:
    write(ROOT / "docs/explanation/exact-delays.md", tmp_path, "steps.py", "own.py")
    with worker(tmp_path, rmq_vhost, "own") as log:
        start = time.monotonic()
        sent = script(tmp_path, rmq_vhost, "own.py", 90)
        took = time.monotonic() - start
    assert sent.stdout == "hello world\n", sent.stderr + log.read_text()
    assert took >= 1, "0.4 s are rounded up to the first step"


@pytest.mark.slow
def test_celery_multi_starts_and_stops_workers_as_the_page_has_it(rmq_vhost: str, tmp_path: Path) -> None:
    write(ROOT / "docs/start/quickstart.md", tmp_path, "shop.py", "send.py")
    (tmp_path / "run").mkdir()
    page = ROOT / "docs/operate/production-workers.md"
    lines = [line for each in snippets(page) for line in each.code.splitlines() if line.startswith("celery multi")]
    start, stop = ([sys.executable, "-m", *line.split()] for line in lines)

    def run(command: list[str]) -> None:
        subprocess.run(command, cwd=tmp_path, env={**os.environ, "BROKER_URL": rmq_vhost}, check=True, timeout=SECONDS)

    run(start)
    try:
        wait_for(lambda: len([*(tmp_path / "run").glob("*.pid")]) == 2, "two workers")
        assert script(tmp_path, rmq_vhost, "send.py", 60).stdout == "order 7 charged after 2 retries\n"
    finally:
        run(stop)
    assert [*(tmp_path / "run").glob("*.pid")] == []
