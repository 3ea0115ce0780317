"""Every source into every target: what moved reaches its queue, when it was due."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from celery_rmq_delay import headers as h
from celery_rmq_delay.config import QueueType
from celery_rmq_delay.inventory import plans
from celery_rmq_delay.names import return_key
from celery_rmq_delay.native_leftovers import level_names
from celery_rmq_delay.topology.exact import Options, make
from celery_rmq_delay.topology.hold import Hold
from celery_rmq_delay.topology.loop import Loop
from celery_rmq_delay.topology.switch import apply_plan

from .movers import Movers, new_movers

#: Seconds that the messages wait in the source, and the tier of the ladder that takes them over.
WAIT, TIER = 4, 6
SOURCES = ("celery-native", "levels", "hold", "loop", "ladder")
TARGETS = ("levels", "hold", "loop", "ladder")


@pytest.fixture
def movers(rmq_vhost: str, queue_type: QueueType) -> Iterator[Movers]:
    for movers in new_movers(rmq_vhost, queue_type, tiers=[f"{TIER}s", "1h"]):
        apply(movers)
        yield movers


def settings(movers: Movers, first: str) -> None:
    movers.again(tiers=[f"{TIER}s", "1h"], exact_delays=[first, "levels", "loop"])
    apply(movers)


def apply(movers: Movers) -> None:
    for plan in plans(movers.connection, movers.delay):
        apply_plan(movers.connection, plan)


def fill(movers: Movers, source: str) -> tuple[str, ...]:
    """Let a message wait in a source; return the queues of `hold`."""
    if source == "celery-native":
        movers.declare_native()
        movers.native(WAIT)
        movers.holds(1, *level_names())
    elif source == "ladder":
        movers.again(tiers=[f"{WAIT}s", "1h"])
        apply(movers)
        movers.park("a")
        movers.holds(1, movers.rung(1, f"{WAIT}s"))
    else:
        settings(movers, source)
        movers.call(WAIT)
        hold = Hold(Options(movers.delay.settings.names, "x")).route(WAIT * 1000, "orders").routing_key
        return (hold,) if source == "hold" else ()
    return ()


def loop_of(movers: Movers) -> Loop:
    found = make("loop", Options(movers.delay.settings.names, "x", movers.delay.exact.queue_type))
    assert isinstance(found, Loop)
    return found


@pytest.mark.parametrize("to", TARGETS)
@pytest.mark.parametrize("source", SOURCES)
def test_a_message_moves_and_arrives_when_due(movers: Movers, source: str, to: str) -> None:
    if source == to != "ladder":
        pytest.skip("the same queues")
    began = time.time()
    named = fill(movers, source)
    filled = time.time()
    settings(movers, "levels")
    report = movers.migrate(source, to, source_queues=named)
    assert (report.before, report.taken, report.after, report.moved) == (1, 1, 0, {"orders": 1}), report
    assert report.adds_up
    if to == "loop":  # a worker lets it out
        message = movers.lab.get(loop_of(movers).wait, ack=True)
        assert message.headers[h.TO] == "orders"
        assert began + WAIT - 1 < message.headers[h.DUE] / 1000 < filled + WAIT + 2
        return
    message = movers.lab.get("orders", ack=True)
    arrived = time.time()
    if to == "ladder":
        assert began + TIER <= arrived < filled + TIER + 5
        assert message.delivery_info["routing_key"] == return_key("orders", 1)
    else:
        assert began + WAIT <= arrived < filled + WAIT + 4
    assert message.headers["retries"] == (1 if source == "ladder" else 0)


def test_the_limits_of_a_ladder_are_its_tiers(movers: Movers) -> None:
    settings(movers, "levels")
    movers.call(3000)
    report = movers.migrate("levels", "ladder")
    assert report.moved == {"orders": 1}
    movers.holds(1, movers.rung(2, "1h"))
