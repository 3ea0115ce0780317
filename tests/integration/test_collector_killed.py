"""A collector that is killed again and again loses nothing and counts nothing twice."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import amqp
import pytest
from django.db.models import Sum

from celery_rmq_delay.contrib.django.models import Attempt, Payload, Tally, TaskRecord, UnreadableMessage
from celery_rmq_delay.events import EXHAUSTED, RECOVERED, Event
from tests.django.conftest import postgres, postgres_tables
from tests.django.databases import Database
from tests.django.told import life, message
from tests.waiting import wait_for

from .collecting import CHECKOUT, Rig, events_of

__all__ = ["postgres", "postgres_tables"]  # fixtures

KILLS = 50


def what_happens(dice: random.Random) -> list[Event | amqp.Message]:
    """Return 20,000 events and 2,000 exhausted messages: 2,000 tasks exhausted, 4,000 recovered; at random."""
    told: list[Any] = []
    for number in range(2_000):
        told += [*events_of(life(f"exhausted-{number}", 3, EXHAUSTED)), message(f"exhausted-{number}")]
    for number in range(4_000):
        told += events_of(life(f"recovered-{number}", 2, RECOVERED))
    dice.shuffle(told)
    return told


@contextmanager
def nursery(rig: Rig) -> Iterator[subprocess.Popen[str]]:
    """Run `collector_nursery` on the queues and tables of ``rig``."""
    project = CHECKOUT / "example_django_project"
    own = {"DJANGO_SETTINGS_MODULE": "shop.settings", "PYTHONPATH": os.pathsep.join(map(str, (CHECKOUT, project)))}
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-m", "tests.integration.collector_nursery"],
        cwd=CHECKOUT,
        env={**os.environ, **own, "BROKER_URL": rig.url, **rig.environ},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    with process:
        try:
            yield process
            assert process.stdin is not None
            process.stdin.close()
            assert process.wait(30) == 0
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # a collector that still runs, too


def start(process: subprocess.Popen[str], *arguments: str) -> int:
    """Start a collector; return its process id."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(" ".join(arguments) + "\n")
    process.stdin.flush()
    return int(process.stdout.readline())


def wait_until_ended(process: subprocess.Popen[str]) -> None:
    """Wait for the end of the collector that was started last."""
    assert process.stdout is not None
    assert process.stdout.readline() == "ended\n"


@pytest.mark.timeout(600)
def test_a_collector_killed_fifty_times_writes_every_message_once(rmq_vhost: str, postgres: Database) -> None:
    dice = random.Random(20261121)
    told = what_happens(dice)
    rig = Rig(rmq_vhost, postgres.environ)
    begun, interrupted = time.monotonic(), 0
    portion = -(-len(told) // KILLS)
    with nursery(rig) as process:
        for first in range(0, len(told), portion):
            rig.tell(*told[first : first + portion])
            before, collector = rig.left(), start(process, "--batch", str(dice.choice((20, 100, 500))))
            wait_for(lambda before=before: rig.left() < before, "the collector to take something")
            time.sleep(dice.uniform(0.05, 0.4))
            os.kill(collector, signal.SIGKILL)
            wait_until_ended(process)
            interrupted += bool(rig.left())
        start(process, "--once")
        wait_until_ended(process)
    seconds = time.monotonic() - begun

    print(f"{KILLS} kills in {seconds:.0f} s, {interrupted} of them with messages left; then {len(told)} in the tables")
    assert interrupted > KILLS / 2, "most kills came too late to matter"
    assert rig.left() == 0
    rig.close()
    states = Counter(TaskRecord.objects.values_list("state", flat=True))
    assert states == {"EXHAUSTED": 2_000, "RECOVERED": 4_000}
    assert Attempt.objects.count() == 20_000
    assert Payload.objects.count() == 2_000
    assert Attempt.objects.exclude(traceback="").count() == 2_000
    assert UnreadableMessage.objects.count() == 0
    counted = Tally.objects.aggregate(parked=Sum("parked"), recovered=Sum("recovered"), exhausted=Sum("exhausted"))
    assert counted == {"parked": 14_000, "recovered": 4_000, "exhausted": 2_000}
