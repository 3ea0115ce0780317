"""The ladder or the type of a queue changes: old and new workers side by side, and one after the other."""

from collections import Counter
from dataclasses import replace

import pytest

from celery_rmq_delay.amqp.capabilities import capabilities
from celery_rmq_delay.app.inventory import applied
from celery_rmq_delay.app.state import state_of
from celery_rmq_delay.operations.parked import release
from celery_rmq_delay.operations.pending import pending
from celery_rmq_delay.operations.prune import prune
from tests.support.corpus import slow
from tests.support.waiting import SECONDS, wait_for
from tests.support.workers.lab import close_app
from tests.support.workers.project import make_app

#: In each of the three stages.
TASKS = 50


OTHER = {"classic": "quorum", "quorum": "classic"}


@pytest.mark.parametrize(
    ("queue_type", "change"),
    [
        ("quorum", "tiers"),
        slow("classic", "tiers"),
        slow(
            "classic", "type"
        ),  # not the other way round: Celery's global QoS for classic queues ends with a quorum queue
    ],
)
def test_workers_with_old_and_new_tiers_lose_and_double_nothing_and_old_tiers_are_pruned(make_lab, queue_type, change):
    lab = make_lab(queue_type, tiers=["300ms", "600ms", "900ms"])
    if change == "tiers":
        changed = replace(lab.config, rmq_delay={"tiers": ["200ms", "700ms", "800ms", "900ms"]})
    else:
        changed = replace(lab.config, queue_type=OTHER[queue_type])
    old = lab.worker()
    fates = {lab.task("fails").delay(number % 4).id: number % 4 for number in range(TASKS)}
    wait_for(lambda: lab.parked())

    new = lab.worker(config=changed)
    fates |= {lab.task("fails").delay(number % 4).id: number % 4 for number in range(TASKS)}
    old.restart()  # the old tiers once more, as in a rolling deployment
    fates |= {lab.task("fails").delay(number % 4).id: number % 4 for number in range(TASKS)}
    new.restart()
    once = {(task_id, attempt) for task_id, fate in fates.items() for attempt in range(fate + 1)}
    wait_for(lambda: {(line["id"], line["retries"]) for line in lab.attempts()} >= once, pause=0.5)
    wait_for(lambda: not any(lab.counts("shop", "shop.quarantine").values()))

    runs = Counter((line["id"], line["retries"]) for line in lab.attempts())
    assert set(runs) == once
    # A restart returns what a worker had prefetched; nothing else may run twice.
    assert sum(runs.values()) - len(once) <= 16
    assert lab.count("rmq_delay.exhausted") == 0

    app = make_app(changed)
    plan = app._rmq_delay.plan("shop", reason_routing=True)
    with app.connection_for_write() as connection:
        prune(connection, plan, {}, now=True)
    pruned, kept = lab.delay_queue(1, 300), state_of(app).delay_queue("shop", 1, plan.ladder.tiers_ms[0])
    assert lab.counts(pruned, kept) == {pruned: None, kept: 0}
    close_app(app)


def test_workers_start_after_their_queue_was_declared_again_as_the_other_type(make_lab, queue_type):
    lab = make_lab(queue_type, tiers=["1h"])
    worker = lab.worker()
    results = [lab.task("fails").delay(1) for _ in range(10)]
    wait_for(lambda: lab.parked() == len(results), "all of them parked")
    worker.stop()
    lab.delete("shop")

    changed = replace(lab.config, queue_type=OTHER[queue_type])
    app = make_app(changed)
    lab.worker(config=changed)
    results += [lab.task("fails").delay(1) for _ in range(10)]
    with app.connection_for_write() as connection:
        plan = state_of(app).plan("shop", reason_routing=capabilities(connection).reports_death_reason)
        new = plan.delay_queue(1, 3_600_000).name
        wait_for(lambda: lab.count(new) == 10, "the new ones parked in a tier of the new type")
        assert lab.parked() == 10, "the old ones are where they were"
        assert not pending(connection, plan, applied(connection, plan))
        assert len(release(connection, [plan], everything=True).released) == len(results)
    close_app(app)
    assert [result.get(timeout=SECONDS) for result in results] == [1] * len(results)
