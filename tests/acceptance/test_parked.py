"""Parked tasks cost the worker nothing, and come back on time."""

import collections

import pytest

from tests.support.corpus import slow
from tests.support.waiting import wait_for

#: Seconds, of the lab's ladder.
FIRST_TIER = 0.3


@pytest.mark.parametrize("tasks", [300, slow(1_000)])
def test_many_retries_come_once_and_never_early(lab, tasks):
    """`benchmarks.peers` measures how late they are."""
    lab.worker("prefork", 2, "--loglevel", "ERROR")
    sampled = lab.task("sampled")
    for _ in range(tasks):
        sampled.delay()
    wait_for(lambda: lab.redis.llen(lab.config.attempts) >= 2 * tasks, "all retries")
    times: dict[str, dict[str, float]] = collections.defaultdict(dict)
    for line in lab.redis.lrange(lab.config.attempts, 0, -1):
        task_id, attempt, at = line.decode().split()
        assert attempt not in times[task_id]
        times[task_id][attempt] = float(at)
    assert len(times) == tasks
    assert all(attempts["1"] - attempts["0"] >= FIRST_TIER for attempts in times.values())


@pytest.mark.slow
def test_fifty_thousand_parked_tasks_cost_the_worker_no_memory(make_lab, own_broker):
    lab = make_lab(tiers=["1h"], conf={"result_backend": None})
    worker = lab.worker("prefork", 2, "--loglevel", "ERROR")
    sampled = lab.task("sampled")
    # Memory that a worker allocates once, at its first failures, is no cost of parked tasks.
    for _ in range(500):
        sampled.delay()
    wait_for(lambda: lab.parked() == 500)
    idle = worker.main_rss()

    with lab.app.producer_pool.acquire() as producer:
        for _ in range(50_000):
            sampled.apply_async(producer=producer)
    wait_for(lambda: lab.parked() == 50_500, seconds=400)

    assert worker.main_rss() - idle <= 2 * 1024 * 1024
    assert lab.count("shop") == 0
    inspect = lab.app.control.inspect(timeout=10)
    assert wait_for(inspect.reserved, "an answer") == {"w1@test": []}
    assert wait_for(inspect.stats, "an answer")["w1@test"]["prefetch_count"] == 8
    unacked = own_broker.rabbitmqctl("list_queues", "-p", lab.vhost, "name", "messages_unacknowledged", "--quiet")
    assert all(line.split()[-1] == "0" for line in unacked.splitlines()[1:] if line.strip())
