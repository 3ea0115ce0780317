"""Every source into every target: moved messages reach their queue when they are due."""

import time

import pytest

from celery_rmq_delay import headers as h
from celery_rmq_delay.app.inventory import plans
from celery_rmq_delay.names import return_key
from celery_rmq_delay.operations.celery_native_delay import level_names
from celery_rmq_delay.topology.exact.alternatives import Hold, Loop
from celery_rmq_delay.topology.exact.base import Options
from celery_rmq_delay.topology.exact.registry import make
from celery_rmq_delay.topology.transition import apply_plan
from tests.support.brokers.delays import assert_on_time, held

#: Seconds that the messages wait in the source; the longer ones for a machine that is slow to move one.
WAITS = (2, 4, 8, 16, 32)
SOURCES = ("celery-native", "levels", "hold", "loop", "ladder")
TARGETS = ("levels", "hold", "loop", "ladder")
#: Each source and each target once.
QUICK = {
    ("celery-native", "levels"),
    ("levels", "hold"),
    ("hold", "loop"),
    ("loop", "ladder"),
    ("ladder", "levels"),
}
PAIRS = [
    pytest.param(source, to, kind, marks=[] if kind == "quorum" and (source, to) in QUICK else [pytest.mark.slow])
    for source in SOURCES
    for to in TARGETS
    for kind in ("quorum", "classic")
    if source != to or source == "ladder"
]


def go_on(movers, tier, **settings):
    """Apply a ladder that begins with a tier of so many seconds, and go on with it."""
    movers.again(tiers=[f"{tier}s", "1h"], **settings)
    for plan in plans(movers.connection, movers.delay):
        apply_plan(movers.connection, plan)


def fill(movers, source, wait):
    """Let a message wait in a source; return the queues of `hold`."""
    if source == "celery-native":
        movers.declare_celery_native()
        movers.call_celery_native(wait)
    elif source == "ladder":
        go_on(movers, wait)
        movers.park("a")
    else:
        go_on(movers, wait + 1, exact_delays=[source, "levels", "loop"])
        movers.call(wait)
        hold = Hold(Options(movers.delay.settings.names, "x")).route(wait * 1000, "orders").routing_key
        return (hold,) if source == "hold" else ()
    return ()


def loop_of(movers):
    found = make("loop", Options(movers.delay.settings.names, "x", movers.delay.exact.queue_type))
    assert isinstance(found, Loop)
    return found


@pytest.mark.brokers
@pytest.mark.parametrize(("source", "to", "queue_type"), PAIRS)
def test_a_message_moves_and_arrives_when_due(make_movers, source, to, queue_type):
    movers = make_movers(queue_type)
    for wait in WAITS:
        filled = time.time()
        named = fill(movers, source, wait)
        ready = time.time()
        if source in ("celery-native", "ladder"):
            waiting = level_names() if source == "celery-native" else [movers.delay_queue(1, f"{wait}s")]
            movers.holds(1, *waiting)
        go_on(movers, wait + 1, exact_delays=["levels", "levels", "loop"])
        began = time.time()
        report = movers.migrate(source, to, source_queues=named)
        ended = time.time()
        if report.moved:
            break
        movers.lab.get("orders", ack=True)  # this machine is too slow: the message was due before it could be moved
    assert (report.before, report.taken, report.after, report.moved) == (1, 1, 0, {"orders": 1}), report
    assert report.adds_up
    message = movers.lab.get("orders" if to != "loop" else loop_of(movers).wait, ack=True)
    if to == "ladder":
        assert time.time() >= began + wait + 1
        assert message.delivery_info["routing_key"] == return_key("orders", 1)
        assert held(message) == wait + 1, "the lowest tier that is long enough"
    else:
        due = message.headers[h.DUE] / 1000
        assert filled + wait - 1 <= due <= ready + wait + 1, "some sources have whole seconds"
        assert message.headers[h.TO] == "orders"
        if to != "loop":  # there a worker releases it
            assert time.time() >= due
            assert_on_time(held(message), due, (began, ended))
    assert message.headers["retries"] == (1 if source == "ladder" else 0)


def test_the_limits_of_a_ladder_are_its_tiers(make_movers):
    movers = make_movers()
    go_on(movers, 6)
    movers.call(3000)
    report = movers.migrate("levels", "ladder")
    assert report.moved == {"orders": 1}
    movers.holds(1, movers.delay_queue(2, "1h"))
