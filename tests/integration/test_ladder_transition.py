"""A ladder is changed while messages advance through it; the process that changes it may crash at any step."""

import itertools
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace

import amqp
import kombu
import pytest

from celery_rmq_delay import headers as h
from celery_rmq_delay.amqp.apply import ready_counts
from celery_rmq_delay.app.inventory import applied
from celery_rmq_delay.exceptions import TopologyError
from celery_rmq_delay.ladders import Ladder, QueueType
from celery_rmq_delay.names import return_key
from celery_rmq_delay.topology.applied import Adoption
from celery_rmq_delay.topology.common import undeliverable
from celery_rmq_delay.topology.transition import apply_plan, save_adoption
from tests.support.brokers.lab import HOUR, Lab
from tests.support.brokers.switching import (
    SOME,
    TASKS_A,
    TASKS_B,
    TASKS_C,
    A,
    B,
    C,
    Probe,
    crashed_apply,
    expected,
    lose_record,
    settled,
)
from tests.support.waiting import wait_for
from tests.support.workers.roles import Permissions, add_user

pytestmark = pytest.mark.brokers


@pytest.mark.parametrize(
    ("queue_type", "stride"),
    [
        ("quorum", SOME),
        pytest.param("quorum", 1, marks=pytest.mark.slow),
        pytest.param("classic", 1, marks=pytest.mark.slow),
    ],
)
def test_a_crash_between_any_two_steps_of_a_change_loses_and_doubles_nothing(lab, monkeypatch, stride):
    a, b, c = lab.plan(A, TASKS_A), lab.plan(B, TASKS_B), lab.plan(C, TASKS_C)
    lab.applied(b)  # so that every ladder routes messages from its tiers
    apply_plan(lab.connection, a)
    probe = Probe(lab, a, b, c)
    assert probe.every_message_arrives_once("before any change") == expected(a, TASKS_A)
    for step in itertools.count(1, stride):
        crashed = crashed_apply(lab, b, step, monkeypatch)
        probe.every_message_arrives_once(f"after a crash at step {step}")
        then = ((c, TASKS_C), (b, TASKS_B), (a, TASKS_A))[step % 3]
        apply_plan(lab.connection, then[0], quick=True)
        where = probe.every_message_arrives_once(f"after a crash at step {step} and a new apply")
        assert where == expected(*then), step
        found = settled(lab, a)
        assert (found.phase, found.current, found.following) == ("settled", then[0].ladder.id, None)
        apply_plan(lab.connection, a)
        if not crashed:
            break
    assert step > 20, "the steps of the change were not all tried"
    probe.nothing_came_twice()


def test_a_crash_during_the_repair_of_a_crash_loses_and_doubles_nothing(quorum_lab, monkeypatch):
    lab = quorum_lab
    a, b, c = lab.plan(A, TASKS_A), lab.plan(B, TASKS_B), lab.plan(C, TASKS_C)
    lab.applied(b)
    apply_plan(lab.connection, a)
    probe = Probe(lab, a, b, c)
    for first, second in [(6, 4), (8, 5), (9, 9), (12, 6), (14, 12), (20, 20)]:
        crashed_apply(lab, b, first, monkeypatch)
        crashed_apply(lab, c, second, monkeypatch)
        probe.every_message_arrives_once(f"after crashes at steps {first} and {second}")
        apply_plan(lab.connection, a, quick=True)
        assert probe.every_message_arrives_once("after an apply") == expected(a, TASKS_A)
    probe.nothing_came_twice()


def test_a_crash_while_the_brokers_version_changes_loses_nothing(lab, monkeypatch):
    if not lab.reports_death_reason:
        pytest.skip("this version does not set the reason of the last death")
    new = lab.plan(Ladder((HOUR,)))
    old = replace(new, reason_routing=False)
    lab.applied(new)
    sent = 0
    for goal, start in ((old, new), (new, old)):
        for step in itertools.count(1):
            crashed = crashed_apply(lab, goal, step, monkeypatch)
            for plan in (None, start):
                if plan is not None:
                    apply_plan(lab.connection, plan, quick=True)
                lab.publish(new.queue)
                lab.reject(lab.get(new.queue))
                sent += 1
                wait_for(
                    lambda sent=sent: lab.counts(new).get(new.delay_queue(1, HOUR).name) == sent, "the message parked"
                )
            lab.publish(new.queue, expiration="1")
            assert h.deaths(lab.get(new.exhausted, ack=True).headers)[0]["reason"] == "expired"
            if not crashed:
                break
        apply_plan(lab.connection, goal)
    assert lab.counts(new) == {new.delay_queue(1, HOUR).name: sent}


