"""Inspecting a queue leaves all of its messages on their way."""

from __future__ import annotations

import time

import pytest

from celery_rmq_delay.scan import scanning
from celery_rmq_delay.topology.apply import ready_counts
from tests.support.brokers.lab import Lab
from tests.support.brokers.lab_app import opened
from tests.support.waiting import wait_for

pytestmark = pytest.mark.brokers


def test_messages_that_expire_while_their_queue_is_inspected_return(quorum_lab: Lab) -> None:
    """RabbitMQ 3.10 and 4.0 do not dead-letter what a ``basic.get`` finds expired before the queue's timer does.

    On an idle machine, an inspection that starts 0.5 ms before the message expires does so in every third queue.
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
