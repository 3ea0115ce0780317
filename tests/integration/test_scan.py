"""A look through a queue takes nothing out of it, and holds nothing back."""

from __future__ import annotations

import time

import pytest

from celery_rmq_delay.scan import scanning
from celery_rmq_delay.topology.apply import ready_counts
from tests.support.brokers.lab import Lab
from tests.support.brokers.lab_app import opened
from tests.support.waiting import wait_for

pytestmark = pytest.mark.brokers


def test_parked_messages_that_come_due_under_a_look_return(quorum_lab: Lab) -> None:
    """RabbitMQ 3.10 and 4.0 do not dead-letter what a get finds expired before the queue's timer does.

    On an idle machine a look 0.5 ms before a message is due meets that moment in every third delay queue.
    """
    lab = quorum_lab
    _, plan = opened(lab, tiers=[f"{delay_ms}ms" for delay_ms in range(500, 800, 10)])
    due = dict[str, float]()
    for _, delay_ms, rung in plan.rung_queues([plan.ladder]):
        due[rung.name] = time.monotonic() + delay_ms / 1000
        lab.publish(rung.name)
    for name, moment in due.items():
        time.sleep(max(0.0, moment - 0.0005 - time.monotonic()))
        with scanning(lab.connection, name) as scan:
            list(scan)
    wait_for(lambda: ready_counts(lab.connection, [plan.queue]) == {plan.queue: len(due)}, "all of them")
