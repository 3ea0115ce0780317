"""What the state of queues takes from the management API."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest

from celery_rmq_delay.broker import capabilities
from celery_rmq_delay.management import Management
from celery_rmq_delay.status import QueueStatus, read_status
from celery_rmq_delay.testing import PrivateBroker
from celery_rmq_delay.testing.ports import free_port
from tests.support.brokers.lab import Lab
from tests.support.brokers.lab_app import shop
from tests.support.commands import run
from tests.support.waiting import wait_for

pytestmark = pytest.mark.brokers


@pytest.mark.parametrize("queue_type", ["quorum"])
def test_what_a_native_queue_holds_is_counted_by_the_management_api_and_not_deleted(
    managed: PrivateBroker, managed_lab: Lab
) -> None:
    lab = managed_lab
    if not capabilities(lab.connection).delays_retries:
        pytest.skip("RabbitMQ before 4.3.1 has no delayed retry")
    app = shop(lab, retry="native", tiers=["1h"])
    queue = app.conf.task_default_queue
    app.amqp.queues[queue](lab.channel).declare()
    for _ in range(2):
        lab.publish(queue)
        lab.give_back(lab.get(queue))

    def look() -> QueueStatus | None:
        with Management.of(lab.connection, managed.management_url) as management:
            (found,) = read_status(app, lab.connection).with_held(management.queues()).native
        return found if found.held else None

    found: QueueStatus = wait_for(look, "the statistics")
    assert (found.held, found.parked) == (2, 0)
    assert found.held_due is not None
    assert timedelta(minutes=50) < found.held_due - datetime.now(timezone.utc) <= timedelta(hours=1)

    kept = run(app, "delete-queue", "--management-url", managed.management_url, queue, code=1)
    assert "kept. It has 0 messages, 2 delayed retries" in kept.output
    unseen = run(app, "delete-queue", "--management-url", f"http://127.0.0.1:{free_port()}", queue, code=1)
    assert "Nothing is deleted: a quorum queue may hold retries that no client sees" in unseen.output
