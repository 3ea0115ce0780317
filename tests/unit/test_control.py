"""Broadcasts about an adoption in a worker."""

from types import SimpleNamespace

import pytest

from celery_rmq_delay.app.state import state_of
from celery_rmq_delay.topology.applied import Adoption
from celery_rmq_delay.worker.bootstep import adoption_changed
from celery_rmq_delay.worker.queues import ConsumedQueues
from tests.support.apps import app_of


@pytest.fixture
def state():
    """The state of a worker that consumes the queue ``shop``, which has other arguments."""
    app = app_of()
    delay = state_of(app)
    app.amqp.queues.select(["shop"])
    delay.differing.add("shop")
    consumer = SimpleNamespace(app=app)
    consumer.rmq_delay = ConsumedQueues(consumer, delay)
    consumer.rmq_delay.settling.applied.add("shop")
    return SimpleNamespace(consumer=consumer)


def broadcast(state, generation, *, in_force, queue="shop"):
    adoption = Adoption(in_force, generation, "quorum", policy="rmq_delay.shop")
    return adoption_changed(state, queue, adoption.to_json())


def test_a_worker_rejects_after_an_adoption_and_forwards_after_its_undo(state):
    worker = state.consumer.rmq_delay.settling
    assert not worker.dead_letters("shop")
    answer = broadcast(state, 1, in_force=True)
    assert (answer["consumes"], answer["rejects"], answer["generation"]) == (True, True, 1)
    assert worker.dead_letters("shop")
    assert worker.delay.is_quorum("shop")
    assert broadcast(state, 2, in_force=False)["rejects"] is False
    assert worker.delay.is_quorum("shop")


def test_an_old_broadcast_does_not_undo_a_newer_record(state):
    broadcast(state, 3, in_force=False)
    answer = broadcast(state, 2, in_force=True)
    assert (answer["rejects"], answer["generation"]) == (False, 3)


def test_a_broadcast_of_another_version_changes_nothing(state):
    assert adoption_changed(state, "shop", {"of": "a later version"})["rejects"] is False


def test_a_worker_that_does_not_consume_the_queue_replies_so(state):
    assert broadcast(state, 1, in_force=True, queue="other")["consumes"] is False
    assert adoption_changed(SimpleNamespace(consumer=SimpleNamespace()), "shop", {})["consumes"] is False