@pytest.mark.parametrize("stride", [SOME, pytest.param(1, marks=pytest.mark.slow)])
def test_a_crash_in_the_first_apply_is_repaired_by_the_next(rmq_broker, monkeypatch, stride):
    for step in itertools.count(1, stride):
        lab = Lab(rmq_broker.url, "classic")
        try:
            a, b = lab.plan(A, {"changes": TASKS_A["changes"]}), lab.plan(B, TASKS_B)
            lab.origin(a)
            crashed = crashed_apply(lab, a, step, monkeypatch)
            apply_plan(lab.connection, b, quick=True)
            assert Probe(lab, a, b).every_message_arrives_once(f"after a crash at step {step}") == expected(b, TASKS_B)
        finally:
            lab.close()
        if not crashed:
            break
    assert step > 10, "the steps of the first apply were not all tried"


ROUNDS = 4
MESSAGES = 400


class Rejecter(threading.Thread):
    """Rejects every message of a queue until it was rejected often enough; records finished messages."""

    def __init__(self, url, queue):
        super().__init__()
        self.url, self.queue, self.stopped = url, queue, threading.Event()
        self.finished: list[str] = []
        self.errors: list[BaseException] = []

    def run(self):
        try:
            with kombu.Connection(self.url) as connection:
                channel = connection.channel()
                channel.basic_qos(0, 50, False)
                channel.basic_consume(self.queue, callback=lambda message: self.handle(channel, message))
                while not self.stopped.is_set():
                    with suppress(TimeoutError):
                        connection.drain_events(timeout=0.1)
        except BaseException as error:  # noqa: BLE001 - for the main thread
            self.errors.append(error)

    def handle(self, channel, message):
        if h.rejections(message.headers, self.queue) < ROUNDS:
            channel.basic_reject(message.delivery_tag, requeue=False)
        else:
            self.finished.append(message.body)
            channel.basic_ack(message.delivery_tag)


@pytest.mark.slow
def test_ladders_change_under_messages_that_are_rejected_all_the_time(lab):
    """Two workers reject, another one changes the ladder back and forth: each message ends exactly once."""
    ladders = [
        Ladder((20, 40), repeat_last=True),
        Ladder((30,), repeat_last=True),
        Ladder((10, 50, 20), jitter=0.5, lanes=3, repeat_last=True),
    ]
    tasks = [{"own": Ladder((15,), repeat_last=True)}, {"own": None}, {"own": ladders[0]}]
    plans = [lab.plan(ladder, dict(own)) for ladder, own in zip(ladders, tasks, strict=True)]
    lab.applied(plans[0])
    workers = [Rejecter(lab.url, plans[0].queue) for _ in range(2)]
    for worker in workers:
        worker.start()
    try:
        switches = itertools.cycle([*plans[1:], plans[0]])
        made = 0
        for number in range(MESSAGES):
            headers = {h.LANE: number % 3, **({"task": "own"} if number % 2 else {})}
            lab.publish(plans[0].queue, str(number), headers=headers)
            if number % 25 == 0:
                made += apply_plan(lab.connection, next(switches))

        def all_finished():
            assert not any(worker.errors for worker in workers), [worker.errors for worker in workers]
            return sum(len(worker.finished) for worker in workers) >= MESSAGES

        while not all_finished():
            made += apply_plan(lab.connection, next(switches))
        wait_for(lambda: not lab.counts(*plans), "the end of all waits")
    finally:
        for worker in workers:
            worker.stopped.set()
        for worker in workers:
            worker.join()
    finished = sorted(int(number) for worker in workers for number in worker.finished)
    assert finished == list(range(MESSAGES))
    assert made >= 10
    assert lab.channel.queue_declare(plans[0].queue, passive=True).message_count == 0


