"""A process that hangs for longer than RabbitMQ's consumer time-out, while it changes a ladder or moves messages."""

import itertools
import select
import threading
import time
from contextlib import closing, suppress

import kombu
import pytest
from amqp.exceptions import RecoverableConnectionError

from celery_rmq_delay import before_requeue
from celery_rmq_delay import headers as h
from celery_rmq_delay.amqp.apply import declare_queue, ready_counts
from celery_rmq_delay.amqp.capabilities import Capabilities, capabilities
from celery_rmq_delay.amqp.copies import copy_of
from celery_rmq_delay.amqp.record import locked_record
from celery_rmq_delay.amqp.scan import Scan, scanning
from celery_rmq_delay.exceptions import LockLostError
from celery_rmq_delay.ladders import Ladder
from celery_rmq_delay.operations.exhausted import Selection, requeue
from celery_rmq_delay.settings.parser import parse_settings
from celery_rmq_delay.topology.transition import apply_plan
from tests.support.brokers.lab import HOUR, Lab
from tests.support.brokers.limits import impatient_broker
from tests.support.brokers.switching import TASKS_A, TASKS_B, TASKS_C, A, B, C, Probe, expected, interrupted_at, settled
from tests.support.corpus import slow
from tests.support.receiving import receiving
from tests.support.waiting import SECONDS, wait_for

pytestmark = pytest.mark.brokers

#: Seconds.
TIME_OUT = 1


@pytest.fixture(scope="module")
def impatient(rmq_installation):
    with impatient_broker(rmq_installation, TIME_OUT) as broker:
        yield broker


@pytest.fixture
def lab(impatient, queue_type):
    with closing(Lab(impatient.url, queue_type)) as lab:
        yield lab


def timed_out(broker):
    """Return how many time-outs the broker has logged."""
    return broker.log_path.read_text().count("has timed out")


class Other(threading.Thread):
    def __init__(self, lab, plan):
        super().__init__(daemon=True)
        self.lab, self.plan, self.is_done = lab, plan, False
        self.start()

    def run(self):
        while not self.is_done:
            # On a busy machine it may hold the lock for longer than the time-out, too.
            with kombu.Connection(self.lab.url) as connection, suppress(LockLostError):
                apply_plan(connection, self.plan, 60)
                self.is_done = True


@pytest.mark.parametrize(("queue_type", "stride"), [("quorum", 7), slow("quorum", 1)])
def test_a_change_that_hangs_at_any_step_leaves_one_ladder_in_force(lab, impatient, monkeypatch, stride):
    # As before RabbitMQ 4.3, and as where a cluster is divided: the lock can be lost.
    monkeypatch.setattr(Capabilities, "cancels_at_time_out", False)
    a, b, c = lab.plan(A, TASKS_A), lab.plan(B, TASKS_B), lab.plan(C, TASKS_C)
    lab.applied(b)
    probe = Probe(lab, a, b, c)
    others: list[Other] = []

    def hang(_channel):
        others.append(other := Other(lab, c))
        before = timed_out(impatient)
        wait_for(lambda: other.is_done or timed_out(impatient) > before, "the time-out")

    lost = 0
    for step in itertools.count(1, stride):
        apply_plan(lab.connection, a)
        with kombu.Connection(lab.url) as hanging, interrupted_at(step, hang, monkeypatch) as taken:
            try:
                apply_plan(hanging, b)
            except LockLostError:
                lost += 1
        if len(taken) < step:
            break
        wait_for(lambda: others[-1].is_done, "the other process")
        where = probe.every_message_arrives_once(f"after a hang at step {step}, {taken[step - 1]}")
        routes = {plan.ladder.id: expected(plan, tasks) for plan, tasks in ((b, TASKS_B), (c, TASKS_C))}
        assert where == routes[str(settled(lab, a).current)], taken[step - 1]
    assert step > 20, "the steps of the change were not all tried"
    assert lost, "the lock was never lost"
    probe.nothing_came_twice()


@pytest.mark.parametrize("queue_type", ["quorum"])
def test_no_time_out_takes_a_lock_from_a_process_where_the_broker_would_go_on_to_obey_it(lab):
    if not capabilities(lab.connection).cancels_at_time_out:
        pytest.skip("RabbitMQ before 4.3 closes the channel")
    plan = lab.applied(lab.plan(Ladder((HOUR,))))
    for _ in range(2):
        with locked_record(lab.connection, plan.record_queue(), 5) as (_, record):
            time.sleep(3 * TIME_OUT)
            record.check()
        # Again with a record that becomes a quorum queue while its lock is held.
        lab.channel.queue_delete(plan.record_queue().name)
        declare_queue(lab.connection, plan.of_other_type.record_queue())


@pytest.fixture
def times_out(lab):
    """A function that waits until the broker's time-out has reached a connection which waits for nothing else."""
    if lab.queue_type == "classic" and capabilities(lab.connection).cancels_at_time_out:
        pytest.skip("RabbitMQ 4.3 has no time-outs for classic queues")

    def wait(hanging):
        (readable, _, _) = select.select([hanging.connection.sock], [], [], SECONDS)
        assert readable, "the broker has not sent anything"

    return wait


@pytest.mark.parametrize("is_delay_queue", [False, True])
def test_a_process_that_hangs_moves_and_removes_no_message_that_was_taken_back(lab, times_out, is_delay_queue):
    queue, target = lab.queue(), lab.queue()
    lab.publish(queue)

    def move(scan, message):
        scan.move(message, copy_of(message, {}), "", target)

    for act in (move, Scan.remove):
        with (
            kombu.Connection(lab.url) as hanging,
            pytest.raises(RecoverableConnectionError),
            scanning(hanging, queue, is_delay_queue=is_delay_queue) as scan,
        ):
            for message in scan:
                times_out(hanging)
                act(scan, message)
        assert scan.seen == 1
        wait_for(lambda: ready_counts(lab.connection, [queue, target]) == {queue: 1, target: 0}, "the return")


def test_a_requeue_whose_receiver_takes_too_long_names_the_time_out_and_what_was_done(lab, times_out):
    settings, target = parse_settings({"prefix": lab.names.prefix}), lab.queue()
    lab.applied(lab.plan(Ladder((HOUR,))))
    for task_id in "abc":
        lab.publish(settings.exhausted_queue, headers={"id": task_id, "task": "shop.charge", h.QUEUE: target})

    def hangs_at_the_second(task_id, **_):
        if task_id == "b":
            times_out(hanging)

    with kombu.Connection(lab.url) as hanging, receiving(before_requeue, hangs_at_the_second):
        outcome = requeue(hanging, settings, Selection(everything=True))
    assert [each.task_id for each in outcome.done] == ["a"]
    ((found, problem),) = [(failure.found.task_id, failure.problem) for failure in outcome.failed]
    assert found == "b"
    assert "acknowledgement" in problem
    assert "--limit" in problem
    queues = {target: 1, settings.exhausted_queue: 2}
    wait_for(lambda: ready_counts(lab.connection, list(queues)) == queues, "the return")
