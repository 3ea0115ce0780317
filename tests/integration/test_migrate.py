"""Waiting messages that move from one kind of delay to another."""

import time
from contextlib import suppress

import pytest

from celery_rmq_delay import headers as h
from celery_rmq_delay.amqp.apply import consumer_count
from celery_rmq_delay.app.inventory import plans
from celery_rmq_delay.exceptions import RmqDelayError
from celery_rmq_delay.operations.celery_native_delay import find_leftovers, level, level_names
from celery_rmq_delay.operations.migration.mover import WINDOW
from celery_rmq_delay.operations.migration.service import Request, migrate
from celery_rmq_delay.operations.migration.targets import MOST_INSPECTIONS
from celery_rmq_delay.topology.exact.alternatives import Hold
from celery_rmq_delay.topology.exact.base import Options
from celery_rmq_delay.topology.exact.registry import make
from celery_rmq_delay.topology.transition import apply_plan
from tests.support.brokers.delays import ahead, assert_on_time
from tests.support.waiting import wait_for


@pytest.fixture
def movers(make_movers, queue_type):
    return make_movers(queue_type)


@pytest.fixture
def quorum(make_movers):
    return make_movers()


def levels(movers, **changes):
    names, kind = movers.delay.settings.names, movers.delay.exact.queue_type
    return make("levels", Options(**{"names": names, "exhausted": "x", "queue_type": kind, **changes})).holding()


def adds_up(report):
    assert report.adds_up, report
    assert not report.came_due, report


def from_levels(movers, task_id):
    """Take a message out of the levels of the app, wherever it waits there."""
    channel = movers.connection.channel()
    for queue in levels(movers):
        while movers.count(queue):
            if (message := channel.basic_get(queue)) and message.headers["id"] == task_id:
                return message
    raise AssertionError(f"{task_id} is in no level")


@pytest.mark.brokers
@pytest.mark.parametrize("kind", ["quorum", pytest.param("classic", marks=pytest.mark.slow)])
def test_celerys_own_levels_move_with_their_due_times_to_the_second(quorum, kind):
    quorum.declare_celery_native(kind)
    due = quorum.call_celery_native(2500.4, 5000, 70_000) | quorum.call_celery_native(9000.5, queue="mails")
    quorum.holds(4, *level_names())
    assert quorum.migrate("celery-native", dry_run=True).moved == {"orders": 3, "mails": 1}
    quorum.holds(4, *level_names())
    began = time.time()
    report = quorum.migrate("celery-native")
    ended = time.time()
    assert (report.before, report.after, report.taken) == (4, 0, 4)
    assert report.moved == {"orders": 3, "mails": 1}
    assert report.arrived == 0
    adds_up(report)
    assert not report.needs_a_person
    quorum.holds(4, *levels(quorum))
    again = quorum.migrate("celery-native")
    assert (again.before, again.after, again.taken, again.left, again.needs_a_person) == (0, 0, 0, {}, False)

    message = from_levels(quorum, next(iter(due)))
    latest = due[message.headers["id"]]
    assert message.headers[h.DUE] / 1000 <= latest, "the call was over by then"
    assert_on_time(ahead(message), message.headers[h.DUE] / 1000, (began, ended))
    assert message.headers["eta"] is None
    assert (message.headers[h.EXCHANGE], message.headers[h.ROUTING_KEY]) == ("shop", "orders.key")
    assert message.headers["retries"] == 0
    assert not [death for death in h.deaths(message.headers) if "celery" in death["queue"]]


def test_due_messages_go_straight_to_their_queue_and_a_key_of_two_queues_to_both(quorum):
    quorum.declare_celery_native()
    headers = {"id": "a", "task": "shop.charge", "eta": "2020-01-01T00:00:00+00:00"}
    quorum.put(f"{'0.' * 14}1.{'0.' * 13}orders.key", application_headers=headers, exchange="celery_delayed_27")
    report = quorum.migrate("celery-native")
    assert report.delivered == {"orders": 1}
    assert quorum.lab.get("orders", ack=True).headers["id"] == "a"

    quorum.app.amqp.queues["mails"].routing_key = "orders.key"
    quorum.call_celery_native(5000)
    report = quorum.migrate("celery-native")
    assert (report.taken, report.copies, report.moved) == (1, 2, {"orders": 1, "mails": 1})
    adds_up(report)


