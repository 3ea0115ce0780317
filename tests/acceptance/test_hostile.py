"""Hostile messages between healthy ones: all healthy ones run, all hostile ones are kept, no worker ends."""

import random
import time
from collections import Counter

import pytest

from tests.support.brokers.lab import contents
from tests.support.corpus import slow
from tests.support.waiting import SECONDS, wait_for
from tests.support.workers.hostile_messages import ALL, BODIES
from tests.support.workers.other_producer import publish

EXHAUSTED = "rmq_delay.exhausted"


def send(lab, hostile):
    """Publish hostile messages with a healthy task before each; return the ids of those."""
    healthy = lab.task("healthy")
    ids = []
    for number, message in enumerate(hostile):
        ids.append(healthy.delay(number).id)
        publish(lab, message)
    return [*ids, healthy.delay(-1).id]


def missing(lab, hostile, found):
    """Move the messages of the exhausted queue into ``found``; return the names of those still missing.

    There may be more: some hostile messages make the worker send others.
    """
    found += [contents(each) for each in lab.take(EXHAUSTED)]
    left = Counter(found)
    left.subtract(contents(each) for each in hostile.values())
    return [name for name, each in hostile.items() if left[contents(each)] < 0]


def kept_all(lab, hostile, worker):
    found: list[bytes] = []
    deadline = time.monotonic() + SECONDS
    while names := missing(lab, hostile, found):
        assert not worker.exited, worker.logs()[-3000:]
        assert time.monotonic() < deadline, (
            f"{names} not in the exhausted queue; {lab.counts('shop', 'shop.quarantine')}"
        )
        time.sleep(0.1)


@pytest.mark.parametrize("pool", ["prefork", *(slow(pool) for pool in ("threads", "gevent", "solo"))])
def test_hostile_messages_end_in_the_exhausted_queue_and_the_others_run(make_lab, pool):
    lab = make_lab(tiers=["100ms"], events=True)
    worker = lab.worker(pool)
    names = list(ALL)
    random.Random(6).shuffle(names)
    ids = send(lab, [ALL[name] for name in names])

    kept_all(lab, ALL, worker)
    wait_for(lambda: {line["id"] for line in lab.attempts()} >= set(ids), "all healthy tasks")
    wait_for(lambda: not any(lab.counts("shop", "shop.quarantine").values()), "empty queues")
    assert lab.task("healthy").delay(1).get(timeout=SECONDS) == 1


def test_nothing_is_lost_in_a_queue_that_does_not_dead_letter(make_lab):
    lab = make_lab(tiers=["100ms"])
    lab.declare()
    worker = lab.worker("prefork", 1)
    ids = send(lab, list(BODIES.values()))

    kept_all(lab, BODIES, worker)
    wait_for(lambda: {line["id"] for line in lab.attempts()} >= set(ids), "all healthy tasks")
