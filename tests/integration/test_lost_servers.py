"""Servers that end under the tests that share them."""

import re

import pytest

from tests.support.losses import run_alone

LOSES_THEM = """
import os, signal, time
import pytest

@pytest.fixture
def servers(rmq_broker, rmq_redis, rmq_postgres):
    return rmq_broker, rmq_redis, rmq_postgres

def test_that_loses_all(servers, rmq_vhost):
    for server in servers:
        os.kill(server.pid, signal.SIGKILL)
    while any(server.pid for server in servers):
        time.sleep(0.01)
    assert False, "as a test fails whose server ends"

def test_that_ends_one_itself(rmq_broker):
    rmq_broker.kill()

def test_after_them(servers, rmq_vhost):
    assert all(server.pid for server in servers)
"""


@pytest.mark.slow
def test_lost_servers_are_there_for_the_next_test_and_are_reported_once_each(tmp_path):
    found, output = run_alone(None, LOSES_THEM, tmp_path)
    assert found == {
        "ERROR": {"test_after_them"},  # at the end of the session: the losses
        "FAILED": {"test_that_loses_all"},
        "PASSED": {"test_after_them", "test_that_ends_one_itself"},
    }, output
    reported = r"Failed: <Private(\w+) .* ended unexpectedly, with code -9\. It was during, or right after, (\S+)\.$"
    lost = re.findall(reported, output, re.M)
    loser = "test_alone.py::test_that_loses_all"
    assert sorted(lost) == [("Broker", loser), ("Postgres", loser), ("Redis", loser)], output
