"""A collector that is killed again and again loses nothing and counts nothing twice."""

import itertools
import os
import random
import signal
import time
from collections import Counter
from typing import Any

import amqp
import pytest
from django.db.models import Sum

from celery_rmq_delay.contrib.django.models import Attempt, Payload, Tally, TaskRecord, UnreadableMessage
from celery_rmq_delay.events.schema import EXHAUSTED, RECOVERED, Event
from tests.support.corpus import slow
from tests.support.django.collecting import Nursery, events_of
from tests.support.django.history import rows
from tests.support.django.reported import life, message
from tests.support.waiting import wait_for

#: Failing tasks for each kill: exhausted ones, recovered ones.
EXHAUSTED_EACH, RECOVERED_EACH = 40, 80


def what_happens(block):
    """Return 400 events and 40 messages of the exhausted queue."""
    made: list[Any] = []
    for number in range(EXHAUSTED_EACH):
        made += [*events_of(life(f"exhausted-{block}-{number}", 3, EXHAUSTED)), message(f"exhausted-{block}-{number}")]
    for number in range(RECOVERED_EACH):
        made += events_of(life(f"recovered-{block}-{number}", 2, RECOVERED))
    return made


@pytest.mark.parametrize("database", ["postgres"], indirect=True)
@pytest.mark.parametrize(
    ("kills", "files"), [(2, True), slow(12, True), slow(50, False)], ids=["few", "files", "tables"]
)
def test_a_collector_killed_repeatedly_writes_every_message_once(rig, tmp_path, kills, files):
    """Each message is in the tables once and in the files at least once; the files are complete."""
    dice = random.Random(20261121)
    blocks, interrupted = 0, 0
    sent, waiting = list[Event | amqp.Message](), list[Event | amqp.Message]()
    with Nursery(rig, **({"HISTORY_URL": str(tmp_path)} if files else {})) as nursery:
        for blocks in itertools.count(1):
            waiting += what_happens(blocks)
            dice.shuffle(waiting)
            portion, waiting = waiting[: len(waiting) // 2], waiting[len(waiting) // 2 :]
            sent += portion
            rig.send(*portion)
            before, known = rig.left(), len(list(tmp_path.rglob("*.parquet*")))
            options = ["--batch", str(dice.choice((5, 20, 100) if files else (20, 100, 500)))]
            collector = nursery.start(*options, "--file-seconds", str(dice.choice((0, 0.02, 0.1))))
            wait_for(lambda b=before: rig.left() < b, "the collector to take something")
            if files:
                wait_for(lambda k=known: len(list(tmp_path.rglob("*.parquet*"))) > k, "a file")
            time.sleep(dice.uniform(0.0, 0.1) if files else dice.uniform(0.05, 0.4))  # a random moment, not a wait
            os.kill(collector, signal.SIGKILL)
            nursery.wait()
            interrupted += bool(rig.left())
            if interrupted == kills:
                break
        sent += waiting
        rig.send(*waiting)
        nursery.start("--once")
        nursery.wait()

    print(f"{interrupted} of {blocks} kills left messages; then {len(sent)} in the tables")
    assert rig.left() == 0
    exhausted, recovered = blocks * EXHAUSTED_EACH, blocks * RECOVERED_EACH
    states = Counter(TaskRecord.objects.values_list("state", flat=True))
    assert states == {"EXHAUSTED": exhausted, "RECOVERED": recovered}
    assert Attempt.objects.count() == 4 * exhausted + 3 * recovered
    assert Payload.objects.count() == exhausted
    assert Attempt.objects.exclude(traceback="").count() == exhausted
    assert UnreadableMessage.objects.count() == 0
    counted = Tally.objects.aggregate(parked=Sum("parked"), recovered=Sum("recovered"), exhausted=Sum("exhausted"))
    assert counted == {"parked": 3 * exhausted + 2 * recovered, "recovered": recovered, "exhausted": exhausted}
    if files:
        wanted = {each.event_id for each in sent if isinstance(each, Event)}
        assert {row["event_id"] for row in rows(tmp_path)} == wanted
