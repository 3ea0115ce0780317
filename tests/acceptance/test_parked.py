"""Parked tasks cost the worker nothing, and come back on time."""

from __future__ import annotations

import collections
import time
from collections.abc import Callable

import pytest

from tests.waiting import wait_for

from .conftest import Lab

TASKS = 1000
PACE = 125  # tasks a second: far less than any pool takes, so that lateness is the ladder's and no queue's


RUNS = 3  # a machine that does something else for a moment spoils one run, a late ladder all of them


def lateness(lab: Lab, delay: float) -> list[float]:
    """Send the tasks at their pace; return by how many seconds each retry came after its delay, sorted."""
    lab.redis.delete(lab.config.attempts)
    sampled, start = lab.task("sampled"), time.monotonic()
    for number in range(TASKS):
        sampled.delay()
        time.sleep(max(0.0, start + number / PACE - time.monotonic()))
    wait_for(lambda: lab.redis.llen(lab.config.attempts) == 2 * TASKS, seconds=60)
    times: dict[str, dict[str, float]] = collections.defaultdict(dict)
    for line in lab.redis.lrange(lab.config.attempts, 0, -1):
        task_id, attempt, at = line.decode().split()
        times[task_id][attempt] = float(at)
    assert len(times) == TASKS
    return sorted(attempts["1"] - attempts["0"] - delay for attempts in times.values())


@pytest.mark.quiet
@pytest.mark.parametrize("pool", ["prefork", "threads", "solo", "gevent"])
def test_a_thousand_retries_are_never_early_and_late_by_less_than_a_tenth_of_a_second_at_the_99th_percentile(
    make_lab: Callable[..., Lab], queue_type: str, pool: str
) -> None:
    # With heartbeats, Celery's green loop waits a tenth of a second for the events' connection after each message.
    conf = {"result_backend": None, **({"broker_heartbeat": 0} if pool == "gevent" else {})}
    lab = make_lab(queue_type, tiers=["2s"], conf=conf)
    lab.worker(pool, 2, "--loglevel", "ERROR")
    p99s: list[float] = []
    while not p99s or (min(p99s) >= 0.1 and len(p99s) < RUNS):
        late = lateness(lab, 2.0)
        assert late[0] >= 0
        p99s.append(late[int(0.99 * TASKS) - 1])
    assert min(p99s) < 0.1


@pytest.mark.timeout(600)
def test_fifty_thousand_parked_tasks_leave_the_worker_as_it_was(make_lab: Callable[..., Lab]) -> None:
    lab = make_lab(tiers=["1h"], conf={"result_backend": None})
    worker = lab.worker("prefork", 2, "--loglevel", "ERROR")
    sampled = lab.task("sampled")
    # What a worker allocates once, at its first failures, is not what parked tasks cost.
    for _ in range(500):
        sampled.delay()
    wait_for(lambda: lab.parked() == 500)
    idle = worker.container.main_rss()

    with lab.app.producer_pool.acquire() as producer:
        for _ in range(50_000):
            sampled.apply_async(producer=producer)
    wait_for(lambda: lab.parked() == 50_500, seconds=400)

    assert worker.container.main_rss() - idle <= 2 * 1024 * 1024
    assert lab.count("shop") == 0
    inspect = lab.app.control.inspect(timeout=10)
    assert wait_for(inspect.reserved, "an answer") == {"w1@test": []}
    assert wait_for(inspect.stats, "an answer")["w1@test"]["prefetch_count"] == 8
    unacked = lab.broker.rabbitmqctl("list_queues", "-p", lab.vhost, "name", "messages_unacknowledged", "--quiet")
    assert all(line.split()[-1] == "0" for line in unacked.splitlines()[1:] if line.strip())
