"""A Chromium or a shop that ends while a test uses it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.losses import run_alone
from tests.support.servers.redis import PrivateRedis

pytestmark = pytest.mark.slow

LOSES = """
import os
import signal
import subprocess
from tests.support.browser import inside
from tests.support.browser.chromium import pid_of

def test_that_loses_chromium(chromium):
    os.kill(pid_of(chromium), signal.SIGKILL)
    chromium.new_context()

def test_that_loses_the_driver_of_chromium(chromium):
    children = subprocess.run(["pgrep", "-P", str(os.getpid()), "-f", "playwright"], capture_output=True, text=True)
    (driver,) = children.stdout.split()
    os.kill(int(driver), signal.SIGKILL)
    chromium.new_context()

def test_after_chromium(chromium):
    chromium.new_context().close()

def test_that_loses_the_web_server(page, shop):
    shop.processes["web"].end("kill", timeout=30)
    page.goto("/admin/")

def test_that_loses_the_worker(shop):
    shop.call(inside.end_worker)
    assert shop.call(inside.worker_is_running)

def test_that_loses_the_process(shop):
    os.kill(shop.call(inside.pid), signal.SIGKILL)
    shop.call(inside.pid)

def test_after_them(page):
    page.goto("/admin/")
"""


SHOP = {"test_that_loses_the_web_server", "test_that_loses_the_worker", "test_that_loses_the_process"}
CHROMIUM = {"test_that_loses_chromium", "test_that_loses_the_driver_of_chromium"}
OF_CHROMIUM = 2 * ["Chromium or its driver ended"]
OF_THE_SHOP = [f"The shop's {what} ended" for what in ("web", "worker", "own process")]


@pytest.mark.parametrize(
    ("chosen", "lost", "reports"),
    [
        ("chromium", CHROMIUM, OF_CHROMIUM),
        pytest.param("test", CHROMIUM | SHOP, OF_CHROMIUM + OF_THE_SHOP, marks=pytest.mark.slow),
    ],
    ids=["chromium", "all"],
)
def test_a_lost_process_fails_one_test_and_is_reported_once(
    tmp_path: Path, rmq_vhost: str, rmq_redis: PrivateRedis, chosen: str, lost: set[str], reports: list[str]
) -> None:
    servers = {"BROKER_URL": rmq_vhost, "REDIS_URL": rmq_redis.url}
    conftest = Path(__file__).with_name("conftest.py")
    outcomes, output = run_alone(conftest, LOSES, tmp_path, chosen, **servers)
    passed = {"test_after_chromium"} if chosen == "chromium" else {"test_after_chromium", "test_after_them"}
    assert outcomes["FAILED"] == lost, output
    assert outcomes["PASSED"] == passed, output
    # The last error reports the losses, at the end of the session.
    assert outcomes["ERROR"] == {"test_after_chromium" if chosen == "chromium" else "test_after_them"}, output
    reported = re.findall(r"^E .*?((?:Chromium or its driver|The shop's .*) ended).* during, or before", output, re.M)
    assert reported == reports, output
