"""The quickstart and the other runnable pages."""

import re
import subprocess
import sys
import time
from typing import Any

import kombu
import pytest

from celery_rmq_delay.amqp.apply import ready_counts
from tests.support import ROOT
from tests.support.processes import environment, running_worker
from tests.support.snippets import snippets, write
from tests.support.waiting import SECONDS, wait_for

pytestmark = pytest.mark.slow


def exhausted(broker):
    with kombu.Connection(broker) as connection:
        return ready_counts(connection, ["rmq_delay.exhausted"])["rmq_delay.exhausted"]


def script(folder, broker, name):
    options: dict[str, Any] = {"capture_output": True, "text": True, "timeout": SECONDS}
    return subprocess.run([sys.executable, name], cwd=folder, env=environment(broker), **options)


def test_the_quickstart_prints_the_documented_output(rmq_vhost, tmp_path):
    write(ROOT / "docs/start/quickstart.md", tmp_path, "shop.py", "send.py")
    with running_worker(tmp_path, "shop", environment(rmq_vhost), "--concurrency", "2") as log:
        sent = script(tmp_path, rmq_vhost, "send.py")
        assert sent.stdout == "order 7 charged after 2 retries\n", sent.stderr + log.read_text()
        wait_for(lambda: exhausted(rmq_vhost) == 2, "two exhausted tasks")
        text = log.read_text()
    assert "Applied the ladder of queue celery" in text
    assert text.count("retry: Retry in 1.0s: ConnectionError('The gateway does not answer.')") == 1
    assert text.count("retry: Retry in 2.0s: ConnectionError('The gateway does not answer.')") == 1


def test_the_readme_shows_a_call_and_a_worker_whose_log_shows_its_retries(rmq_vhost, tmp_path):
    readme = ROOT / "README.md"
    write(readme, tmp_path, "shop.py", "send.py")
    shop = tmp_path / "shop.py"
    assert '{"tiers": ["10s", "1m",' in shop.read_text()
    shop.write_text(shop.read_text().replace('"10s", "1m"', '"200ms", "400ms"'))
    (started,) = (line for each in snippets(readme) for line in each.code.splitlines() if " worker " in line)
    assert started.startswith("celery -A shop worker --loglevel INFO ")  # as it runs here
    (printed,) = re.findall(r"print.*  # after 70 s: (.*)", (tmp_path / "send.py").read_text())
    with running_worker(tmp_path, "shop", environment(rmq_vhost), "--concurrency", "2") as log:
        sent = script(tmp_path, rmq_vhost, "send.py")
        assert sent.stdout == f"{printed}\n", sent.stderr + log.read_text()
        assert log.read_text().count("retry: Retry in 0.") == 2


def test_the_topology_of_ones_own_holds_a_call(rmq_vhost, tmp_path):
    write(ROOT / "docs/explanation/exact-delays.md", tmp_path, "steps.py", "own.py")
    with running_worker(tmp_path, "own", environment(rmq_vhost), "--concurrency", "2") as log:
        start = time.monotonic()
        sent = script(tmp_path, rmq_vhost, "own.py")
        took = time.monotonic() - start
    assert sent.stdout == "hello world\n", sent.stderr + log.read_text()
    assert took >= 1, "0.4 s are rounded up to the first step"


@pytest.mark.slow
def test_celery_multi_starts_and_stops_workers_as_the_page_has_it(rmq_vhost, tmp_path):
    write(ROOT / "docs/start/quickstart.md", tmp_path, "shop.py", "send.py")
    (tmp_path / "run").mkdir()
    page = ROOT / "docs/operate/production-workers.md"
    lines = [line for each in snippets(page) for line in each.code.splitlines() if line.startswith("celery multi")]
    start, stop = ([sys.executable, "-m", *line.split()] for line in lines)

    def run(command):
        subprocess.run(command, cwd=tmp_path, env=environment(rmq_vhost), check=True, timeout=SECONDS)

    run(start)
    try:
        wait_for(lambda: len([*(tmp_path / "run").glob("*.pid")]) == 2, "two workers")
        assert script(tmp_path, rmq_vhost, "send.py").stdout == "order 7 charged after 2 retries\n"
    finally:
        run(stop)
    assert [*(tmp_path / "run").glob("*.pid")] == []
