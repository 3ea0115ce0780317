"""State of queues that comes from the management API."""

from contextlib import suppress
from datetime import datetime, timedelta, timezone
from functools import partial

import pytest

from celery_rmq_delay.amqp.capabilities import capabilities
from celery_rmq_delay.amqp.objects import Objects
from celery_rmq_delay.app.state import state_of
from celery_rmq_delay.exceptions import PublishError
from celery_rmq_delay.ladders import Ladder
from celery_rmq_delay.management.client import Management
from celery_rmq_delay.operations import deletion
from celery_rmq_delay.operations.doctor import examine
from celery_rmq_delay.operations.prune import prune
from celery_rmq_delay.operations.status import QueueStatus, read_status
from celery_rmq_delay.topology.transition import apply_plan
from tests.support.brokers.lab import HOUR
from tests.support.brokers.lab_app import shop
from tests.support.commands import run
from tests.support.waiting import wait_for

pytestmark = pytest.mark.brokers


@pytest.mark.parametrize("queue_type", ["quorum"])
def test_messages_held_by_a_native_queue_are_counted_by_the_management_api_and_kept(managed, managed_lab):
    lab = managed_lab
    if not capabilities(lab.connection).delays_retries:
        pytest.skip("RabbitMQ before 4.3.1 has no delayed retry")
    app = shop(lab, retry="native", tiers=["1h"])
    queue = app.conf.task_default_queue
    app.amqp.queues[queue](lab.channel).declare()
    for _ in range(2):
        lab.publish(queue)
        lab.requeue(lab.get(queue))

    def look():
        with Management.of(lab.connection, managed.management_url) as management:
            (found,) = read_status(app, lab.connection).with_details(management.queues(), {}).native_retry
        return found if found.held else None

    found: QueueStatus = wait_for(look, "the statistics")
    assert (found.held, found.parked) == (2, 0)
    assert found.held_due is not None
    assert timedelta(minutes=50) < found.held_due - datetime.now(timezone.utc) <= timedelta(hours=1)

    run(app, "apply")
    kept = run(app, "delete-queue", "--management-url", managed.management_url, queue, code=1)
    assert "0 messages and 2 that a worker or the queue itself still holds" in kept.output


@pytest.mark.parametrize("queue_type", ["quorum"])
def test_a_delay_queue_that_keeps_a_retry_for_a_full_queue_is_not_pruned(managed, managed_lab):
    lab, full = managed_lab, {"x-max-length": 1, "x-overflow": "reject-publish"}
    old, new = lab.plan(Ladder((500,))), lab.plan(Ladder((HOUR,)))
    lab.applied(old, **full)
    lab.publish(old.queue, "parked")
    lab.reject(lab.get(old.queue))
    wait_for(lambda: lab.counts(old), "the parked message")
    for _ in range(3):  # a quorum queue takes some more than it should
        with suppress(PublishError):
            lab.publish(old.queue, "in its way")
    wait_for(lambda: not lab.counts(old), "the parked message to be due")
    apply_plan(lab.connection, new)
    name = old.delay_queue(1, 500).name

    def details():
        with Management.of(lab.connection, managed.management_url) as management:
            return management.queues()

    wait_for(lambda: details()[name].dead_letters_waiting, "the statistics")
    kept = prune(lab.connection, new, details(), now=True).kept
    assert kept == {old.ladder.id: f"Messages that were due wait for a target queue, in {name} (1)."}
    assert "only the management API reports" in prune(lab.connection, new, None, now=True).kept[old.ladder.id]


@pytest.mark.parametrize("queue_type", ["quorum"])
def test_due_calls_to_a_full_queue_are_reported(managed, managed_lab):
    lab, options = managed_lab, ("--management-url", str(managed.management_url))
    app = shop(lab, exact_unit=0.1, exact_queue_type="quorum", exact_levels=2)
    queue = app.conf.task_default_queue
    app.amqp.queues[queue].queue_arguments.update({"x-max-length": 1, "x-overflow": "reject-publish"})
    run(app, "apply")
    (levels,) = state_of(app).exact.topologies
    lab.forget(*(each.name for each in (*levels.frame().queues, *levels.arrival(queue).queues)))

    def shows_it():
        # Again and again: a quorum queue on a busy machine takes more than its limit.
        for _ in range(10):
            app.tasks["shop.charge"].apply_async(countdown=0.1)
        return f"{levels.due(queue)} holds back" in run(app, "status", *options).output

    wait_for(shows_it, "the statistics")
    found = {each.code: each for each in examine(app, management_url=managed.management_url)}

    assert (found["dead-letters-waiting"].subject, found["overflow"].severity) == (queue, "warning")
    assert f"If {queue} is full, drain it" in found["dead-letters-waiting"].fix


def test_a_queue_is_not_deleted_under_a_task_of_a_worker_that_stops(managed, managed_lab, monkeypatch):
    monkeypatch.setattr(deletion, "STATISTICS", 2.0)
    lab = managed_lab
    plan = lab.applied(lab.plan(Ladder((HOUR,))))
    lab.publish(plan.queue)
    running = lab.get(plan.queue)  # like a message of a worker that has cancelled its consumer

    def delete():
        with Management.of(lab.connection, managed.management_url) as management:
            look = partial(management.queue, plan.queue)
            return deletion.delete_origin(lab.connection, plan, Objects(), look)

    kept = delete()
    assert not kept.deleted
    assert kept.hidden or kept.consumers  # a quorum queue reports it
    lab.reject(running)
    wait_for(lambda: lab.counts(plan), "the message in its delay queue")
    assert wait_for(delete, "the queue to be deleted").deleted
