"""The objects of exact delays are declared when a delay is first used, by publishers and by workers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import datetime, timedelta, timezone

import pytest

from celery_rmq_delay.amqp.apply import drift
from celery_rmq_delay.app.state import state_of
from celery_rmq_delay.operations.exact_delays import exact_pending
from tests.support.commands import run
from tests.support.waiting import wait_for
from tests.support.workers.lab import UNIT, Lab
from tests.support.workers.other_producer import publish, task_message

pytestmark = pytest.mark.brokers


def declared_levels(lab: Lab) -> int:
    """Return how many queues and exchanges of the levels exist."""
    exact = state_of(lab.app).exact
    with lab.app.connection_for_read() as connection:
        frame = exact.topologies[0].frame()
        own = len(frame.exchanges) + len(frame.queues) - 1  # without the exchange for undeliverable messages
        return own - len([each for each in drift(connection, frame) if "undeliverable" not in each.name])


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_a_worker_declares_exact_delays_only_when_a_task_needs_one(make_lab: Callable[..., Lab], pool: str) -> None:
    lab = make_lab("classic", exact_unit=UNIT)
    worker = lab.worker(pool, 2)
    assert lab.task("facts").apply_async(("no delay",)).get(timeout=60)
    assert declared_levels(lab) == 0
    with lab.app.connection_for_read() as connection:
        assert not exact_pending(connection, state_of(lab.app).exact)

    due = datetime.now(timezone.utc) + timedelta(seconds=4)
    sent = [task_message("facts", [number], eta=due.isoformat()) for number in range(20)]
    for message in sent:  # by a producer without this package, so that the worker moves them
        publish(lab, message)
    wait_for(lambda: len(lab.attempts()) >= 21)

    runs = Counter(attempt["id"] for attempt in lab.attempts())
    assert {runs[message.headers["id"]] for message in sent} == {1}
    assert all(attempt["at"] >= due.timestamp() for attempt in lab.attempts()[1:])
    assert 0 < declared_levels(lab) < 20
    with lab.app.connection_for_read() as connection:
        assert not exact_pending(connection, state_of(lab.app).exact)
    assert "missing" not in worker.logs()


def test_a_retry_with_a_countdown_is_the_first_use_of_a_queue(classic_lab: Lab) -> None:
    classic_lab.worker("prefork", 2)

    task_id = classic_lab.task("explicit").apply_async((1,)).id
    wait_for(lambda: len(classic_lab.attempts(task_id)) == 2)

    assert declared_levels(classic_lab) > 0


def test_apply_declares_all_exact_delays_if_it_is_asked_to(classic_lab: Lab) -> None:
    assert run(classic_lab.app, "apply").exit_code == 0
    assert declared_levels(classic_lab) == 0
    assert run(classic_lab.app, "plan", "--no-management").exit_code == 0

    assert run(classic_lab.app, "apply", "--exact-delays").exit_code == 0

    assert declared_levels(classic_lab) == 28 + 29
    assert run(classic_lab.app, "plan", "--no-management").exit_code == 0


def test_a_started_worker_restores_deleted_levels_below_the_highest_one(classic_lab: Lab) -> None:
    classic_lab.task("facts").apply_async(("x",), countdown=600)
    before = declared_levels(classic_lab)
    level = state_of(classic_lab.app).exact.topologies[0].holding()[4]
    with classic_lab.app.connection_for_write() as connection:
        connection.default_channel.queue_delete(level)
        connection.default_channel.exchange_delete(level)
    assert declared_levels(classic_lab) == before - 2

    classic_lab.worker("prefork", 1)

    assert declared_levels(classic_lab) == before
