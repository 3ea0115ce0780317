"""Publishers and brokers that die while messages wait: nothing is lost, and duplicates are counted."""

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from typing import Any

import kombu
import pytest
from kombu.utils.url import as_url, url_to_parts

from celery_rmq_delay.amqp.apply import ready_counts
from celery_rmq_delay.amqp.capabilities import capabilities
from celery_rmq_delay.amqp.route import Route
from celery_rmq_delay.ladders import Ladder
from celery_rmq_delay.names import Names, return_key
from celery_rmq_delay.testing import PrivateBroker
from celery_rmq_delay.topology.common import origin_arguments
from celery_rmq_delay.topology.ladder import LadderPlan
from celery_rmq_delay.topology.transition import apply_plan
from tests.support.brokers import parking
from tests.support.brokers.proxy import Proxy
from tests.support.corpus import slow
from tests.support.waiting import wait_for

pytestmark = pytest.mark.slow

#: Settings by the name of the queue that the messages come back to.
TOPOLOGIES: dict[str, dict[str, Any]] = {
    "levels-classic": {"exact_delays": "levels", "exact_queue_type": "classic"},
    "levels-quorum": {"exact_delays": "levels", "exact_queue_type": "quorum"},
    "hold": {"exact_delays": "hold", "exact_queue_type": "classic"},
    "loop-classic": {"exact_delays": "loop", "exact_queue_type": "classic", "exact_unit": "5s"},
    "loop-quorum": {"exact_delays": "loop", "exact_queue_type": "quorum", "exact_unit": "5s"},
}
#: Those that need no worker to move messages.
ALONE = {name: settings for name, settings in TOPOLOGIES.items() if not name.startswith("loop")}
#: Waiting messages in each: as many as a busy system may have, and enough to show that all of them survive.
MANY, FEW = 5_000, 20
#: The quorum queues in which messages wait: those with at-least-once dead-lettering.
QUORUM_QUEUES = {"tiers-quorum": 6, "levels-quorum": 28, "loop-quorum": 2}
#: Moves all its messages once a unit, through classic queues. These drop a message before the next one has it: messages
#: in transit are lost when a broker ends, by a clean stop as well, see test_broker_facts.
MOVED_UNSAFELY = {"loop-classic"}


# -- the publisher -----------------------------------------------------------------------------------------------------


def lines_of(log):
    """Return the complete lines of a publisher's log, in words."""
    text = log.read_text() if log.exists() else ""
    return [line.split() for line in text[: text.rfind("\n") + 1].splitlines()]


@contextlib.contextmanager
def publisher(url, log, topologies, first):
    environment = {
        **os.environ,
        "PYTHONPATH": str(parking.ROOT),
        "PARKING_BROKER": url,
        "PARKING_SETTINGS": repr(topologies),
    }
    command = [sys.executable, "-m", "tests.support.brokers.parking_app", str(log), str(first)]
    before = len(lines_of(log))
    with subprocess.Popen(command, env=environment) as process:
        try:
            wait_for(lambda: len(lines_of(log)) > before + 4 * len(topologies), "the first calls")
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize(("kills", "topologies"), [(4, ALONE), slow(20, TOPOLOGIES)], ids=["few", "many"])
def test_a_publisher_killed_or_cut_off_between_publish_and_confirm_doubles_no_confirmed_call(
    rmq_vhost, tmp_path, kills, topologies
):
    dice, log = random.Random(20261121), tmp_path / "calls"
    parts = url_to_parts(rmq_vhost)
    cuts: Counter[int] = Counter()
    with Proxy(parts.port or 5672) as proxy, contextlib.ExitStack() as releasers:
        through = as_url("amqp", "127.0.0.1", proxy.port, parts.username, parts.password, parts.path)
        for kill in range(kills):
            with publisher(through, log, topologies, 100_000 * kill) as process:
                time.sleep(dice.uniform(0.05, 0.4))  # a random moment, not a wait
                if kill % 2:
                    proxy.swallow()
                    *_, (_, number, _) = wait_for(lambda: stalled(log), "a call without its confirm")
                if kill % 4 == 3:
                    proxy.cut()
                    cuts[int(number)] += 1
                    wait_for(lambda last=int(number): int(lines_of(log)[-1][1]) > last, "the calls after the cut")
                process.send_signal(signal.SIGKILL)
            proxy.cut()
        for name in topologies.keys() - ALONE:
            releasers.enter_context(parking.worker(rmq_vhost, tmp_path / f"{name}.log", **topologies[name]))
        tried = {int(number) for what, number, _ in lines_of(log) if what == "before"}
        confirmed = {int(number) for what, number, _ in lines_of(log) if what == "after"}
        quiet = 4 if topologies is ALONE else 8
        found = parking.collect(rmq_vhost, topologies, confirmed, 30, quiet=quiet, read=task_number)

    unconfirmed = tried - confirmed
    came = {number for number in unconfirmed if found.counts[number]}
    print(f"{len(confirmed)} confirmed; {len(came)} of {len(unconfirmed)} unconfirmed came; {found.doubled} doubled")
    assert set(found.counts) - came == confirmed
    assert set(found.doubled) <= set(cuts)
    assert all(count <= 1 + cuts[number] for number, count in found.counts.items())
    # One call at a time: a kill leaves at most one unconfirmed call, and all confirmed ones arrive.
    assert kills // 4 <= len(came) <= len(unconfirmed) <= kills
    assert set(cuts) <= confirmed


