"""Publishers and brokers that die while messages wait: nothing is lost, and what may come twice is counted."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import kombu
import pytest
from kombu.utils.url import as_url, url_to_parts

from celery_rmq_delay.broker import capabilities
from celery_rmq_delay.ladders import Ladder
from celery_rmq_delay.names import Names, return_key
from celery_rmq_delay.testing import PrivateBroker
from celery_rmq_delay.testing.installation import Installation
from celery_rmq_delay.topology.apply import ready_counts
from celery_rmq_delay.topology.exact import Route
from celery_rmq_delay.topology.ladder import LadderPlan, origin_arguments
from celery_rmq_delay.topology.switch import apply_plan
from tests.proxy import Proxy
from tests.waiting import wait_for

from . import parking

#: Settings by the name of the queue that the messages come back to.
TOPOLOGIES: dict[str, dict[str, Any]] = {
    "levels-classic": {"exact_delays": "levels", "exact_queue_type": "classic"},
    "levels-quorum": {"exact_delays": "levels", "exact_queue_type": "quorum"},
    "hold": {"exact_delays": "hold", "exact_queue_type": "classic"},
    "loop-classic": {"exact_delays": "loop", "exact_queue_type": "classic", "exact_unit": "5s"},
    "loop-quorum": {"exact_delays": "loop", "exact_queue_type": "quorum", "exact_unit": "5s"},
}
PARKED = 5_000
#: The quorum queues in which messages wait: those that know at-least-once dead-lettering.
QUORUM_QUEUES = {"rungs-quorum": 6, "levels-quorum": 28, "loop-quorum": 2}
#: What moves all that it holds once a unit, through classic queues. They forget a message before the next one has it on
#: disk: what is under way when a broker is killed is lost.
MOVED_UNSAFELY = {"loop-classic"}


# -- the publisher -----------------------------------------------------------------------------------------------------

KILLS = 20


def lines_of(log: Path) -> list[list[str]]:
    """Return the complete lines of a publisher's log, in words."""
    text = log.read_text() if log.exists() else ""
    return [line.split() for line in text[: text.rfind("\n") + 1].splitlines()]


@contextlib.contextmanager
def publisher(url: str, log: Path, first: int) -> Iterator[subprocess.Popen[bytes]]:
    environment = {
        **os.environ,
        "PYTHONPATH": str(parking.CHECKOUT),
        "PARKING_BROKER": url,
        "PARKING_SETTINGS": repr(TOPOLOGIES),
    }
    command = [sys.executable, "-m", "tests.integration.parking_app", str(log), str(first)]
    before = len(lines_of(log))
    with subprocess.Popen(command, env=environment) as process:
        try:
            wait_for(lambda: len(lines_of(log)) > before + 4 * len(TOPOLOGIES), "the first calls", 60)
            yield process
        finally:
            process.kill()


@pytest.mark.timeout(600)
def test_a_publisher_killed_or_cut_off_between_publish_and_confirm_doubles_no_confirmed_call(
    rmq_vhost: str, rmq_broker: Any, tmp_path: Path
) -> None:
    dice, log = random.Random(20261121), tmp_path / "calls"
    parts = url_to_parts(rmq_vhost)
    cuts: Counter[int] = Counter()
    with Proxy(parts.port or 5672) as proxy, contextlib.ExitStack() as releasers:
        through = as_url("amqp", "127.0.0.1", proxy.port, parts.username, parts.password, parts.path)
        for kill in range(KILLS):
            with publisher(through, log, 100_000 * kill) as process:
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
        for name, settings in TOPOLOGIES.items():
            if name.startswith("loop"):
                releasers.enter_context(parking.worker(rmq_vhost, tmp_path / f"{name}.log", **settings))
        tried = {int(number) for what, number, _ in lines_of(log) if what == "before"}
        confirmed = {int(number) for what, number, _ in lines_of(log) if what == "after"}
        found = parking.collect(rmq_vhost, TOPOLOGIES, confirmed, 30, quiet=8, read=task_number)

    unconfirmed = tried - confirmed
    came = {number for number in unconfirmed if found.counts[number]}
    print(f"{len(confirmed)} confirmed; {len(came)} of {len(unconfirmed)} unconfirmed came; {found.doubled} doubled")
    assert set(found.counts) - came == confirmed
    assert set(found.doubled) <= set(cuts)
    assert all(count <= 1 + cuts[number] for number, count in found.counts.items())
    # One call at a time: a kill leaves one unconfirmed at most, and what the broker had is there.
    assert KILLS // 4 <= len(came) <= len(unconfirmed) <= KILLS
    assert set(cuts) <= confirmed


def stalled(log: Path) -> list[list[str]] | None:
    """Return the log when its last call has waited for its confirm for a while."""
    before = lines_of(log)
    time.sleep(0.1)  # no confirm takes so long
    return before if before[-1][0] == "before" and lines_of(log) == before else None


def task_number(message: Any) -> tuple[int, float]:
    return int(message.headers["id"]), time.time()


# -- the broker --------------------------------------------------------------------------------------------------------


def time_for_parking(url: str) -> int:
    """Return the seconds in which this machine will have parked all messages, with others at work, too."""
    began = time.monotonic()
    with kombu.Connection(url) as connection:
        parking.declare_queue(connection, "probe", "quorum")
        parking.publish_all(connection, ((number, Route("", "probe")) for number in range(1000)))
    return round(20 + 90 * (time.monotonic() - began))


