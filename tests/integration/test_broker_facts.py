"""Facts about RabbitMQ that the design depends on: a version that behaves differently fails here."""

import time

import amqp
import kombu
import pytest
from amqp.exceptions import PreconditionFailed

from celery_rmq_delay import headers as h
from celery_rmq_delay.amqp.apply import ready_counts
from celery_rmq_delay.amqp.capabilities import Capabilities
from celery_rmq_delay.amqp.route import Route
from celery_rmq_delay.ladders import Ladder
from celery_rmq_delay.retry.decision import was_interrupted
from celery_rmq_delay.testing import PrivateBroker
from celery_rmq_delay.topology.native_retry import NativeRetry
from tests.support.brokers import parking
from tests.support.brokers.clusters import await_all, move_leaders
from tests.support.brokers.erlang import queue_process
from tests.support.brokers.kinds import BOTH_TYPES
from tests.support.brokers.lab import Lab
from tests.support.brokers.policies import policy
from tests.support.servers.cluster import PrivateCluster
from tests.support.waiting import BUSY, wait_for

pytestmark = pytest.mark.brokers

LADDER = Ladder((5,), repeat_last=True)


@pytest.fixture
def plan(lab):
    return lab.applied(lab.plan(LADDER))


def interrupted(lab, message):
    return was_interrupted(
        message.headers,
        redelivered=message.delivery_info["redelivered"],
        quorum=lab.queue_type == "quorum",
        broker=Capabilities(lab.version),
    )


def lose_worker(lab, queue):
    """Take a message on a connection of its own and lose the connection; return the time just before."""
    connection = lab.connect()
    wait_for(lambda: connection.default_channel.basic_get(queue), f"a message in {queue}")
    lost = time.monotonic()
    connection.collect()
    return lost


def flagged_after_return(lab):
    if lab.queue_type == "quorum":
        return lab.version >= (4, 0, 0)
    return Capabilities(lab.version).flags_returned


@BOTH_TYPES
def test_messages_from_a_delay_queue_are_flagged_by_new_brokers_only(lab, plan):
    lab.publish(plan.queue)
    message = lab.get(plan.queue)
    assert not message.delivery_info["redelivered"]
    for _ in range(4):
        lab.reject(message)
        message = lab.get(plan.queue)
        assert message.delivery_info["redelivered"] == flagged_after_return(lab)
    lab.channel.basic_ack(message.delivery_tag)


@BOTH_TYPES
def test_messages_published_into_a_delay_queue_are_not_flagged_by_any_broker(lab, plan):
    """So the crash guard can still detect a crash after a copy is published there."""
    for _ in range(2):
        lab.publish(plan.delay_queue(1, 5).name)
        message = lab.get(plan.queue, ack=True)
        assert not message.delivery_info["redelivered"]
        assert not message.headers.get("x-delivery-count")


@BOTH_TYPES
def test_messages_of_a_lost_worker_are_flagged_by_every_broker(lab, plan):
    lab.publish(plan.queue)
    lose_worker(lab, plan.queue)
    message = lab.get(plan.queue)
    assert message.delivery_info["redelivered"]
    assert interrupted(lab, message)
    lab.channel.basic_ack(message.delivery_tag)


@BOTH_TYPES
def test_a_crash_after_a_copy_in_a_delay_queue_is_seen_by_every_broker(lab, plan):
    lab.publish(plan.delay_queue(1, 5).name)
    assert lab.get(plan.queue).delivery_info["redelivered"] is False
    lab.reopen()
    message = lab.get(plan.queue)
    assert interrupted(lab, message)
    lab.channel.basic_ack(message.delivery_tag)


@BOTH_TYPES
@pytest.mark.parametrize("rounds", [1, 3])
def test_retries_are_no_interruptions_and_a_crash_after_retries_is_one(lab, plan, rounds):
    """The delivery count shows it on quorum queues of 4.x, elsewhere the flag does."""
    if lab.queue_type == "classic" and Capabilities(lab.version).flags_returned:
        pytest.skip("classic queues of this version flag what was rejected: the worker publishes copies instead")
    lab.publish(plan.queue)
    for done in range(rounds):
        message = lab.get(plan.queue)
        assert h.rejections(message.headers, plan.queue) == done
        assert not interrupted(lab, message)
        lab.reject(message)
    message = lab.get(plan.queue)
    assert not interrupted(lab, message)
    lab.reopen()
    message = lab.get(plan.queue)
    if lab.queue_type == "quorum" and (4, 0, 0) <= lab.version < (4, 1, 0) and rounds == 1:
        # 4.0 restarts the count: one rejection and one interruption look like one rejection. The next one is visible.
        assert not interrupted(lab, message)
        lab.reopen()
        message = lab.get(plan.queue)
    assert interrupted(lab, message)
    lab.channel.basic_ack(message.delivery_tag)