def test_two_versions_of_an_app_apply_at_the_same_time_and_one_wins(lab):
    plans = [lab.plan(ladder, tasks) for ladder, tasks in ((A, TASKS_A), (B, TASKS_B), (C, TASKS_C))]
    lab.applied(plans[1])
    probe = Probe(lab, *plans)

    def apply_often(plan):
        with kombu.Connection(lab.url) as connection:
            for _ in range(5):
                apply_plan(connection, plan, quick=True)

    with ThreadPoolExecutor(len(plans)) as pool:
        list(pool.map(apply_often, plans))
    found = settled(lab, plans[0])
    winner = next(plan for plan in plans if plan.ladder.id == found.current)
    assert probe.every_message_arrives_once("after the race") == expected(winner, dict(winner.tasks))


def test_messages_of_the_old_ladder_come_back_and_go_on_in_the_new_one(lab):
    old, new = lab.plan(Ladder((60, 60, 60))), lab.plan(Ladder((10, 20)))
    lab.applied(old)
    lab.publish(old.queue)
    lab.reject(lab.get(old.queue))
    message = lab.get(old.queue)
    lab.reject(message)
    apply_plan(lab.connection, new)  # the message is in the old ladder's second tier, which the new one has too
    message = lab.get(old.queue)
    assert message.delivery_info["routing_key"] == return_key(old.queue, 2)
    lab.reject(message)
    assert lab.get(old.exhausted, ack=True).delivery_info["routing_key"] == return_key(old.queue, 2)


def test_a_shorter_ladder_takes_messages_from_tiers_it_does_not_have(lab):
    old, new = lab.plan(Ladder((10, 10, 60))), lab.plan(Ladder((10,), repeat_last=True))
    lab.applied(old)
    lab.publish(old.queue)
    for _ in range(3):
        lab.reject(lab.get(old.queue))
    apply_plan(lab.connection, new)
    message = lab.get(old.queue)
    assert message.delivery_info["routing_key"] == return_key(old.queue, 3)
    lab.reject(message)
    assert lab.get(old.queue).delivery_info["routing_key"] == return_key(old.queue, 1)


def test_an_apply_returns_whether_it_changed_the_ladder(lab):
    plan = lab.plan(A, TASKS_A)
    lab.origin(plan)
    assert apply_plan(lab.connection, plan)
    assert not apply_plan(lab.connection, plan)
    assert apply_plan(lab.connection, replace(plan, tasks=TASKS_B))
    assert apply_plan(lab.connection, lab.plan(B, TASKS_B))


def test_the_record_has_the_time_when_a_ladder_was_retired(lab):
    a, b = lab.plan(A), lab.plan(B)
    lab.applied(a)
    assert settled(lab, a).retired == {}
    apply_plan(lab.connection, b)
    assert set(settled(lab, b).retired) == {a.ladder.id}
    apply_plan(lab.connection, a)
    assert set(settled(lab, a).retired) == {b.ladder.id}


def test_another_exhausted_queue_gets_all_exhausted_messages_and_the_old_one_none(lab):
    old = lab.applied(lab.plan(A, TASKS_A))
    new = lab.plan(A, TASKS_A, exhausted=f"{old.exhausted}.new")
    apply_plan(lab.connection, new)
    names, queue = old.names, old.queue
    ends = [(names.ladder(queue, key), return_key(queue, len(ladder))) for key, ladder in old.ladders.items()]
    if lab.reports_death_reason:
        ends.append((names.other(queue), ""))
    ends.append((undeliverable(names), ""))
    for exchange, key in ends:
        lab.publish(key, exchange=exchange)

    for _ in ends:
        assert lab.get(new.exhausted, ack=True)
    assert lab.channel.basic_get(old.exhausted) is None


def assert_only_one_is_let_in(lab, in_force, *, refused):
    with pytest.raises(TopologyError, match=r"The record of the ladder of queue .* is gone"):
        apply_plan(lab.connection, refused)
    apply_plan(lab.connection, in_force, quick=True)
    lab.publish(in_force.queue)
    lab.reject(lab.get(in_force.queue))

    delays = [queue.name for _, _, queue in in_force.delay_queues((in_force.ladder, refused.ladder))]
    wait_for(lambda: sum(count or 0 for count in ready_counts(lab.connection, delays).values()) == 1)