def stalled(log):
    """Return the log after its last call has waited some time for its confirm."""
    before = lines_of(log)
    time.sleep(0.5)  # no confirm takes so long
    return before if before[-1][0] == "before" and lines_of(log) == before else None


def task_number(message):
    return int(message.headers["id"]), time.time()


# -- the broker --------------------------------------------------------------------------------------------------------


def time_for_parking(url):
    """Return the seconds that this machine needs to park all messages while other processes run."""
    began = time.monotonic()
    with kombu.Connection(url) as connection:
        parking.declare_queue(connection, "probe", "quorum")
        parking.publish_all(connection, ((number, Route("", "probe")) for number in range(1000)))
    return round(20 + 90 * (time.monotonic() - began))


def plans(url, seconds, spread):
    """Return a ladder for a classic and for a quorum queue, by the queue; the delays are longer than ``seconds``."""
    names = Names("rmq_delay")
    ladder = Ladder(tuple(round(1000 * (seconds + spread * each)) for each in (0.15, 0.3, 0.45, 0.6, 0.8, 1)))
    with kombu.Connection(url) as connection:
        has_reason = capabilities(connection).reports_death_reason
    return {
        f"tiers-{kind}": LadderPlan(
            names, f"tiers-{kind}", kind, f"{names.prefix}.exhausted", ladder, reason_routing=has_reason
        )
        for kind in ("classic", "quorum")
    }


def park_in_tiers(url, plan, numbers):
    """Reject messages into the tiers of an origin queue; return the seconds that each has to wait."""
    tiers = plan.ladder.tiers_ms
    waits = {number: tiers[number % len(tiers)] / 1000 for number in numbers}
    keys = ["", *(return_key(plan.queue, tier_index) for tier_index in range(1, len(tiers)))]
    with kombu.Connection(url) as connection:
        parking.declare_queue(connection, plan.queue, **declared(plan))
        apply_plan(connection, plan)
        channel, rejected = connection.channel(), []

        def reject(message):
            channel.basic_reject(message.delivery_tag, requeue=False)
            rejected.append(message)

        channel.basic_qos(0, 500, False)
        channel.basic_consume(plan.queue, callback=reject)
        routes = {key: Route(plan.names.returns, key) if key else Route("", plan.queue) for key in keys}
        messages = ((number, routes[keys[number % len(tiers)]]) for number in waits)
        assert parking.publish_all(connection, messages) == (set(waits), set())
        while len(rejected) < len(numbers):
            connection.drain_events(timeout=30)
        # A channel that closes takes rejections with it that a busy quorum queue has not received yet.
        tiers = [queue.name for _, _, queue in plan.delay_queues([plan.ladder])]
        wait_for(lambda: sum(filter(None, ready_counts(connection, tiers).values())) == len(numbers), "all in them")
        channel.close()
    return waits