def test_the_delivery_count_of_quorum_queues_counts_rejections_until_a_crash(quorum_lab):
    lab = quorum_lab
    if lab.version < (4, 0, 0):
        pytest.skip("before 4.0 the count restarts with each return")
    plan = lab.applied(lab.plan(LADDER))
    lab.publish(plan.queue)
    for rejections in range(4):
        message = lab.get(plan.queue)
        assert h.whole_number(message.headers.get("x-delivery-count")) == rejections
        lab.reject(message)
    lab.get(plan.queue)
    lab.reopen()
    message = lab.get(plan.queue)
    # 4.0 restarts with the interruption, 4.3 goes on: never the number of rejections.
    count = h.whole_number(message.headers.get("x-delivery-count"))
    assert count == (5 if lab.version >= (4, 1, 0) else 1)
    lab.channel.basic_ack(message.delivery_tag)


def test_a_crash_before_the_first_rejection_stays_visible_until_the_next_one_only(quorum_lab):
    """After it the copy in the quarantine queue starts with a clean history, so nothing is stored here."""
    lab = quorum_lab
    plan = lab.applied(lab.plan(LADDER))
    lab.publish(plan.queue)
    lab.channel.basic_reject(lab.get(plan.queue).delivery_tag, requeue=True)
    message = lab.get(plan.queue)
    assert interrupted(lab, message)
    copy = h.forwarded(message.headers, retries=0, exchange="", routing_key=plan.queue, more={h.CRASHES: 1})
    lab.channel.basic_ack(message.delivery_tag)
    lab.publish(plan.queue, headers=copy)
    message = lab.get(plan.queue)
    assert not interrupted(lab, message)
    lab.channel.basic_ack(message.delivery_tag)


@BOTH_TYPES
def test_the_history_of_a_published_message_counts_on_old_brokers_only(lab, plan):
    """So the package strips it from every copy."""
    forged = [{"queue": plan.queue, "reason": "rejected", "count": 7, "exchange": "", "routing-keys": ["k"]}]
    lab.publish(plan.queue, headers={"x-death": forged})
    lab.reject(lab.get(plan.queue))
    message = lab.get(plan.queue, ack=True)
    assert h.rejections(message.headers, plan.queue) == (8 if lab.version < (4, 0, 0) else 1)


@BOTH_TYPES
def test_the_reason_of_the_last_death_is_in_the_headers_since_3_13(lab, plan):
    lab.publish(plan.queue)
    lab.reject(lab.get(plan.queue))
    message = lab.get(plan.queue, ack=True)
    assert ("x-last-death-reason" in message.headers) == lab.reports_death_reason
    assert message.headers["x-first-death-reason"] == "rejected"
    assert message.headers["x-first-death-queue"] == plan.queue