def plans(url: str, seconds: int) -> dict[str, LadderPlan]:
    """Return a ladder for a classic and for a quorum queue, by the queue; the delays begin after ``seconds``."""
    names = Names("rmq_delay")
    ladder = Ladder(tuple(1000 * (seconds + each) for each in (3, 6, 9, 12, 16, 20)))
    with kombu.Connection(url) as connection:
        tells = capabilities(connection).tells_death_reason
    return {
        f"rungs-{kind}": LadderPlan(
            names, f"rungs-{kind}", kind, f"{names.prefix}.exhausted", ladder, reason_routing=tells
        )
        for kind in ("classic", "quorum")
    }


def park_in_rungs(url: str, plan: LadderPlan, first: int) -> dict[int, float]:
    """Reject messages into the rungs of an origin queue; return the seconds that each has to wait."""
    tiers = plan.ladder.tiers_ms
    waits = {number: tiers[number % len(tiers)] / 1000 for number in range(first, first + PARKED)}
    keys = ["", *(return_key(plan.queue, rung) for rung in range(1, len(tiers)))]
    with kombu.Connection(url) as connection:
        parking.declare_queue(connection, plan.queue, **declared(plan))
        apply_plan(connection, plan)
        channel, rejected = connection.channel(), []

        def reject(message: Any) -> None:
            channel.basic_reject(message.delivery_tag, requeue=False)
            rejected.append(message)

        channel.basic_qos(0, 500, False)
        channel.basic_consume(plan.queue, callback=reject)
        routes = {key: Route(plan.names.returns, key) if key else Route("", plan.queue) for key in keys}
        messages = ((number, routes[keys[number % len(tiers)]]) for number in waits)
        assert parking.publish_all(connection, messages) == (set(waits), set())
        while len(rejected) < PARKED:
            connection.drain_events(timeout=30)
        # A channel that closes takes rejections with it that a busy quorum queue has yet to be told of.
        rungs = [queue.name for _, _, queue in plan.rung_queues([plan.ladder])]
        wait_for(lambda: sum(filter(None, ready_counts(connection, rungs).values())) == PARKED, "all in the rungs")
        channel.close()
    return waits


def declared(plan: LadderPlan) -> dict[str, Any]:
    return {"kind": plan.queue_type, **origin_arguments(plan.names, plan.queue, plan.queue_type)}


def park_exactly(
    url: str, queue: str, settings: dict[str, Any], first: int, due: float, dice: random.Random
) -> dict[int, float]:
    """Publish messages that are due 3 to 20 s after ``due``; return the seconds that each has to wait."""
    exact, waits = parking.exact_delays(**settings), {}
    with kombu.Connection(url) as connection:
        parking.declare_queue(connection, queue, settings["exact_queue_type"])
        exact.declare(connection)

        def messages() -> Iterator[parking.Message]:
            for number in range(first, first + PARKED):
                waits[number] = due - time.time() + dice.uniform(3, 20)
                route = exact.route(connection, round(waits[number] * 1000), queue, "countdown", waits[number])
                exact.prepare(connection, route)
                yield number, route

        assert parking.publish_all(connection, messages()) == (set(waits), set())
    return waits


@pytest.mark.timeout(600)
@pytest.mark.parametrize("ending", ["restart", pytest.param("kill", marks=pytest.mark.all_brokers)])
def test_five_thousand_messages_in_each_topology_outlive_the_end_of_the_broker(
    rmq_installation: Installation, tmp_path: Path, ending: str
) -> None:
    dice = random.Random(20261122)
    with (
        PrivateBroker(rmq_installation.server, rmq_installation.root) as broker,
        contextlib.ExitStack() as releasers,
    ):
        parking.hasten(broker)
        for name, settings in TOPOLOGIES.items():
            if name.startswith("loop"):
                releasers.enter_context(parking.worker(broker.url, tmp_path / f"{name}.log", **settings))
        # The kill is to end a broker that knows its queues. One with Mnesia can forget those of its last seconds, which
        # test_broker_facts shows; Ra, too, has the directory of its quorum queues on disk only a while later.
        with kombu.Connection(broker.url) as connection:
            for queue, settings in TOPOLOGIES.items():
                parking.declare_queue(connection, queue, settings["exact_queue_type"])
        seconds = time_for_parking(broker.url)
        began, waits = time.time(), dict[int, float]()
        for plan in plans(broker.url, seconds).values():
            waits |= park_in_rungs(broker.url, plan, len(waits))
        for queue, settings in TOPOLOGIES.items():
            waits |= park_exactly(broker.url, queue, settings, len(waits), began + seconds, dice)
        queues = ["rungs-classic", "rungs-quorum", *TOPOLOGIES]
        with kombu.Connection(broker.url) as connection:
            assert not any(ready_counts(connection, queues).values()), "some were due before all were parked"

        parking.metadata_to_disk(broker)
        if ending == "restart":
            broker.restart()
        else:
            broker.kill()
            broker.start()
        parking.hasten(broker)
        patience = 45 + max(0.0, began + seconds - time.time())
        found = parking.collect(broker.url, queues, set(waits), patience)

    def by_topology(numbers: Iterable[int]) -> Counter[str]:
        return Counter(queues[number // PARKED] for number in numbers)

    lost, doubled = by_topology(set(waits) - set(found.counts)), by_topology(found.doubled)
    print(f"RabbitMQ {broker.version}: {len(waits)} parked; lost: {dict(lost)}; doubled: {dict(doubled)}")
    assert not set(lost) - (MOVED_UNSAFELY if ending == "kill" else set())
    assert not by_topology(number for number, age in found.ages.items() if age < waits[number]), "early"
    limits = {name: parking.DEAD_LETTERS_AT_ONCE * count for name, count in QUORUM_QUEUES.items()}
    assert all(count <= limits.get(name, 0) for name, count in doubled.items())