OWN: dict[str, Ladder | None] = {"own": Ladder((15,))}


@pytest.mark.parametrize(
    ("tasks", "changes"),
    [
        ({}, {"ladder": B}),
        ({"own": B}, {"ladder": B}),
        (OWN, {"tasks": {"own": B}}),
        (OWN, {"tasks": {"own": None}}),
    ],
    ids=["another", "that of a task", "another one of a task", "none of a task"],
)
def test_a_lost_record_lets_no_second_ladder_in(lab, tasks, changes):
    a = lab.applied(lab.plan(A, tasks))
    lose_record(lab, a)
    assert_only_one_is_let_in(lab, a, refused=replace(a, **changes))


def test_a_lost_record_lets_no_ladder_in_that_was_in_force_before(lab):
    a, b = lab.applied(lab.plan(A)), lab.plan(B)
    apply_plan(lab.connection, b)
    lose_record(lab, b)
    assert_only_one_is_let_in(lab, b, refused=a)


def test_a_lost_record_lets_no_other_exhausted_queue_in(lab):
    a = lab.applied(lab.plan(A))
    lose_record(lab, a)
    assert_only_one_is_let_in(lab, a, refused=lab.plan(A, exhausted=f"{a.exhausted}.new"))


def test_a_crash_of_an_apply_without_a_record_doubles_nothing(lab, monkeypatch):
    a, b = lab.applied(lab.plan(A, TASKS_A)), lab.plan(B, TASKS_B)
    probe = Probe(lab, a, b)
    for step in itertools.count(1, 2):
        lose_record(lab, a)
        crashed = crashed_apply(lab, a, step, monkeypatch)
        with suppress(TopologyError):  # it is applied only where a record names the ladder to replace
            apply_plan(lab.connection, b)
            assert probe.every_message_arrives_once(f"after a crash at step {step}") == expected(b, TASKS_B)
        apply_plan(lab.connection, a)
        if not crashed:
            break
    probe.nothing_came_twice()


def test_without_a_record_an_adoption_is_noted_for_the_ladder_in_force_only(lab):
    a, b = lab.applied(lab.plan(A)), lab.plan(B)
    adoption = Adoption(in_force=False, generation=0, queue_type=a.queue_type)
    lose_record(lab, a)
    with pytest.raises(TopologyError, match=r"The record of the ladder of queue .* is gone"):
        save_adoption(lab.connection, b, adoption)

    assert save_adoption(lab.connection, a, adoption).generation == 1
    apply_plan(lab.connection, b)
    assert applied(lab.connection, b).adoption == replace(adoption, generation=1)


def test_a_record_that_is_lost_in_a_change_that_was_cut_off_lets_no_ladder_in(lab, monkeypatch):
    a, b = lab.applied(lab.plan(A)), lab.plan(B)
    assert crashed_apply(lab, b, 8, monkeypatch)
    lose_record(lab, a)

    for plan in (a, b):
        with pytest.raises(TopologyError, match=r"The record of the ladder of queue .* is gone"):
            apply_plan(lab.connection, plan)


def test_a_reset_leaves_nothing_bound_that_a_lost_record_knew(lab):
    b = lab.plan(B, TASKS_B)
    a = lab.applied(lab.plan(A, TASKS_A, exhausted=f"{b.exhausted}.old"))
    probe = Probe(lab, a, b)
    lose_record(lab, a)
    with pytest.raises(TopologyError, match=r"The record of the ladder of queue .* is gone"):
        apply_plan(lab.connection, b)

    assert apply_plan(lab.connection, b, reset=True)
    assert probe.every_message_arrives_once("after a reset") == expected(b, TASKS_B)
    probe.nothing_came_twice()
    shared = b.tasks["stays"]
    assert shared is not None
    lab.channel.queue_purge(b.exhausted)
    lab.channel.basic_publish(amqp.Message("ends"), b.names.ladder(b.queue, shared.id), return_key(b.queue, 1))
    wait_for(lambda: ready_counts(lab.connection, [a.exhausted, b.exhausted]) == {a.exhausted: 0, b.exhausted: 1})


