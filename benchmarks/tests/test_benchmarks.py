"""The comparison of systems with few tasks: it runs and counts the tasks."""

from __future__ import annotations

import pytest

from benchmarks.brokers import Private
from benchmarks.contenders import FLOORS, PEERS
from benchmarks.contenders import OURS as OUR_NAME
from benchmarks.peers_measures import measure_killed
from benchmarks.run import Options, measure_rate
from celery_rmq_delay.testing import PrivateBroker

OURS = next(each for each in PEERS if (each.name, each.queue_type) == (OUR_NAME, "quorum"))
FLOOR = next(each for each in FLOORS if each.queue_type == "quorum")


@pytest.fixture
def broker(rmq_broker):
    if not isinstance(rmq_broker, PrivateBroker):
        pytest.skip("a benchmark measures its broker's processes and files: it needs a private one")
    return Private(rmq_broker)


def test_a_bare_loop_passes_tasks_through_one_retry_of_the_same_ladder(broker):
    found = measure_rate(FLOOR, broker, Options(tasks=30, delay=1, failures=1))
    assert (found.tasks, found.parked) == (30, 0)
    assert 0 < found.per_second < 30  # includes the delay of a second
    assert found.peak_rss > 1


@pytest.mark.slow
def test_a_child_that_is_killed_repeatedly_loses_no_task(broker):
    options = Options(tasks=60, delay=1, failures=1, work=0.01)
    found = measure_killed(OURS, broker, options, "child", no_more=120)
    assert (found.kills, found.tasks, found.lost, found.stuck) == (4, 60, 0, 0)
