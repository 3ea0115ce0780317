"""A database that is down for a minute delays no task, and no data is missing when it is back."""

import threading
import time
from collections import Counter
from contextlib import closing, contextmanager
from typing import Any

import pytest
from django.db import connections

from celery_rmq_delay.contrib.django.models import Attempt, TaskRecord
from tests.support.django.collecting import Rig
from tests.support.django.databases import migrated, postgres_database, using
from tests.support.servers.postgres import PrivatePostgres
from tests.support.waiting import SECONDS, wait_for
from tests.support.workers.lab import close_results

#: Tasks per second that are sent all the time; each fails at first and runs twice.
RATE = 10


class Sender:
    """Sends tasks at `RATE` and records when each was sent."""

    def __init__(self, lab):
        self.sent: dict[str, float] = {}
        self._task: Any = lab.task("fails")
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._send)

    @contextmanager
    def sending(self):
        self._thread.start()
        try:
            yield
        finally:
            self.stop()

    def stop(self):
        self._stop.set()
        self._thread.join(SECONDS)

    def _send(self):
        while not self._stop.wait(1 / RATE):
            self.sent[self._task.delay(1).id] = time.time()
        close_results(self._task.app)


@pytest.fixture
def postgres_alone(rmq_postgres, django_db_blocker):
    """A server that only this test stops; ``rmq_postgres`` skips the test if there is none."""
    with PrivatePostgres(durable=True) as server, postgres_database(server) as found:
        migrated(found, django_db_blocker)
        with django_db_blocker.unblock(), using(found):
            yield server, found


@pytest.mark.slow
@pytest.mark.parametrize("seconds_down", [8.0, 60.0])
def test_workers_go_on_while_the_database_is_down_and_nothing_is_missing_afterwards(
    make_lab, postgres_alone, rmq_vhost, seconds_down
):
    server, found = postgres_alone
    lab = make_lab(tiers=["500ms", "500ms"], events=True)
    lab.worker()
    sender = Sender(lab)
    with closing(Rig(rmq_vhost, found.environ)) as rig, rig.command("--batch", "10") as collector, sender.sending():
        wait_for(
            lambda: TaskRecord.objects.filter(state="RECOVERED").count() > 2 * RATE, "the first tasks in the table"
        )
        connections.close_all()  # this process's own
        server.stop()
        begun = time.time()
        time.sleep(seconds_down)
        expected = {task for task, at in sender.sent.items() if at < begun + seconds_down / 2}
        wait_for(lambda: {line["id"] for line in lab.attempts() if line["retries"] == 1} >= expected, "their retries")
        assert rig.left() > RATE * seconds_down / 2, "the events wait in their queue"
        server.start()
        back = time.time()
        wait_for(lambda: max(list(sender.sent.values())) > back, "a task that is sent afterwards")
        sender.stop()
        assert collector.poll() is None, "the collector waits"
        wait_for(lambda: rig.left() == 0, "the collector to catch up")
        everything = set(sender.sent)
        wait_for(lambda: TaskRecord.objects.filter(state="RECOVERED").count() == len(everything), "every task")

    runs = Counter(line["id"] for line in lab.attempts())
    print(f"{len(everything)} tasks, {len(expected)} of them done while the database was down for {seconds_down:.0f} s")
    assert set(runs.values()) == {2}
    assert set(TaskRecord.objects.values_list("task_id", flat=True)) == everything
    assert Attempt.objects.count() == 2 * len(everything)
