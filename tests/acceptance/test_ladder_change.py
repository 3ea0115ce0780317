"""Old and new workers side by side while the ladder changes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

from celery_rmq_delay.topology.prune import prune
from tests.support.brokers.kinds import EITHER_TYPE
from tests.support.waiting import wait_for
from tests.support.workers.lab import Lab
from tests.support.workers.project import make_app

#: In each of the three stages.
TASKS = 100


@EITHER_TYPE
def test_workers_with_old_and_new_tiers_lose_and_double_nothing_and_old_rungs_go_away(
    make_lab: Callable[..., Lab], queue_type: str
) -> None:
    lab = make_lab(queue_type, tiers=["300ms", "600ms", "900ms"])
    changed = replace(lab.config, rmq_delay={"tiers": ["200ms", "700ms", "800ms", "900ms"]})
    old = lab.worker()
    fates = {lab.task("fails").delay(number % 4).id: number % 4 for number in range(TASKS)}
    wait_for(lambda: lab.parked())

    new = lab.worker(config=changed)
    fates |= {lab.task("fails").delay(number % 4).id: number % 4 for number in range(TASKS)}
    old.container.restart()  # the old tiers once more, as in a rolling deployment
    fates |= {lab.task("fails").delay(number % 4).id: number % 4 for number in range(TASKS)}
    new.container.restart()
    once = {(task_id, attempt) for task_id, fate in fates.items() for attempt in range(fate + 1)}
    wait_for(lambda: {(line["id"], line["retries"]) for line in lab.attempts()} >= once, pause=0.5)
    wait_for(lambda: not any(lab.counts("shop", "shop.suspects").values()))

    runs = Counter((line["id"], line["retries"]) for line in lab.attempts())
    assert set(runs) == once
    # A restart returns what a worker had prefetched; nothing else may run twice.
    assert sum(runs.values()) - len(once) <= 16
    assert lab.count("rmq_delay.exhausted") == 0

    app = make_app(changed)
    plan = app._rmq_delay.plan("shop", reason_routing=True)
    with app.connection_for_write() as connection:
        prune(connection, plan, now=True)
    assert lab.counts("shop.retry.1.300ms", "shop.retry.1.200ms") == {
        "shop.retry.1.300ms": None,
        "shop.retry.1.200ms": 0,
    }
