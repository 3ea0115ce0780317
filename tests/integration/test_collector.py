"""From the queues of a real broker into the tables of a real database."""

import json
import logging
import random
import signal
import threading
from datetime import datetime, timezone
from io import StringIO
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

import pytest
from django.core.management import call_command
from django.db import OperationalError
from django.db.models import Sum

from celery_rmq_delay.contrib.django.collecting import batches as writing
from celery_rmq_delay.contrib.django.collecting import status as watching
from celery_rmq_delay.contrib.django.collecting.consumer import Consumer
from celery_rmq_delay.contrib.django.collecting.database import Database as Collected
from celery_rmq_delay.contrib.django.collecting.status import Health
from celery_rmq_delay.contrib.django.models import (
    Attempt,
    CollectorStatus,
    Payload,
    Tally,
    TaskRecord,
    TaskState,
    UnreadableMessage,
)
from celery_rmq_delay.events.schema import EXHAUSTED, PARKED, RECOVERED
from celery_rmq_delay.testing.servers.host import free_port
from tests.support.django import shop
from tests.support.django.collecting import ended, events_of
from tests.support.django.reported import event, life, message
from tests.support.waiting import wait_for


def state_of_each():
    return dict(TaskRecord.objects.values_list("task_id", "state"))


def test_events_and_exhausted_messages_come_into_the_tables_and_leave_the_queues(rig):
    rig.send(event("a", PARKED), event("b", PARKED), event("b", RECOVERED, 1), event("c", EXHAUSTED, 3), message("c"))
    rig.collect()
    assert state_of_each() == {"a": TaskState.PARKED, "b": TaskState.RECOVERED, "c": TaskState.EXHAUSTED}
    assert (Attempt.objects.count(), Payload.objects.count()) == (4, 1)
    assert rig.left() == 0


def test_the_command_drains_the_queues_and_ends(rig):
    rig.send(*(event(f"t{number}") for number in range(300)), *(message(f"x{number}") for number in range(30)))
    with rig.command("--once", "--batch", "100") as process:
        code, output = ended(process)
    assert (code, "Ended: 300 events and 30 exhausted messages collected" in output) == (0, True), output
    assert TaskRecord.objects.count() == 330
    assert rig.left() == 0


def test_health_is_reported_over_http_and_by_a_file_and_sigterm_finishes_pending_work(rig, tmp_path):
    file, port = tmp_path / "healthy", free_port()
    with rig.command("--batch", "20000", "--http", f":{port}", "--health-file", str(file)) as process:
        wait_for(file.exists, "the file")
        with urlopen(f"http://127.0.0.1:{port}/healthz", timeout=60) as answer:
            assert (answer.status, json.load(answer)) == (200, {"ok": True, "problem": None})
        wait_for(lambda: CollectorStatus.objects.exists(), "the collector's status")
        rig.send(*(event(f"t{number}") for number in range(500)))
        code, output = ended(process, signal.SIGTERM)
    assert code == 0, output
    assert TaskRecord.objects.count() + rig.left() == 500
    assert not CollectorStatus.objects.exists()


@pytest.mark.slow
def test_a_health_file_that_cannot_be_written_does_not_stop_the_collector(rig, tmp_path, monkeypatch, caplog):
    """Its folder disappears, then a file is in its place, then the folder is back."""
    monkeypatch.setattr(watching, "_TOUCH", 0.0)
    caplog.set_level(logging.INFO)
    folder = tmp_path / "run"
    folder.mkdir()
    health = Health(folder / "healthy")
    folder.rmdir()

    def logged():
        return [each for each in caplog.messages if "--health-file" in each]

    with rig.collecting(health):
        rig.send(*(event(f"t{number}") for number in range(20)))
        wait_for(lambda: TaskRecord.objects.count() == 20 and rig.left() == 0, "empty queues")
        wait_for(lambda: len(logged()) == 1, "the first error")
        folder.touch()
        wait_for(lambda: len(logged()) == 2, "another error")
        folder.unlink()
        folder.mkdir()
        wait_for((folder / "healthy").exists, "the file")
        wait_for(lambda: len(logged()) > 2, "the end of the errors")
    assert [each.partition(": ")[2].partition(".")[0] for each in logged()][:2] == [
        "No such file or directory",
        "Not a directory",
    ]
    assert logged()[-1] == f"--health-file {folder / 'healthy'} is written again"
    assert "The connection to the broker failed" not in caplog.text
    assert Tally.objects.get().parked == 20


@pytest.mark.slow
def test_a_health_file_in_a_missing_folder_is_refused_before_anything_is_read(rig, tmp_path):
    rig.send(event("t"))
    with rig.command("--once", "--health-file", str(tmp_path / "away" / "healthy")) as process:
        code, output = ended(process)
    assert code == 1
    assert output.splitlines()[-1] == (
        f"CommandError: --health-file: found {tmp_path / 'away'}: No such file or directory. "
        "Use a folder that exists and that this process may enter."
    )
    assert (rig.left(), TaskRecord.objects.count()) == (1, 0)


def test_small_batches_are_written_when_they_are_old(rig):
    with rig.collecting(age=0.05):
        rig.send(event("t", occurred_at=datetime.now(timezone.utc)))
        wait_for(state_of_each, "the task")
        wait_for(lambda: rig.left() == 0)
    assert Tally.objects.get().parked == 1


def outage(tasks):
    """Return events and messages of so many tasks, three times each, in random order; a tenth is exhausted."""
    reported: list[Any] = []
    for number in range(tasks):
        if number % 10:
            reported += events_of(life(f"t{number}", 2, RECOVERED))
        else:
            reported += [*events_of(life(f"t{number}", 1, EXHAUSTED)), message(f"t{number}", 1)]
    random.Random(4).shuffle(reported)
    return reported