def declared(plan):
    return {"kind": plan.queue_type, **origin_arguments(plan.names, plan.queue, plan.queue_type)}


def park_exactly(url, queue, settings, numbers, dues):
    """Publish messages with exact delays; return the seconds that each has to wait."""
    exact, waits = parking.exact_delays(**settings), {}
    with kombu.Connection(url) as connection:
        parking.declare_queue(connection, queue, settings["exact_queue_type"])
        exact.declare(connection, unused=True)

        def messages():
            for number in numbers:
                waits[number] = max(0.0, dues() - time.time())
                route = exact.route(connection, round(waits[number] * 1000), queue, "countdown", waits[number])
                exact.prepare(connection, route)
                yield number, route

        assert parking.publish_all(connection, messages()) == (set(waits), set())
    return waits


@pytest.mark.parametrize(
    ("ending", "count", "topologies"),
    [
        pytest.param("kill", FEW, ALONE, marks=[pytest.mark.brokers, pytest.mark.slow]),
        slow("restart", MANY, TOPOLOGIES),
        pytest.param("kill", MANY, TOPOLOGIES, marks=[pytest.mark.slow, pytest.mark.brokers]),
    ],
    ids=["kill-few", "restart-many", "kill-many"],
)
def test_messages_in_each_topology_outlive_the_end_of_the_broker(rmq_installation, tmp_path, ending, count, topologies):
    dice, begun = random.Random(20261122), time.monotonic()
    with PrivateBroker(rmq_installation.server, rmq_installation.root) as broker, contextlib.ExitStack() as releasers:
        parking.hasten(broker)
        for name in topologies.keys() - ALONE:
            releasers.enter_context(parking.worker(broker.url, tmp_path / f"{name}.log", **topologies[name]))
        # The broker should have its queues on disk before the kill. One with Mnesia can lose those of its last seconds,
        # see test_broker_facts; Ra, too, has the directory of its quorum queues on disk only a while later.
        with kombu.Connection(broker.url) as connection:
            for queue, settings in topologies.items():
                parking.declare_queue(connection, queue, settings["exact_queue_type"])
        # A few messages are parked quickly: they should wait until the broker is back.
        seconds = time_for_parking(broker.url) if count == MANY else 1 + 1.5 * (time.monotonic() - begun)
        spread = 20.0 if count == MANY else 4.0
        due, waits = time.time() + seconds, dict[int, float]()
        tiers = plans(broker.url, seconds, spread)
        for plan in tiers.values():
            waits |= park_in_tiers(broker.url, plan, range(len(waits), len(waits) + count))
        for queue, settings in topologies.items():
            numbers = range(len(waits), len(waits) + count)
            waits |= park_exactly(broker.url, queue, settings, numbers, lambda: due + spread * dice.uniform(0.15, 1))
        queues = ["tiers-classic", "tiers-quorum", *topologies]
        if count == MANY:
            with kombu.Connection(broker.url) as connection:
                assert not any(ready_counts(connection, queues).values()), "some were due before all were parked"

        parking.metadata_to_disk(broker)
        classic = tiers["tiers-classic"]
        parking.dead_letters_to_disk(broker, [queue.name for *_, queue in classic.delay_queues([classic.ladder])])
        if ending == "restart":
            broker.restart()
        else:
            broker.kill()
            broker.start()
        patience = 45 + max(0.0, due - time.time())
        found = parking.collect(broker.url, queues, set(waits), patience)

    def by_topology(numbers):
        return Counter(queues[number // count] for number in numbers)

    lost, doubled = by_topology(set(waits) - set(found.counts)), by_topology(found.doubled)
    print(f"RabbitMQ {broker.version}: {len(waits)} parked; lost: {dict(lost)}; doubled: {dict(doubled)}")
    assert not set(lost) - MOVED_UNSAFELY
    assert not by_topology(number for number, age in found.ages.items() if age < waits[number]), "early"
    limits = {name: parking.DEAD_LETTERS_AT_ONCE * each for name, each in QUORUM_QUEUES.items()}
    assert all(each <= limits.get(name, 0) for name, each in doubled.items())
