"""Ten thousand messages of Celery's own levels, and a migration that is killed twice."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import amqp
import pytest
from kombu.transport.native_delayed_delivery import calculate_routing_key

from celery_rmq_delay import headers as h
from celery_rmq_delay.migration.mover import WINDOW
from celery_rmq_delay.native_leftovers import level, level_names
from tests.waiting import BUSY, wait_for

from .movers import Movers, new_movers

COUNT = 10_000
UNIT = 1.0
#: Seconds until the first of the messages is due, and over which they are spread.
FIRST, SPREAD = 60.0, 20.0

PROJECT = """
from tests.integration.movers import our_app

app = our_app({url!r}, "quorum", exact_for="all", exact_queue_type="classic")
"""


@pytest.fixture
def movers(rmq_vhost: str) -> Iterator[Movers]:
    # Classic levels: what is measured is the migration, and not how fast a busy machine runs quorum queues.
    yield from new_movers(rmq_vhost, "quorum", exact_for="all", exact_queue_type="classic")


def publish(movers: Movers, rng: random.Random) -> dict[str, float]:
    """Publish messages as Celery does, but faster; return the due times by task id."""
    channel = movers.connection.channel()
    channel.confirm_select()
    confirmed: Counter[str] = Counter()

    def confirm(tag: int, multiple: bool) -> None:
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
        # Where the topmost exchange would bring it: on the way there is nothing but exchanges, and most of the time.
        channel.basic_publish(message, level(int(countdown).bit_length() - 1), key)
        while number - confirmed["tag"] > 500:
            movers.connection.drain_events(timeout=30)
    wait_for(lambda: movers.natives() == COUNT, "all in the levels", pause=0.1)
    channel.close()
    return due


class Run:
    """The command, in a process of its own."""

    def __init__(self, folder: Path) -> None:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), *sys.path])}
        command = [sys.executable, "-m", "celery", "-A", "proj", "rmq-delay", "migrate", "--from", "celery-native"]
        self.began, self.seconds = time.monotonic(), 0.0
        self.process = subprocess.Popen(
            [*command, "--json"], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def kill_below(self, movers: Movers, left: int) -> None:
        wait_for(lambda: movers.natives() <= left, f"{left} left", pause=0.001)
        assert self.process.poll() is None, self.process.communicate()
        self.process.kill()
        self.process.communicate()

    def report(self) -> Any:
        out, err = self.process.communicate(timeout=60)
        self.seconds = time.monotonic() - self.began
        assert self.process.returncode == 0, (out, err)
        return json.loads(out)


def arrivals(movers: Movers, until: float, most: int) -> list[tuple[str, float, dict[str, Any]]]:
    """Consume the destination; return (id, time of arrival, headers)."""
    found: list[tuple[str, float, dict[str, Any]]] = []
    channel = movers.connection.channel()

    def note(message: amqp.Message) -> None:
        found.append((message.headers["id"], time.time(), message.headers))

    channel.basic_consume("orders", no_ack=True, callback=note)
    while time.time() < until and len(found) < most:
        with suppress(TimeoutError):
            movers.connection.drain_events(timeout=0.5)
    return found


def test_ten_thousand_messages_all_arrive_in_time_from_a_migration_that_is_killed_twice(
    movers: Movers, tmp_path: Path, record_property: Any
) -> None:
    rng = random.Random(20261120)
    (tmp_path / "proj.py").write_text(PROJECT.format(url=movers.url))
    movers.declare_native()
    began = time.monotonic()
    due = publish(movers, rng)
    published = time.monotonic() - began
    for share in (rng.uniform(0.55, 0.75), rng.uniform(0.25, 0.45)):
        Run(tmp_path).kill_below(movers, int(COUNT * share))
        time.sleep(rng.random() * 0.3)
    last = Run(tmp_path)
    report = last.report()
    migrated = time.time()
    assert migrated < min(due.values()), "the machine is too slow: some came due while they were moved"
    assert report["adds_up"]
    assert (report["after"], report["came_due"], report["arrived"], report["left"], report["poisoned"]) == (
        0, 0, 0, {}, {},
    )  # fmt: skip
    assert movers.count(*level_names()) == 0

    twice_at_most = 2 * WINDOW
    found = arrivals(movers, max(due.values()) + 10, COUNT + twice_at_most)
    counts = Counter(task_id for task_id, _, _ in found)
    assert set(counts) == set(due)
    assert len(found) - COUNT <= twice_at_most
    late = sorted(at - due[task_id] for task_id, at, _ in found)
    told = sorted(headers[h.DUE] / 1000 - due[task_id] for task_id, _, headers in found)
    figures = {
        "published_s": round(published, 1),
        "duplicates": len(found) - COUNT,
        "late_ms": [round(1000 * late[place]) for place in (0, len(late) // 2, len(late) * 99 // 100, -1)],
        "last_run": {"moved": report["taken"], "seconds": round(last.seconds, 1)},
        "due_ms": [round(1000 * told[0]), round(1000 * told[-1])],
    }
    print(figures)
    record_property("figures", figures)
    assert -0.000_01 <= told[0] <= told[-1] < 0.002
    assert late[0] >= 0
    assert late[-1] <= UNIT + BUSY