def test_a_ladder_without_any_queue_is_replaced_without_being_asked(lab):
    a = lab.applied(lab.plan(A, TASKS_A))
    kind: QueueType = "classic" if a.queue_type == "quorum" else "quorum"
    b = lab.plan(replace(B, queue_type=kind), queue_type=kind)
    for queue in (*a.objects().queues, a.record_queue(), a.exhausted_queue()):
        lab.channel.queue_delete(queue.name)
    lab.channel.queue_delete(a.queue)
    lab.origin(b)
    consumer = lab.channel.basic_consume(b.queue)
    with pytest.raises(TopologyError, match=r"The record of the ladder of queue .* is gone"):
        apply_plan(lab.connection, b)
    lab.channel.basic_cancel(consumer)

    assert apply_plan(lab.connection, b)
    assert applied(lab.connection, b).current == b.ladder.id
    lab.publish(b.queue)
    lab.reject(lab.get(b.queue))
    wait_for(lambda: lab.counts(a, b) == {b.delay_queue(1, b.ladder.tiers_ms[0]).name: 1}, "one rejected message")


@pytest.mark.slow
def test_a_reset_that_is_cut_off_leaves_no_two_ladders(lab, monkeypatch):
    a, b = lab.applied(lab.plan(A)), lab.plan(B)
    for step in itertools.count(1):
        lose_record(lab, a)
        crashed = crashed_apply(lab, b, step, monkeypatch, reset=True)
        with suppress(TopologyError):
            apply_plan(lab.connection, b)
        apply_plan(lab.connection, b, reset=True)
        for count, exchange in enumerate((b.names.standby(b.queue), b.names.active(b.queue)), 2 * step - 1):
            lab.channel.basic_publish(amqp.Message("rejected"), exchange)
            wait_for(lambda count=count: sum(lab.counts(a, b).values()) == count, f"one more, after step {step}")
        apply_plan(lab.connection, a)
        if not crashed:
            break


def test_a_user_who_may_not_configure_a_ladder_gets_an_error_and_changes_nothing(lab, own_broker):
    a, b = lab.applied(lab.plan(A)), lab.plan(B)
    url = add_user(own_broker, lab.url, Permissions(r"^(?!.*\.ladder).*$", ".*", ".*"))
    with kombu.Connection(url) as connection, pytest.raises(TopologyError, match="run as a user who may"):
        apply_plan(connection, b)
    lose_record(lab, a)
    with kombu.Connection(url) as connection, pytest.raises(TopologyError, match="run as a user who may"):
        apply_plan(connection, b, reset=True)
    assert_only_one_is_let_in(lab, a, refused=b)


def test_a_ladder_that_was_forgotten_with_a_lost_record_comes_back_without_its_bindings(lab):
    a = lab.plan(A)
    new, old = a.exhausted, f"{a.exhausted}.old"
    lab.applied(replace(a, exhausted=old))
    b = lab.applied(lab.plan(B, exhausted=old))
    lose_record(lab, b)
    for each in (b, replace(b, exhausted=new), a):
        apply_plan(lab.connection, each)

    lab.channel.basic_publish(amqp.Message("ends"), a.names.ladder(a.queue, a.ladder.id), return_key(a.queue, len(A)))
    wait_for(lambda: ready_counts(lab.connection, [old, new]) == {old: 0, new: 1})


def test_a_lost_record_is_written_again_when_its_ladder_was_deleted(lab):
    a, b = lab.applied(lab.plan(A, {"own": Ladder((15,))})), lab.plan(B, {"own": None})
    lose_record(lab, a)
    for exchange in (a.names.active(a.queue), a.names.standby(a.queue), a.names.tasks(a.queue)):
        lab.channel.exchange_delete(exchange)

    apply_plan(lab.connection, b)
    lose_record(lab, b)
    with pytest.raises(TopologyError, match=r"The record of the ladder of queue .* is gone"):
        apply_plan(lab.connection, a)
    lab.publish(a.queue, headers={"task": "own"})
    lab.reject(lab.get(a.queue))

    first = b.delay_queue(1, B.tiers_ms[0]).name
    wait_for(lambda: ready_counts(lab.connection, [first])[first] == 1)
