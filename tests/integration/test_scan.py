"""Inspecting a queue keeps all its messages."""

import pytest

from celery_rmq_delay.amqp.apply import ready_counts
from celery_rmq_delay.amqp.capabilities import capabilities
from celery_rmq_delay.amqp.scan import scanning
from celery_rmq_delay.operations.parked import release
from tests.support.brokers.alarms import slow_disk
from tests.support.brokers.erlang import queue_process
from tests.support.brokers.lab_app import opened
from tests.support.waiting import wait_for

pytestmark = pytest.mark.brokers


@pytest.fixture
def holding(quorum_lab):
    """A lab on a broker that keeps a message if a ``basic.get`` finds it expired before the queue's timer does."""
    if not capabilities(quorum_lab.connection).holds_expired:
        pytest.skip("RabbitMQ 4.3 was not seen to do so")
    return quorum_lab


def expire(lab, broker, queue):
    """Let the messages of a quorum queue expire without its timer: set back all future times in its state."""
    broker.evaluate(
        f"{{Process, _}} = {queue_process(lab.connection.virtual_host, queue)}, "
        "Now = erlang:system_time(millisecond), "
        "sys:replace_state(Process, fun "
        "Back(Term) when is_integer(Term), Now < Term, Term < Now + 4000000 -> Now - 1; "
        "Back([Head | Tail]) -> [Back(Head) | Back(Tail)]; "
        "Back(Term) when is_tuple(Term) -> list_to_tuple(lists:map(Back, tuple_to_list(Term))); "
        "Back(Term) when is_map(Term) -> maps:map(fun(_, Value) -> Back(Value) end, Term); "
        "Back(Term) -> Term end), "
        "ok"
    )


def test_a_message_that_expires_while_its_queue_is_inspected_returns(holding, own_broker):
    _, plan = opened(holding, tiers=["1h"])
    ((_, _, delay_queue),) = plan.delay_queues([plan.ladder])
    holding.publish(delay_queue.name)
    expire(holding, own_broker, delay_queue.name)
    with scanning(holding.connection, delay_queue.name, is_delay_queue=True) as scan:
        assert not list(scan)
    holding.get(plan.queue, ack=True)


def test_a_release_frees_an_expired_message_that_another_client_left_behind(holding, own_broker):
    _, plan = opened(holding, tiers=["1h"])
    ((_, _, delay_queue),) = plan.delay_queues([plan.ladder])
    holding.publish(delay_queue.name)
    expire(holding, own_broker, delay_queue.name)
    assert holding.connect().channel().basic_get(delay_queue.name) is None
    assert ready_counts(holding.connection, [plan.queue, delay_queue.name]) == {plan.queue: 0, delay_queue.name: 0}
    release(holding.connection, [plan], everything=True)
    holding.get(plan.queue, ack=True)


def test_messages_that_were_inspected_are_back_when_the_inspection_ends_on_a_slow_disk(quorum_lab, own_broker):
    queue = quorum_lab.queue()
    quorum_lab.publish(queue)
    with scanning(quorum_lab.connection, queue) as scan:
        assert len(list(scan)) == 1
        slow_disk(own_broker)
    assert ready_counts(quorum_lab.connection, [queue]) == {queue: 1}


def test_messages_that_an_inspection_removed_stay_removed_on_a_slow_disk(quorum_lab, own_broker):
    queue = quorum_lab.queue()
    for _ in range(200):
        quorum_lab.publish(queue)
    with scanning(quorum_lab.connection, queue) as scan:
        messages = list(scan)
        slow_disk(own_broker)
        for message in messages:
            scan.remove(message)
        scan.synchronise()
    quorum_lab.publish(queue)
    assert wait_for(lambda: ready_counts(quorum_lab.connection, [queue])[queue], "the message that came last") == 1
