"""Hostile messages between healthy ones: all healthy ones run, all hostile ones are kept, no worker ends."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable

import amqp
import pytest

from tests.support.brokers.lab import contents
from tests.support.waiting import SECONDS, wait_for
from tests.support.workers.hostile_messages import ALL, BODIES
from tests.support.workers.lab import Lab
from tests.support.workers.nodes import Worker
from tests.support.workers.other_producer import publish

EXHAUSTED = "rmq_delay.exhausted"


def send(lab: Lab, hostile: list[amqp.Message]) -> list[str]:
    """Publish hostile messages with a healthy task before each; return the ids of those."""
    healthy = lab.task("healthy")
    ids = []
    for number, message in enumerate(hostile):
        ids.append(healthy.delay(number).id)
        publish(lab, message)
    return [*ids, healthy.delay(-1).id]


def missing(lab: Lab, hostile: dict[str, amqp.Message], found: list[bytes]) -> list[str]:
    """Move the messages of the exhausted queue into ``found``; return the names of those still missing.

    There may be more: some hostile messages make the worker send others.
    """
    found += [contents(each) for each in lab.take(EXHAUSTED)]
    left = Counter(found)
    left.subtract(contents(each) for each in hostile.values())
    return [name for name, each in hostile.items() if left[contents(each)] < 0]


def kept_all(lab: Lab, hostile: dict[str, amqp.Message], worker: Worker) -> None:
    found: list[bytes] = []
    deadline = time.monotonic() + SECONDS
    while names := missing(lab, hostile, found):
        assert worker.container.status == "running", worker.logs()[-3000:]
        assert time.monotonic() < deadline, (
            f"{names} not in the exhausted queue; {lab.counts('shop', 'shop.quarantine')}"
        )
        time.sleep(0.1)


@pytest.mark.parametrize(
    "pool", ["prefork", *(pytest.param(pool, marks=pytest.mark.slow) for pool in ("threads", "gevent", "solo"))]
)
def test_hostile_messages_end_in_the_exhausted_queue_and_the_others_run(
    make_lab: Callable[..., Lab], pool: str
) -> None:
    lab = make_lab(tiers=["100ms"], events=True)
    worker = lab.worker(pool)
    names = list(ALL)
    random.Random(6).shuffle(names)
    ids = send(lab, [ALL[name] for name in names])

    kept_all(lab, ALL, worker)
    wait_for(lambda: {line["id"] for line in lab.attempts()} >= set(ids), "all healthy tasks")
    wait_for(lambda: not any(lab.counts("shop", "shop.quarantine").values()), "empty queues")
    assert lab.task("healthy").delay(1).get(timeout=SECONDS) == 1


def test_nothing_is_lost_in_a_queue_that_does_not_dead_letter(make_lab: Callable[..., Lab]) -> None:
    lab = make_lab(tiers=["100ms"])
    with lab.app.connection_for_write() as connection:
        connection.default_channel.queue_declare("shop", durable=True, auto_delete=False)
    worker = lab.worker("prefork", 1)
    ids = send(lab, list(BODIES.values()))

    kept_all(lab, BODIES, worker)
    wait_for(lambda: {line["id"] for line in lab.attempts()} >= set(ids), "all healthy tasks")
