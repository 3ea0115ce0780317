"""Ten thousand messages of Celery's native delayed delivery, and a migration that is killed twice."""

import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress

import amqp
import pytest
from kombu.transport.native_delayed_delivery import calculate_routing_key

from celery_rmq_delay import headers as h
from celery_rmq_delay.amqp.apply import consumer_count
from celery_rmq_delay.operations.celery_native_delay import level, level_names
from celery_rmq_delay.operations.migration.mover import WINDOW
from tests.support.brokers.delays import assert_on_time, held
from tests.support.waiting import SECONDS, wait_for

pytestmark = pytest.mark.slow

COUNT = 10_000
#: Seconds until the first of the messages is due, and over which they are spread. On a busy machine some come due while
#: they are moved; that is no fault.
FIRST, SPREAD = 60.0, 20.0

PROJECT = """
from tests.support.brokers.movers import our_app

app = our_app({url!r}, "quorum", exact_for="all", exact_queue_type="classic")
"""


@pytest.fixture
def movers(make_movers):
    # Classic levels: the test measures the migration, not the speed of quorum queues on a busy machine.
    return make_movers(exact_for="all", exact_queue_type="classic")


def publish(movers, rng):
    """Publish messages as Celery does, but faster; return the due times by task id."""
    channel = movers.connection.channel()
    channel.confirm_select()
    confirmed: Counter[str] = Counter()

    def confirm(tag, multiple):
        confirmed["tag"] = max(confirmed["tag"], tag)

    channel.events["basic_ack"].add(confirm)
    due, began = {}, time.time()
    for number in range(COUNT):
        countdown = began + FIRST + rng.random() * SPREAD - time.time()
        eta = time.time() + countdown
        headers = {
            "id": f"id-{number}",
            "task": "shop.charge",
            "lang": "py",
            "retries": 0,
            "eta": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(eta)) + f".{int(eta % 1 * 1e6):06d}+00:00",
        }
        due[f"id-{number}"] = eta
        message = amqp.Message(
            f"[[{number}], {{}}, {{}}]", content_type="application/json", delivery_mode=2, application_headers=headers
        )
        key = calculate_routing_key(int(countdown), "orders.key")
        # To the level that the topmost exchange would route to: the exchanges between take most of the time.
        channel.basic_publish(message, level(int(countdown).bit_length() - 1), key)
        while number - confirmed["tag"] > 500:
            movers.connection.drain_events(timeout=30)
    wait_for(lambda: movers.count_celery_native() == COUNT, "all in the levels", pause=0.1)
    channel.close()
    return due


class Run:
    """The command, in a process of its own."""

    def __init__(self, folder):
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), *sys.path])}
        command = [sys.executable, "-m", "celery", "-A", "proj", "rmq-delay", "migrate", "--from", "celery-native"]
        self.began, self.seconds = time.monotonic(), 0.0
        self.process = subprocess.Popen(
            [*command, "--json"], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def kill_below(self, movers, left):
        wait_for(lambda: movers.count_celery_native() <= left, f"{left} left", pause=0.001)
        assert self.process.poll() is None, self.process.communicate()
        self.process.kill()
        self.process.communicate()
        # Until the broker notices the loss, no count includes the process's unacked messages.
        wait_for(
            lambda: not any(consumer_count(movers.connection, name) for name in level_names()), "its consumers' end"
        )

    def report(self):
        out, err = self.process.communicate(timeout=SECONDS)
        self.seconds = time.monotonic() - self.began
        assert self.process.returncode == 0, (out, err)
        return json.loads(out)


def arrivals(movers, wanted, quiet=5.0):
    """Consume the destination until all messages are there and no more arrive; return the time of each."""
    found: list[tuple[float, amqp.Message]] = []
    missing = set(wanted)
    channel = movers.connection.channel()

    def note(message):
        found.append((time.time(), message))
        missing.discard(message.headers["id"])

    channel.basic_consume("orders", no_ack=True, callback=note)
    deadline = time.monotonic() + FIRST + SPREAD + 120
    while missing or time.time() < found[-1][0] + quiet:
        assert time.monotonic() < deadline, f"{len(missing)} did not come"
        with suppress(TimeoutError):
            movers.connection.drain_events(timeout=0.5)
    return found


def test_ten_thousand_messages_all_arrive_in_time_from_a_migration_that_is_killed_twice(
    movers, tmp_path, record_property
):
    rng = random.Random(20261120)
    (tmp_path / "proj.py").write_text(PROJECT.format(url=movers.url))
    movers.declare_celery_native()
    due = publish(movers, rng)
    began = time.time()
    for share in (rng.uniform(0.55, 0.75), rng.uniform(0.25, 0.45)):
        Run(tmp_path).kill_below(movers, int(COUNT * share))
    last = Run(tmp_path)
    report = last.report()
    ended = time.time()
    assert report["adds_up"]
    assert (report["after"], report["left"], report["poisoned"]) == (0, {}, {})
    assert movers.count(*level_names()) == 0

    found = arrivals(movers, set(due))
    assert {message.headers["id"] for _, message in found} == set(due)
    assert len(found) - COUNT <= 2 * WINDOW
    moved = [(due[message.headers["id"]], message) for _, message in found if h.DUE in message.headers]
    late = sorted(at - due[message.headers["id"]] for at, message in found)
    ahead = sorted(message.headers[h.DUE] / 1000 - each for each, message in moved)
    figures = {
        "moved": len(moved),
        "duplicates": len(found) - COUNT,
        "late_ms": [round(1000 * late[place]) for place in (0, len(late) // 2, len(late) * 99 // 100, -1)],
        "last_run": {"moved": report["taken"], "seconds": round(last.seconds, 1)},
        "due_ms": [round(1000 * ahead[0]), round(1000 * ahead[-1])],
    }
    print(figures)
    record_property("figures", figures)
    assert -0.000_01 <= ahead[0] <= ahead[-1] < 0.002
    assert late[0] >= 0
    for each, message in moved:
        if h.deaths(message.headers):  # otherwise it was due when it was moved
            assert_on_time(held(message), each, (began, ended))