def assert_everything_is_there_once(tasks):
    exhausted = tasks // 10
    counted = Tally.objects.aggregate(parked=Sum("parked"), recovered=Sum("recovered"), exhausted=Sum("exhausted"))
    assert counted == {
        "parked": 2 * (tasks - exhausted) + exhausted,
        "recovered": tasks - exhausted,
        "exhausted": exhausted,
    }
    assert sorted(state_of_each().values()) == sorted(
        [TaskState.RECOVERED] * (tasks - exhausted) + [TaskState.EXHAUSTED] * exhausted
    )
    assert (Payload.objects.count(), UnreadableMessage.objects.count()) == (exhausted, 0)


def test_several_collectors_share_the_work_and_count_everything_once(rig):
    with rig.collecting(batch=40, age=0.05), rig.collecting(batch=70, age=0.05), rig.collecting(batch=55, age=0.05):
        rig.send(*outage(500))
        wait_for(lambda: TaskRecord.objects.count() == 500 and rig.left() == 0, "empty queues", pause=0.1)
    assert rig.left() == 0
    assert_everything_is_there_once(500)


def test_a_broker_that_restarts_is_waited_for(rig, own_broker, caplog):
    rig.send(*outage(300))
    with rig.collecting(batch=20) as health:
        wait_for(TaskRecord.objects.exists, "the first batch")
        own_broker.restart()
        wait_for(lambda: health.problem is None, "the collector to be healthy again")
        wait_for(lambda: TaskRecord.objects.count() == 300 and rig.left() == 0, "empty queues", pause=0.1)
    assert rig.left() == 0
    assert "The connection to the broker failed" in caplog.text
    assert_everything_is_there_once(300)


@pytest.mark.slow
def test_a_collector_without_a_broker_reports_it(rig):
    port, closed = free_port(), free_port()
    with rig.command("--http", f":{port}", BROKER_URL=f"amqp://guest:guest@127.0.0.1:{closed}//") as process:
        answer = wait_for(lambda: refused(port, "The broker"), "503")
        assert "refused" in answer["problem"]
        code, output = ended(process, signal.SIGINT)
    assert code == 0, output


def refused(port, problem):
    """Return the status of an unhealthy collector; None until it reports ``problem``."""
    try:
        urlopen(f"http://127.0.0.1:{port}/healthz", timeout=60)
    except HTTPError as error:
        with error:
            status = json.load(error)
        return status if problem in status["problem"] else None
    except URLError:
        return None
    return None


def test_without_a_place_for_messages_the_exhausted_ones_stay_in_the_broker(rig):
    rig.send(event("t", EXHAUSTED, 3), message("t"))
    with shop.of(shop.make(rig.url), store_payload="never"):
        call_command("rmq_delay_collect", "--once", stdout=StringIO())
    assert state_of_each() == {"t": TaskState.EXHAUSTED}
    assert (rig.left(), Payload.objects.count()) == (1, 0)


def test_a_stop_after_an_outage_acks_nothing_behind_the_batch_that_it_leaves(rig, monkeypatch):
    """The next batch may be written by then, but acking it would ack the batch before it, too."""
    monkeypatch.setattr(writing, "FIRST_PAUSE", 60.0)
    write, is_away = Collected.write, threading.Event()

    def away_once(self, batch):
        if not is_away.is_set():
            is_away.set()
            raise OperationalError("the database is away")
        write(self, batch)

    monkeypatch.setattr(Collected, "write", away_once)
    events = [event(f"t{number}") for number in range(30)]
    rig.send(*events)
    with rig.collecting(batch=10):
        wait_for(is_away.is_set, "the outage")
        wait_for(lambda: rig.left() == 0, "a collector that holds all of them")
    wait_for(lambda: rig.left() == 30, "all of them back in their queue")
    rig.collect()
    assert state_of_each() == {each.task_id: TaskState.PARKED for each in events}


@pytest.mark.parametrize("state", [TaskState.EXHAUSTED, TaskState.DISCARDED, TaskState.REQUEUED])
def test_messages_that_come_again_after_their_commit_are_not_collected_twice(rig, state, monkeypatch):
    """The connection is lost between commit and ack; meanwhile a user has acted on the tasks."""
    ack, lost = Consumer.ack, list[int]()

    def losing(self, tag):
        if not lost:
            lost.append(tag)
            TaskRecord.objects.update(state=state)
            raise ConnectionResetError("the connection is lost")
        ack(self, tag)

    monkeypatch.setattr(Consumer, "ack", losing)
    bodies = [b"[[1], {}, {}]", b"[[2], {}, {}]"]
    rig.send(*(message("t", body=body) for body in bodies))
    rig.collect()
    assert (rig.left(), len(lost)) == (0, 1)
    kept = Payload.objects.order_by("record").values_list("record__state", "body")
    assert [(found, bytes(body)) for found, body in kept] == [(state, body) for body in bodies]


def test_several_collectors_lose_no_message_of_a_reused_task_id(rig):
    bodies = [f"[[{number}], {{}}, {{}}]".encode() for number in range(60)]
    with rig.collecting(batch=7, age=0.02), rig.collecting(batch=11, age=0.02):
        rig.send(*(message(f"t{number % 5}", number % 3, body=body) for number, body in enumerate(bodies)))
        wait_for(lambda: Payload.objects.count() == len(bodies) and rig.left() == 0, "all messages", pause=0.1)
    assert sorted(bytes(body) for body in Payload.objects.values_list("body", flat=True)) == sorted(bodies)
    assert set(state_of_each().values()) == {TaskState.EXHAUSTED}
