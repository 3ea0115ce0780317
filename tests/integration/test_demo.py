"""``python -m celery_rmq_delay demo`` on a given broker."""

import os
import re
import signal
import subprocess
import sys
from contextlib import contextmanager
from urllib.parse import unquote, urlsplit

import psutil
import pytest

from celery_rmq_delay.testing.servers.broker import erlang_binary
from tests.support.processes import as_a_background_job
from tests.support.waiting import SECONDS

pytestmark = pytest.mark.slow


def objects(broker, url):
    vhost = erlang_binary(unquote(urlsplit(url).path.removeprefix("/")))
    queues = f"[amqqueue:get_name(Queue) || Queue <- rabbit_amqqueue:list({vhost})]"
    exchanges = f"[element(2, Exchange) || Exchange <- rabbit_exchange:list({vhost})]"
    return broker.evaluate(f"lists:sort([binary_to_list(element(4, Name)) || Name <- {queues} ++ {exchanges}])")


@contextmanager
def demo(url):
    """Run the demo; its output is a pipe, so it has a line for each change."""
    command = [sys.executable, "-m", "celery_rmq_delay", "demo", "--broker-url", url]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=as_a_background_job,
        env={
            **os.environ,
            "PYTHONUNBUFFERED": "1",
            "PYTHONFAULTHANDLER": "1",
            "BROKER_URL": "amqp://another.invalid//",
        },
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def rest_of(process):
    """Wait for the end of the demo, and return what it printed; fail with the stacks of one that does not end."""
    try:
        return process.communicate(timeout=SECONDS)[0]
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGABRT)  # the fault handler prints the stacks of all threads
        raise AssertionError(process.communicate(timeout=SECONDS)[0]) from None


def read_until(process, text):
    """Read the output up to a line with a text."""
    assert process.stdout is not None
    assert any(text in line for line in process.stdout)


def test_ctrl_c_ends_the_worker_and_deletes_everything_in_the_broker(own_broker, rmq_vhost):
    before = objects(own_broker, rmq_vhost)
    with demo(rmq_vhost) as process:
        read_until(process, "worker holds")
        during, children = objects(own_broker, rmq_vhost), psutil.Process(process.pid).children(recursive=True)
        assert "rmq_delay_demo" in during
        process.send_signal(signal.SIGINT)
        rest = rest_of(process)
    assert process.returncode == 130
    assert rest.endswith("Stopped.\n")
    assert objects(own_broker, rmq_vhost) == before
    assert not psutil.wait_procs(children, timeout=SECONDS)[1]


@pytest.mark.slow
def test_a_worker_that_is_killed_ends_the_demo_with_the_end_of_its_log(own_broker, rmq_vhost):
    before = objects(own_broker, rmq_vhost)
    with demo(rmq_vhost) as process:
        read_until(process, "worker holds")
        children = psutil.Process(process.pid).children(recursive=True)
        workers = [each for each in children if "celery_rmq_delay.demo.worker" in each.cmdline()]
        min(workers, key=psutil.Process.create_time).kill()
        rest = rest_of(process)
    assert process.returncode == 1
    ended = r"^Error: The worker ended\. The end of its log: --- end of \S+worker\.log .*(Task charge\[|demo\.orders\.)"
    assert re.search(ended, rest, re.MULTILINE), rest
    assert objects(own_broker, rmq_vhost) == before


@pytest.mark.slow
@pytest.mark.brokers
def test_all_tasks_end_and_nothing_is_left_in_the_broker(own_broker, rmq_vhost):
    before = objects(own_broker, rmq_vhost)
    with demo(rmq_vhost) as process:
        output = rest_of(process)
    assert process.returncode == 0, output
    assert "5 succeeded at once, 12 recovered after 1 to 3 retries, 3 are exhausted." in output
    assert objects(own_broker, rmq_vhost) == before