def test_a_cycle_without_a_rejection_is_dropped(classic_lab):
    """Therefore only a rejection may advance a message."""
    lab = classic_lab
    second = f"{lab.names.prefix}-second"
    first = lab.queue(**{"x-message-ttl": 5, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": second})
    lab.queue(second, **{"x-message-ttl": 5, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": first})
    lab.publish(first)
    later = lab.queue()
    lab.publish(lab.queue(**{"x-message-ttl": 200, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": later}))
    lab.get(later, ack=True)  # enough for twenty rounds
    assert ready_counts(lab.connection, [first, second]) == {first: 0, second: 0}


def test_quorum_queues_let_several_consumers_be_exclusive(quorum_lab):
    """Therefore the lock of the record is a single active consumer; if this test fails, the lock may be simpler."""
    lab = quorum_lab
    queue = lab.queue()
    lab.channel.basic_consume(queue, exclusive=True, callback=print)
    other = lab.connect().channel()
    other.basic_consume(queue, exclusive=True, callback=print)
    assert other.is_open


@BOTH_TYPES
def test_a_queue_cannot_be_given_a_dead_letter_exchange_later(lab):
    queue = lab.queue()
    with pytest.raises(PreconditionFailed):
        lab.connection.channel().queue_declare(
            queue,
            durable=True,
            auto_delete=False,
            arguments={"x-queue-type": lab.queue_type, "x-dead-letter-exchange": "later"},
        )


# -- delayed retry -----------------------------------------------------------------------------------------------------

#: 100, 200, 250, 250 ms ... where the delay grows; and delays that no test waits for.
MIN, MAX = 100, 250
NEVER = 600_000


def holding(lab, kind, longest=MAX, shortest=MIN):
    arguments = {"x-delayed-retry-type": kind, "x-delayed-retry-min": shortest, "x-delayed-retry-max": longest}
    return lab.queue(**arguments, **{"x-delivery-limit": -1})


def brokers_counts(message):
    headers = message.headers or {}
    return h.whole_number(headers.get("x-acquired-count")), h.whole_number(headers.get("x-delivery-count"))


def end_delivery(lab, queue, how):
    """Take a message and let its delivery end; return the time just before, from which the broker counts the delay."""
    if how == "lost":
        return lose_worker(lab, queue)
    message, ended = lab.get(queue), time.monotonic()
    if how == "closed":
        lab.reopen()
    else:
        lab.requeue(message, how)
    return ended


@pytest.mark.parametrize("kind", ["returned", "failed", "all"])
@pytest.mark.parametrize(
    ("how", "counted"), [("returned", (1, 0)), ("failed", (1, 1)), ("lost", (1, 1)), ("closed", (1, 1))]
)
def test_a_nack_is_returned_and_a_reject_or_a_lost_worker_has_failed(native_retry_lab, kind, how, counted):
    """So only crashes raise the delivery count where retries are returned; where they failed, crashes are invisible."""
    lab = native_retry_lab
    held = kind == "all" or kind == ("returned" if how == "returned" else "failed")
    if not held:
        queue = holding(lab, kind, NEVER, NEVER)
        lab.publish(queue)
        end_delivery(lab, queue, how)
        lab.get(queue, ack=True)
    queue = holding(lab, kind)
    lab.publish(queue)
    for done in range(1, 4):
        ended = end_delivery(lab, queue, how)
        message = lab.get(queue)
        waited = time.monotonic() - ended
        assert message.delivery_info["redelivered"]
        assert brokers_counts(message) == (done * counted[0] + done - 1, done * counted[1])
        delay = min(MIN * max(1, brokers_counts(message)[1]), MAX) / 1000 if held else 0
        assert waited >= delay - 0.01
        lab.requeue(message, "returned")  # acquired once more, for the next round


def test_prefetched_messages_of_a_lost_worker_count_like_started_ones(native_retry_lab):
    lab = native_retry_lab
    queue = holding(lab, "returned")
    for body in ("ran", "waited"):
        lab.publish(queue, body)
    connection = lab.connect()
    got: list[amqp.Message] = []
    connection.default_channel.basic_consume(queue, callback=got.append)
    while len(got) < 2:
        connection.drain_events(timeout=BUSY)
    connection.collect()
    assert [brokers_counts(lab.get(queue, ack=True)) for _ in got] == [(1, 1), (1, 1)]


@pytest.mark.parametrize("kind", ["returned", "failed"])
def test_messages_held_by_a_queue_are_in_no_count_of_amqp_but_can_be_purged(native_retry_lab, kind):
    lab = native_retry_lab
    queue = holding(lab, kind, longest=60_000, shortest=60_000)
    for _ in range(3):
        lab.publish(queue)
        lab.requeue(lab.get(queue), kind)
    assert ready_counts(lab.connection, [queue]) == {queue: 0}
    assert wait_for(lambda: lab.channel.queue_purge(queue)) == 3


@pytest.mark.slow
def test_a_restart_of_the_broker_keeps_held_messages_and_their_delays(rmq_installation):
    with PrivateBroker(rmq_installation.server, rmq_installation.root) as broker:
        if not Capabilities(broker.version).delays_retries:
            pytest.skip("RabbitMQ before 4.3.1 has no delayed retry")
        lab = Lab(broker.url, "quorum")
        queue = holding(lab, "returned", longest=8000, shortest=8000)
        lab.publish(queue, "held")
        requeued = end_delivery(lab, queue, "returned")
        lab.publish(queue, "unanswered")
        lab.get(queue)
        lab.connection.collect()
        broker.restart()
        lab = Lab(broker.url, "quorum")
        found = {}
        for _ in range(2):
            message = lab.get(queue, ack=True)
            found[message.body] = brokers_counts(message)
        assert found == {"held": (1, 0), "unanswered": (1, 1)}
        assert 8 <= time.monotonic() - requeued < 8 + BUSY
        lab.close()


def test_a_rejection_into_a_ladder_leaves_the_counts_readable(native_retry_lab):
    """The delivery count goes on; the acquired count restarts with the first requeue after it."""
    lab = native_retry_lab
    native = NativeRetry(Ladder((20,)))
    plan = lab.applied(lab.plan(Ladder((20,), repeat_last=True)), **native.arguments())
    lab.publish(plan.queue)
    lab.requeue(lab.get(plan.queue))
    message = lab.get(plan.queue)
    assert native.requeue_count(message.headers) == 1
    lab.reject(message)
    message = lab.get(plan.queue)
    assert (native.requeue_count(message.headers), h.rejections(message.headers, plan.queue)) == (1, 1)
    assert not native.was_interrupted(message.headers, 0)
    lab.requeue(message)
    message = lab.get(plan.queue)
    assert not native.was_interrupted(message.headers, 0)
    lab.reopen()
    message = lab.get(plan.queue)
    assert native.was_interrupted(message.headers, 0)
    lab.channel.basic_ack(message.delivery_tag)


def test_without_delayed_retry_the_two_ways_to_requeue_count_alike_before_4_3(quorum_lab):
    lab = quorum_lab
    queue = lab.queue()
    lab.publish(queue)
    for kind in ("returned", "failed"):
        lab.requeue(lab.get(queue), kind)
    message = lab.get(queue, ack=True)
    assert brokers_counts(message) == ((2, 1) if Capabilities(lab.version).delays_retries else (0, 2))


def test_delayed_retry_cannot_be_changed_after_the_declaration(quorum_lab):
    """Since 4.3 the arguments are compared; before, they are accepted and ignored."""
    lab = quorum_lab
    native = {**NativeRetry(Ladder((50,))).arguments(), "x-queue-type": "quorum"}
    without = {name: value for name, value in native.items() if "delayed-retry" not in name}
    for first, second in ((native, without), (without, native)):
        queue = lab.queue(**first)
        channel = lab.connection.channel()
        if Capabilities(lab.version).delays_retries:
            with pytest.raises(PreconditionFailed, match="x-delayed-retry-"):
                channel.queue_declare(queue, durable=True, auto_delete=False, arguments=second)
        else:
            channel.queue_declare(queue, durable=True, auto_delete=False, arguments=second)


@pytest.mark.parametrize("argument", ["x-delivery-limit", "x-delayed-retry-type"])
def test_the_type_of_a_queue_is_compared_before_its_delayed_retry(native_retry_lab, argument):
    """So a refusal that names one of these shows that the type is right."""
    lab = native_retry_lab
    asked = {"x-queue-type": "quorum", **NativeRetry(Ladder((50,))).arguments()}
    without = {name: value for name, value in asked.items() if name != argument}
    for kind, named in (("quorum", argument), ("classic", "x-queue-type")):
        exists = lab.queue(**(without if kind == "quorum" else {"x-queue-type": "classic"}))
        with pytest.raises(PreconditionFailed, match=f"'{named}'"):
            lab.connection.channel().queue_declare(exists, durable=True, auto_delete=False, arguments=asked)


def test_a_policy_gives_a_queue_delayed_retry(native_retry_lab, own_broker):
    lab = native_retry_lab
    queue = lab.queue()
    definition = {"delayed-retry-type": "returned", "delayed-retry-min": 150, "delayed-retry-max": 150}
    with policy(own_broker, queue, f"^{queue}$", definition, kind="quorum_queues"):
        lab.publish(queue)
        requeued = end_delivery(lab, queue, "returned")
        lab.get(queue, ack=True)
        assert time.monotonic() - requeued >= 0.14


@pytest.mark.slow
def test_a_killed_broker_with_mnesia_forgets_a_queue_whose_declaration_was_still_in_memory(rmq_installation):
    """Confirmed messages of the queue are lost, too: a classic queue of `hold`, declared by its first publisher.

    The test delays the process that writes commits; on a busy machine it is sometimes late by itself.
    """
    with PrivateBroker(rmq_installation.server, rmq_installation.root) as broker:
        mnesia = broker.evaluate("is_pid(whereis(mnesia_recover))") == "true"
        lab = Lab(broker.url, "classic")
        lab.publish(lab.queue("written"))
        parking.metadata_to_disk(broker)
        if mnesia:
            broker.evaluate("sys:suspend(mnesia_recover)")
        lab.publish(lab.queue("in memory"))
        if mnesia:
            broker.evaluate("sys:resume(mnesia_recover)")
        broker.kill()
        lab.connection.collect()
        broker.start()
        with kombu.Connection(broker.url) as connection:
            counts = ready_counts(connection, ["written", "in memory"])
        assert counts == {"written": 1, "in memory": None if mnesia else 1}


@pytest.mark.slow
def test_a_clean_stop_loses_dead_letters_that_the_target_of_a_classic_queue_has_not_taken(rmq_installation):
    """At-least-once dead-lettering of a quorum queue sends them again.

    The test stops the target queue's process for them; a busy queue has messages that it has not taken yet by itself.
    """
    with PrivateBroker(rmq_installation.server, rmq_installation.root) as broker:
        parking.hasten(broker)
        with kombu.Connection(broker.url) as connection:
            for kind in ("classic", "quorum"):
                send_to_a_stopped_process(broker, connection, kind)
        broker.restart()
        targets = ["after-classic", "after-quorum"]
        with kombu.Connection(broker.url) as connection:
            wait_for(lambda: ready_counts(connection, targets)["after-quorum"], "the message of the quorum queue")
            assert ready_counts(connection, [*targets, "delay-classic"]) == {
                "after-classic": 0,
                "after-quorum": 1,
                "delay-classic": 0,
            }


def send_to_a_stopped_process(broker, connection, kind):
    """Let a message expire in a delay queue of this type while the process of its target queue takes none."""
    target = f"after-{kind}"
    declared = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": target, "x-message-ttl": 2_000}
    if kind == "quorum":
        declared |= {"x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish"}
    parking.declare_queue(connection, target, "classic")
    parking.declare_queue(connection, f"delay-{kind}", kind, **declared)
    process = queue_process("/", target)
    broker.evaluate(f"sys:suspend({process})")
    assert parking.publish_all(connection, [(1, Route("", f"delay-{kind}"))]) == ({1}, set())
    size = f"element(2, process_info({process}, message_queue_len))"
    wait_for(lambda: int(broker.evaluate(size)), "the dead letter")


@pytest.mark.slow
def test_a_quorum_queue_keeps_what_a_cancelled_consumer_on_a_lost_node_had_before_4_3(rmq_installation):
    """The message stays unacknowledged after the node is back, until the queue has another leader."""
    declared = {"x-queue-type": "quorum", "x-queue-leader-locator": "client-local"}
    with PrivateCluster(3, rmq_installation.server, rmq_installation.root) as cluster:
        leader, lost, _ = cluster.nodes
        with kombu.Connection(leader.url) as connection:
            kombu.Queue("q", queue_arguments=declared, channel=connection.default_channel).declare()
            connection.default_channel.basic_publish(amqp.Message("body"), routing_key="q")
            other = kombu.Connection(lost.url)
            taken: list[amqp.Message] = []
            tag = other.default_channel.basic_consume("q", callback=taken.append)
            while not taken:
                other.drain_events(timeout=BUSY)
            other.default_channel.basic_cancel(tag)
            lost.kill()
            other.collect()
            lost.start()
            await_all(cluster)
            if cluster.version < (4, 3):
                time.sleep(5.0)  # there is no event for a message that does not come
                assert ready_counts(connection, ["q"]) == {"q": 0}
                move_leaders(leader)
            wait_for(lambda: ready_counts(connection, ["q"]) == {"q": 1})