def test_a_message_that_one_of_two_queues_refuses_is_poisoned_and_the_other_gets_it_once(make_movers):
    movers = make_movers("classic")
    movers.declare_celery_native()
    full = {"x-max-length": 0, "x-overflow": "reject-publish"}
    movers.lab.channel.queue_delete("mails")
    movers.lab.channel.queue_declare("mails", durable=True, auto_delete=False, arguments=full)
    movers.app.amqp.queues["mails"].routing_key = "orders.key"
    headers = {"id": "a", "task": "shop.charge", "eta": "2020-01-01T00:00:00+00:00"}
    movers.put(f"{'0.' * 14}1.{'0.' * 13}orders.key", application_headers=headers, exchange="celery_delayed_27")

    report = movers.migrate("celery-native")

    ((reason, count),) = report.poisoned.items()
    assert (report.taken, report.delivered, count, report.left) == (1, {"orders": 1}, 1, {})
    assert reason.startswith("for queue 'mails' refused: ")
    adds_up(report)
    assert movers.migrate("celery-native").taken == 0
    assert movers.count("orders") == 1
    (kept,) = movers.take("p.migrate.poison", 1)
    assert kept.headers["id"] == "a"


def test_a_limit_and_a_filter_leave_the_others_in_their_order(quorum):
    quorum.declare_celery_native()
    ids = list(quorum.call_celery_native(*[5000] * 50))
    mails = list(quorum.call_celery_native(*[5000] * 50, queue="mails"))
    name = level(12)
    quorum.holds(100, name)
    report = quorum.migrate("celery-native", only=("mails",))
    assert (report.moved, report.after, sum(report.left.values())) == ({"mails": 50}, 50, 50)
    assert not report.needs_a_person
    assert [message.headers["id"] for message in quorum.take(name, 20)] == ids[:20]
    report = quorum.migrate("celery-native", limit=7)
    assert (report.moved, report.after) == ({"orders": 7}, 23)
    adds_up(report)
    assert not report.needs_a_person
    quorum.holds(23, name)
    assert len(mails) == 50


@pytest.mark.brokers
def test_inspections_end_before_the_broker_takes_a_message_out_of_its_level(quorum):
    quorum.declare_celery_native()
    quorum.call_celery_native(5000)
    quorum.holds(1, level(12))
    looks = 0
    with suppress(RmqDelayError):
        for looks in range(1, 25):  # noqa: B007
            quorum.migrate("celery-native", dry_run=True)
    assert looks == (24 if quorum.lab.version < (4, 0, 0) else MOST_INSPECTIONS + 1)
    quorum.holds(1, level(12))
    if quorum.lab.version >= (4, 0, 0):
        with pytest.raises(RmqDelayError, match="Move it now"):
            quorum.migrate("celery-native", only=("mails",))
    assert quorum.migrate("celery-native").moved == {"orders": 1}


@pytest.mark.brokers
def test_a_message_left_too_often_goes_to_the_poison_queue(quorum):
    quorum.declare_celery_native()
    quorum.call_celery_native(5000, queue="mails")
    quorum.lab.channel.queue_delete("mails")
    poisoned = [sum(quorum.migrate("celery-native").poisoned.values()) for _ in range(MOST_INSPECTIONS + 2)]
    assert sum(poisoned) == (0 if quorum.lab.version < (4, 0, 0) else 1)


HOSTILE = {
    "no headers": ({}, b"\x80\x04binary \x00\xff", {}),
    "headers of another kind": ({h.DUE: "soon", h.TO: 5}, b"", {}),
    "too long a queue": ({h.DUE: 2**60, h.TO: "q" * 256}, b"{", {}),
    "a flag for a time": ({h.DUE: True, h.TO: "orders"}, b"[]", {"content_type": "application/json"}),
    "copies for others": ({h.DUE: -1, "CC": ["orders"], h.TO: "orders"}, "häh".encode("utf-16"), {"priority": 3}),
}


def test_unreadable_messages_go_to_the_poison_queue_byte_for_byte(movers):
    movers.call(5000)
    queue = levels(movers)[12]
    movers.holds(1, queue)
    for headers, body, properties in HOSTILE.values():
        movers.put(queue, body, application_headers=headers, **properties)
    movers.holds(1 + len(HOSTILE), queue)
    movers.lab.channel.queue_purge("orders")
    report = movers.migrate("levels", "hold")
    assert sum(report.poisoned.values()) == len(HOSTILE)
    assert report.moved == {"orders": 1}
    assert report.needs_a_person
    adds_up(report)
    channel = movers.connection.channel()
    channel.auto_decode = False
    movers.holds(len(HOSTILE), "p.migrate.poison")
    for name, (_, body, properties) in HOSTILE.items():
        message = channel.message_to_python(channel.basic_get("p.migrate.poison", no_ack=True))
        assert bytes(message.body or b"") == body, name
        assert message.properties.get("priority") == properties.get("priority"), name
        assert message.headers[h.QUEUE] == queue
        assert message.headers[h.REASON]
        assert message.headers[h.ROUTING_KEY] == queue
    assert movers.count("orders") == 0


