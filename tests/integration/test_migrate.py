"""Waiting messages that move from one way of delaying to another."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from celery_rmq_delay import headers as h
from celery_rmq_delay.config import QueueType
from celery_rmq_delay.exceptions import RmqDelayError
from celery_rmq_delay.inventory import plans
from celery_rmq_delay.migration.mover import MOST_LOOKS
from celery_rmq_delay.migration.service import Request, migrate
from celery_rmq_delay.native_leftovers import level, level_names, look
from celery_rmq_delay.topology.exact import Options, make
from celery_rmq_delay.topology.hold import Hold
from celery_rmq_delay.topology.switch import apply_plan
from tests.waiting import BUSY

from .movers import Movers, new_movers


@pytest.fixture
def movers(rmq_vhost: str, queue_type: QueueType) -> Iterator[Movers]:
    yield from new_movers(rmq_vhost, queue_type)


@pytest.fixture
def quorum(rmq_vhost: str) -> Iterator[Movers]:
    yield from new_movers(rmq_vhost, "quorum")


def levels(movers: Movers, **changes: Any) -> tuple[str, ...]:
    names, kind = movers.delay.settings.names, movers.delay.exact.queue_type
    return make("levels", Options(**{"names": names, "exhausted": "x", "queue_type": kind, **changes})).holding()


def adds_up(report: Any) -> None:
    assert report.adds_up, report
    assert not report.came_due, report


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_celerys_own_levels_move_with_their_due_times_to_the_second(quorum: Movers, kind: QueueType) -> None:
    quorum.declare_native(kind)
    due = quorum.native(8.4, 5000, 70_000) | quorum.native(9000.5, queue="mails")
    quorum.holds(4, *level_names())
    report = quorum.migrate("celery-native")
    assert (report.before, report.after, report.taken) == (4, 0, 4)
    assert report.moved == {"orders": 3, "mails": 1}
    assert report.arrived == 0
    adds_up(report)
    assert not report.needs_a_person
    quorum.holds(3, *levels(quorum))
    message = quorum.lab.get("orders", ack=True)
    told = due[message.headers["id"]]
    assert 0 <= told - message.headers[h.DUE] / 1000 < 1, "told is when the call was over"
    assert 0 <= time.time() - message.headers[h.DUE] / 1000 < 10
    assert message.headers["eta"] is None
    assert (message.headers[h.EXCHANGE], message.headers[h.ROUTING_KEY]) == ("shop", "orders.key")
    assert message.headers["retries"] == 0
    assert not [death for death in h.deaths(message.headers) if "celery" in death["queue"]]


def test_a_second_run_finds_nothing(quorum: Movers) -> None:
    quorum.declare_native()
    quorum.native(5000)
    quorum.migrate("celery-native")
    report = quorum.migrate("celery-native")
    assert (report.before, report.after, report.taken, report.left) == (0, 0, 0, {})
    assert not report.needs_a_person


def test_what_is_due_goes_straight_to_its_queue(quorum: Movers) -> None:
    quorum.declare_native()
    headers = {"id": "a", "task": "shop.charge", "eta": "2020-01-01T00:00:00+00:00"}
    quorum.put(f"{'0.' * 14}1.{'0.' * 13}orders.key", application_headers=headers, exchange="celery_delayed_27")
    report = quorum.migrate("celery-native")
    assert report.delivered == {"orders": 1}
    assert quorum.lab.get("orders", ack=True).headers["id"] == "a"


def test_a_key_of_two_queues_goes_to_both(quorum: Movers) -> None:
    quorum.declare_native()
    quorum.app.amqp.queues["mails"].routing_key = "orders.key"
    quorum.native(5000)
    report = quorum.migrate("celery-native")
    assert (report.taken, report.copies, report.moved) == (1, 2, {"orders": 1, "mails": 1})
    adds_up(report)


def test_a_look_moves_nothing(quorum: Movers) -> None:
    quorum.declare_native()
    quorum.native(5000, 6000)
    quorum.holds(2, *level_names())
    report = quorum.migrate("celery-native", dry_run=True)
    assert (report.before, report.after, report.moved) == (2, 2, {"orders": 2})
    assert not report.needs_a_person
    quorum.holds(2, *level_names())


def test_a_limit_and_a_filter_leave_the_others_in_their_order(quorum: Movers) -> None:
    quorum.declare_native()
    ids = list(quorum.native(*[5000] * 50))
    mails = list(quorum.native(*[5000] * 50, queue="mails"))
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


def test_looks_end_before_the_broker_takes_a_message_out_of_its_level(quorum: Movers) -> None:
    quorum.declare_native()
    quorum.native(5000)
    quorum.holds(1, level(12))
    looks = 0
    with suppress(RmqDelayError):
        for looks in range(1, 25):  # noqa: B007
            quorum.migrate("celery-native", dry_run=True)
    assert looks == (24 if quorum.lab.version < (4, 0, 0) else MOST_LOOKS + 1)
    quorum.holds(1, level(12))
    if quorum.lab.version >= (4, 0, 0):
        with pytest.raises(RmqDelayError, match="Move it now"):
            quorum.migrate("celery-native", only=("mails",))
    assert quorum.migrate("celery-native").moved == {"orders": 1}


def test_what_was_left_too_often_goes_to_the_poison_queue(quorum: Movers) -> None:
    quorum.declare_native()
    quorum.native(5000, queue="mails")
    quorum.lab.channel.queue_delete("mails")
    poisoned = [sum(quorum.migrate("celery-native").poisoned.values()) for _ in range(MOST_LOOKS + 2)]
    assert sum(poisoned) == (0 if quorum.lab.version < (4, 0, 0) else 1)


HOSTILE = {
    "no headers": ({}, b"\x80\x04binary \x00\xff", {}),
    "headers of another kind": ({h.DUE: "soon", h.TO: 5}, b"", {}),
    "too long a queue": ({h.DUE: 2**60, h.TO: "q" * 256}, b"{", {}),
    "a flag for a time": ({h.DUE: True, h.TO: "orders"}, b"[]", {"content_type": "application/json"}),
    "copies for others": ({h.DUE: -1, "CC": ["orders"], h.TO: "orders"}, "häh".encode("utf-16"), {"priority": 3}),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_is_not_understood_goes_to_the_poison_queue_byte_for_byte(movers: Movers, name: str) -> None:
    headers, body, properties = HOSTILE[name]
    movers.call(5000)
    queue = levels(movers)[12]
    movers.holds(1, queue)
    movers.put(queue, body, application_headers=headers, **properties)
    movers.holds(2, queue)
    movers.lab.channel.queue_purge("orders")
    report = movers.migrate("levels", "hold")
    assert sum(report.poisoned.values()) == 1
    assert report.moved == {"orders": 1}
    assert report.needs_a_person
    adds_up(report)
    channel = movers.connection.channel()
    channel.auto_decode = False
    movers.holds(1, "p.migrate.poison")
    raw = channel.basic_get("p.migrate.poison", no_ack=True)
    message = channel.message_to_python(raw)
    assert bytes(message.body or b"") == body
    assert message.properties.items() >= {key: value for key, value in properties.items() if key == "priority"}.items()
    assert message.headers[h.QUEUE] == queue
    assert message.headers[h.REASON]
    assert message.headers[h.ROUTING_KEY] == queue
    assert movers.count("orders") == 0


def test_a_message_for_a_queue_that_is_gone_stays(movers: Movers) -> None:
    movers.call(5000)
    movers.call(5000, queue="mails")
    movers.holds(2, *levels(movers))
    movers.lab.channel.queue_delete("mails")
    report = movers.migrate("levels", "hold")
    assert report.moved == {"orders": 1}
    assert report.left == {"queue 'mails' does not exist": 1}
    assert report.needs_a_person
    adds_up(report)


def test_a_delay_too_long_for_the_target_stays(movers: Movers) -> None:
    movers.call(5000, 10_000)
    movers.holds(2, *levels(movers))
    report = movers.migrate("levels", "ladder")
    assert report.moved == {"orders": 1}
    ((reason, count),) = report.left.items()
    assert ("longer than 2h" in reason, count) == (True, 1)
    movers.holds(1, *levels(movers))
    movers.holds(1, movers.rung(2, "2h"))


def test_another_unit_is_another_source(movers: Movers) -> None:
    ids = movers.call(5000, 6)
    movers.again(exact_unit="2s")
    report = movers.migrate("levels", unit_ms=1000)
    adds_up(report)
    assert report.moved == {"orders": 2}
    assert movers.lab.get("orders", ack=True).headers["id"] == ids[1]
    movers.holds(1, *levels(movers, unit_ms=2000))


def test_another_prefix_is_another_source(movers: Movers) -> None:
    movers.call(5000)
    movers.again(prefix="other")
    assert movers.migrate("levels", prefix="p").moved == {"orders": 1}
    movers.holds(1, *levels(movers))


@pytest.mark.parametrize(("source", "to"), [("levels", "levels"), ("hold", "hold")])
def test_a_source_that_is_the_target_is_refused(movers: Movers, source: str, to: str) -> None:
    queues = ("p.hold.5s.orders",) if source == "hold" else ()
    with pytest.raises(RmqDelayError, match="the same queues"):
        movers.migrate(source, to, source_queues=queues)


def test_a_loop_that_no_worker_looks_into_is_refused(movers: Movers) -> None:
    with pytest.raises(RmqDelayError, match="put 'loop' into exact_delays"):
        movers.migrate("levels", "loop")


def test_messages_of_the_plugin_cannot_be_taken(movers: Movers) -> None:
    with pytest.raises(RmqDelayError, match="arrive by themselves"):
        movers.migrate("plugin", "levels")


def test_hold_moves_with_named_queues(movers: Movers) -> None:
    movers.again(exact_delays="hold")
    ids = movers.call(2, 5000)
    hold = Hold(Options(movers.delay.settings.names, "x"))
    names = tuple(hold.route(delay, "orders").routing_key for delay in (2000, 5_000_000))
    movers.holds(2, *names)
    report = movers.migrate("hold", "levels", source_queues=names)
    adds_up(report)
    assert report.moved == {"orders": 2}
    message = movers.lab.get("orders", ack=True)
    assert message.headers["id"] == ids[0]
    assert -0.1 < time.time() - message.headers[h.DUE] / 1000 < 1.5
    movers.holds(1, *levels(movers))


def test_a_loop_moves(movers: Movers) -> None:
    movers.again(exact_delays="loop")
    ids = movers.call(3, 5000)
    report = movers.migrate("loop", "levels")
    adds_up(report)
    assert report.moved == {"orders": 2}
    assert movers.lab.get("orders", ack=True).headers["id"] == ids[0]


def test_a_failed_task_keeps_its_attempts(movers: Movers) -> None:
    movers.again(tiers=["4s", "2h"])
    for plan in plans(movers.connection, movers.delay):
        apply_plan(movers.connection, plan)
    movers.park("a", retries=1)
    began = time.time()
    movers.holds(1, movers.rung(1, "4s"))
    report = movers.migrate("ladder", "levels")
    adds_up(report)
    assert report.moved == {"orders": 1}
    message = movers.lab.get("orders", ack=True)
    assert 3.5 < time.time() - began < 4 + BUSY
    assert (message.headers["retries"], message.headers[h.RETRIES]) == (2, 1)
    assert message.body == "body of a"
    assert h.FIRST_FAILED in message.headers


def test_retired_rungs_move_to_the_ladder_in_force(movers: Movers) -> None:
    for tiers in (["3h", "5h"], ["1h", "4h"]):
        movers.again(tiers=tiers)
        for plan in plans(movers.connection, movers.delay):
            apply_plan(movers.connection, plan)
        movers.park(tiers[0])
    movers.holds(1, movers.rung(1, "3h"))
    movers.holds(1, movers.rung(1, "1h"))
    report = movers.migrate("ladder", "ladder")
    adds_up(report)
    assert (report.before, report.moved) == (1, {"orders": 1})
    movers.holds(1, movers.rung(2, "4h"))
    movers.holds(1, movers.rung(1, "1h"))


def test_what_is_published_meanwhile_is_told(quorum: Movers) -> None:
    quorum.declare_native()
    quorum.native(5000)
    begun: list[int] = []

    def begin(count: int) -> Any:
        begun.append(count)
        quorum.native(6000)
        return bool

    report = migrate(quorum.delay, quorum.connection, Request("celery-native"), begun=begin)
    assert (begun, report.arrived, report.taken, report.after) == ([1], 1, 2, 0)
    adds_up(report)


def test_a_stop_finishes_what_is_under_way(quorum: Movers) -> None:
    quorum.declare_native()
    quorum.native(*[5000] * 100)
    seen: list[int] = []

    def begin(_count: int) -> Any:
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


# -- removing Celery's own levels ------------------------------------------------------------------------------------


def test_the_empty_levels_are_removed(rmq_vhost: str) -> None:
    for movers in new_movers(rmq_vhost, "quorum", exact_for="all"):
        movers.declare_native()
        movers.native(5000)
        movers.holds(1, *level_names())
        report = movers.migrate("celery-native", remove=True, use_management=False)
        assert report.moved == {"orders": 1}
        assert len(report.removed) == 28 + 29
        assert look(movers.connection) is None
        assert movers.migrate("celery-native", remove=True, use_management=False).removed == []
        movers.put("orders.key", b"still bound", exchange="shop")
        assert movers.lab.get("orders", ack=True).body == b"still bound"


def test_nothing_is_removed_while_the_app_uses_it(quorum: Movers) -> None:
    quorum.declare_native()
    with pytest.raises(RmqDelayError, match="exact_for to 'all'"):
        quorum.migrate("celery-native", remove=True, use_management=False)
    assert look(quorum.connection) is not None


def test_nothing_is_removed_with_a_message_in_it(rmq_vhost: str) -> None:
    for movers in new_movers(rmq_vhost, "quorum", exact_for="all"):
        movers.declare_native()
        movers.native(5000, queue="mails")
        movers.lab.channel.queue_delete("mails")
        report = movers.migrate("celery-native", remove=True, use_management=False)
        assert (report.removed, report.after) == ([], 1)
        assert report.needs_a_person