def test_a_message_for_a_queue_that_is_gone_stays(movers):
    movers.call(5000)
    movers.call(5000, queue="mails")
    movers.holds(2, *levels(movers))
    movers.lab.channel.queue_delete("mails")
    report = movers.migrate("levels", "hold")
    assert report.moved == {"orders": 1}
    assert report.left == {"queue 'mails' does not exist": 1}
    assert report.needs_a_person
    adds_up(report)


def test_a_delay_too_long_for_the_target_stays(movers):
    movers.call(5000, 10_000)
    movers.holds(2, *levels(movers))
    report = movers.migrate("levels", "ladder")
    assert report.moved == {"orders": 1}
    ((reason, count),) = report.left.items()
    assert ("longer than 2h" in reason, count) == (True, 1)
    movers.holds(1, *levels(movers))
    movers.holds(1, movers.delay_queue(2, "2h"))


def test_another_unit_and_another_prefix_are_other_sources(movers):
    movers.call(5000, 600)
    movers.again(exact_unit="2s")
    report = movers.migrate("levels", unit_ms=1000)
    adds_up(report)
    assert report.moved == {"orders": 2}
    movers.holds(2, *levels(movers, unit_ms=2000))
    movers.again(prefix="other", exact_unit="2s")
    assert movers.migrate("levels", prefix="p").moved == {"orders": 2}
    movers.holds(2, *levels(movers, unit_ms=2000))


def test_a_source_that_is_no_source_for_its_target_is_refused(quorum):
    for source, to, queues in (("levels", "levels", ()), ("hold", "hold", ("p.hold.5s.orders",))):
        with pytest.raises(RmqDelayError, match="the same queues"):
            quorum.migrate(source, to, source_queues=queues)
    with pytest.raises(RmqDelayError, match="add 'loop' to exact_delays"):  # no worker would read it
        quorum.migrate("levels", "loop")
    with pytest.raises(RmqDelayError, match="are delivered when they are due"):
        quorum.migrate("plugin", "levels")


def test_messages_of_hold_are_migrated_with_named_queues(movers):
    movers.again(exact_delays="hold")
    called = time.time()
    ids = movers.call(1200, 5000)
    hold = Hold(Options(movers.delay.settings.names, "x"))
    names = tuple(hold.route(delay, "orders").routing_key for delay in (1_200_000, 5_000_000))
    movers.holds(2, *names)
    began = time.time()
    report = movers.migrate("hold", "levels", source_queues=names)
    ended = time.time()
    adds_up(report)
    assert report.moved == {"orders": 2}
    movers.holds(2, *levels(movers))
    message = from_levels(movers, ids[0])
    assert called + 1200 <= message.headers[h.DUE] / 1000 <= began + 1200
    assert_on_time(ahead(message), message.headers[h.DUE] / 1000, (began, ended))


def test_messages_of_a_loop_are_migrated(movers):
    movers.again(exact_delays="loop")
    ids = movers.call(600, 5000)
    report = movers.migrate("loop", "levels")
    adds_up(report)
    assert report.moved == {"orders": 2}
    movers.holds(2, *levels(movers))
    assert from_levels(movers, ids[0]).headers[h.TO] == "orders"


def test_a_failed_task_keeps_its_attempts(movers):
    for plan in plans(movers.connection, movers.delay):
        apply_plan(movers.connection, plan)
    parked = time.time()
    movers.park("a", retries=1)
    movers.holds(1, movers.delay_queue(1, "1h"))
    began = time.time()
    report = movers.migrate("ladder", "levels")
    ended = time.time()
    adds_up(report)
    assert report.moved == {"orders": 1}
    movers.holds(1, *levels(movers))
    message = from_levels(movers, "a")
    due = message.headers[h.DUE] / 1000
    assert parked + 3600 <= due <= began + 1 + 3600, "the broker has the times of deaths in whole seconds"
    assert_on_time(ahead(message), due, (began, ended))
    assert (message.headers["retries"], message.headers[h.RETRIES]) == (2, 1)
    assert message.body == "body of a"
    assert h.FIRST_FAILED in message.headers


def test_retired_tiers_move_to_the_ladder_in_force(movers):
    for tiers in (["3h", "5h"], ["1h", "4h"]):
        movers.again(tiers=tiers)
        for plan in plans(movers.connection, movers.delay):
            apply_plan(movers.connection, plan)
        movers.park(tiers[0])
    movers.holds(1, movers.delay_queue(1, "3h"))
    movers.holds(1, movers.delay_queue(1, "1h"))
    report = movers.migrate("ladder", "ladder")
    adds_up(report)
    assert (report.before, report.moved) == (1, {"orders": 1})
    movers.holds(1, movers.delay_queue(2, "4h"))
    movers.holds(1, movers.delay_queue(1, "1h"))


def test_messages_published_during_a_migration_are_reported(quorum):
    quorum.declare_celery_native()
    quorum.call_celery_native(5000)
    begun: list[int] = []

    def begin(count):
        begun.append(count)
        quorum.call_celery_native(6000)
        return bool

    report = migrate(quorum.delay, quorum.connection, Request("celery-native"), begun=begin)
    assert (begun, report.arrived, report.taken, report.after) == ([1], 1, 2, 0)
    adds_up(report)


def test_a_stop_finishes_messages_in_progress(quorum):
    quorum.declare_celery_native()
    quorum.call_celery_native(*[5000] * 100)
    seen: list[int] = []

    def begin(_count):
        return seen.append

    report = migrate(
        quorum.delay, quorum.connection, Request("celery-native"), begun=begin, stopped=lambda: len(seen) > 40
    )
    assert report.interrupted
    assert report.needs_a_person
    adds_up(report)
    assert 40 < report.taken < 80
    assert quorum.migrate("celery-native").taken == 100 - report.taken
    quorum.holds(100, *levels(quorum))


class Cut(Exception):
    """Ends the process here."""


def test_a_run_that_is_cut_off_loses_nothing_and_the_next_one_goes_on(quorum):
    quorum.declare_celery_native()
    ids = list(quorum.call_celery_native(*[5000] * 100))
    quorum.holds(100, *level_names())
    connection = quorum.lab.connect()
    moved: list[int] = []

    def begin(_count):
        def progress(count):
            moved.append(count)
            if len(moved) == 40:
                connection.collect()
                raise Cut

        return progress

    with pytest.raises(Cut):
        migrate(quorum.delay, connection, Request("celery-native"), begun=begin)
    wait_for(lambda: consumer_count(quorum.connection, level(12)) == 0, "the end of its consumer")
    # Its unacked messages come back, and the last of its acks may be lost with the connection.
    wait_for(lambda: 100 - len(moved) <= quorum.count(*level_names()) <= 100 - len(moved) + WINDOW, "the rest")
    report = quorum.migrate("celery-native")
    assert report.after == 0
    found = quorum.take_all(*levels(quorum))
    assert {message.headers["id"] for message in found} == set(ids)
    assert len(found) <= 100 + WINDOW


@pytest.mark.brokers
def test_the_empty_levels_are_removed_once_no_message_is_in_them(make_movers):
    movers = make_movers(exact_for="all")
    movers.declare_celery_native()
    movers.call_celery_native(5000)
    movers.call_celery_native(5000, queue="mails")
    movers.holds(2, *level_names())
    movers.lab.channel.queue_delete("mails")
    report = movers.migrate("celery-native", remove=True, use_management=False)
    assert (report.moved, report.removed, report.after) == ({"orders": 1}, [], 1)
    assert report.needs_a_person

    movers.lab.channel.queue_purge(level(12))
    report = movers.migrate("celery-native", remove=True, use_management=False)
    assert len(report.removed) == 28 + 29
    assert find_leftovers(movers.connection) is None
    assert movers.migrate("celery-native", remove=True, use_management=False).removed == []
    movers.put("orders.key", b"still bound", exchange="shop")
    assert movers.lab.get("orders", ack=True).body == b"still bound"


def test_nothing_is_removed_while_the_app_uses_it(quorum):
    quorum.declare_celery_native()
    with pytest.raises(RmqDelayError, match="exact_for to 'all'"):
        quorum.migrate("celery-native", remove=True, use_management=False)
    assert find_leftovers(quorum.connection) is not None
