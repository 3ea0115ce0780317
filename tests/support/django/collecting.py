"""A collector on a broker and a database: in this process, or as a command of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import amqp
import kombu
from celery import Celery

from celery_rmq_delay import install
from celery_rmq_delay.amqp.apply import ready_counts
from celery_rmq_delay.app.state import AppState, state_of
from celery_rmq_delay.contrib.django.collecting.batches import Writer
from celery_rmq_delay.contrib.django.collecting.collector import Collector, Options
from celery_rmq_delay.contrib.django.collecting.consumer import Consumer
from celery_rmq_delay.contrib.django.collecting.database import Database
from celery_rmq_delay.contrib.django.collecting.facts import Reader
from celery_rmq_delay.contrib.django.collecting.gathering import History, open_files
from celery_rmq_delay.contrib.django.collecting.status import Health, Status
from celery_rmq_delay.events.queue import declare_events
from celery_rmq_delay.events.schema import Event
from tests.support import ROOT
from tests.support.processes import as_a_background_job
from tests.support.waiting import SECONDS

PROJECT = ROOT / "example_django_project"
MANAGE = PROJECT / "manage.py"
EVENTS, EXHAUSTED = "rmq_delay.events", "rmq_delay.exhausted"


class Rig:
    """The two queues of a vhost, and collectors on them."""

    def __init__(self, url: str, environ: dict[str, str]) -> None:
        self.url, self.environ = url, environ
        #: The place of history files, if any.
        self.history: str | None = None
        app = Celery("collected", broker=url, set_as_current=False)
        app.conf.rmq_delay = {}
        install(app)
        self.delay: AppState = state_of(app)
        self.connection = kombu.Connection(url)
        self.channel: Any = self.connection.channel()
        declare_events(self.connection, self.delay)
        self.channel.queue_declare(EXHAUSTED, durable=True, auto_delete=False, arguments={"x-queue-type": "classic"})

    def close(self) -> None:
        self.connection.release()

    def send(self, *items: Event | amqp.Message | bytes) -> None:
        """Publish events, their bytes, or messages of the exhausted queue; the broker has them when this returns."""
        with kombu.Connection(self.url) as connection:
            channel: Any = connection.channel()
            for each in items:
                if isinstance(each, amqp.Message):
                    channel.basic_publish(each, "", EXHAUSTED)
                else:
                    body = each.to_json() if isinstance(each, Event) else each
                    channel.basic_publish(amqp.Message(body, delivery_mode=2), "", EVENTS)
            channel.queue_declare(EVENTS, passive=True)  # the broker answers when it has routed all of them

    def collector(self, stop: threading.Event | None = None, health: Health | None = None, **options: Any) -> Collector:
        """Return a collector that works in this process."""
        stop, database, work = stop or threading.Event(), Database(), Options(**options)
        history = None if self.history is None else History(open_files(self.history))
        writer = Writer(Reader(EVENTS, self.delay.settings.redaction), database, stop, history=history)
        status = Status("test", EVENTS, database, writer)
        consumer = Consumer(self.delay, [EVENTS, EXHAUSTED], work.prefetch(gathers=writer.gathers))
        return Collector(work, consumer, writer, status, health or Health(), stop)

    def collect(self, **options: Any) -> None:
        """Collect until the queues are empty."""
        self.collector(once=True, **options).run()

    @contextmanager
    def collecting(self, health: Health | None = None, **options: Any) -> Iterator[Health]:
        """Collect in a thread for the length of the block."""
        stop, health = threading.Event(), health or Health()
        collector = self.collector(stop, health, **options)
        thread = threading.Thread(target=collector.run)
        thread.start()
        try:
            yield health
        finally:
            stop.set()
            thread.join(SECONDS)
            assert not thread.is_alive()

    def left(self) -> int:
        """Return the number of ready messages in the queues."""
        with kombu.Connection(self.url) as connection:
            return sum(count or 0 for count in ready_counts(connection, [EVENTS, EXHAUSTED]).values())

    @contextmanager
    def command(self, *arguments: str, **environ: str) -> Iterator[subprocess.Popen[str]]:
        """Run ``manage.py rmq_delay_collect``; it ends with the block at the latest."""
        process = subprocess.Popen(
            [sys.executable, "-W", "ignore", MANAGE, "rmq_delay_collect", *arguments],
            env={**os.environ, "PYTHONPATH": str(ROOT), "BROKER_URL": self.url, **self.environ, **environ},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            preexec_fn=as_a_background_job,
        )
        with process:
            try:
                yield process
            finally:
                process.kill()


class Nursery:
    """A process with everything loaded that forks collectors, one after the other: `collector_nursery`."""

    def __init__(self, rig: Rig, **environ: str) -> None:
        own = {"DJANGO_SETTINGS_MODULE": "shop.settings", "PYTHONPATH": os.pathsep.join(map(str, (ROOT, PROJECT)))}
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", "tests.support.django.collector_nursery"],
            cwd=ROOT,
            env={**os.environ, **own, "BROKER_URL": rig.url, **rig.environ, **environ},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def __enter__(self) -> Nursery:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        with self._process:
            try:
                if kind is None:
                    assert self._process.stdin is not None
                    self._process.stdin.close()
                    assert self._process.wait(SECONDS) == 0
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(self._process.pid, signal.SIGKILL)  # a collector that still runs, too

    def start(self, *arguments: str) -> int:
        """Start a collector; return its process id."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(" ".join(arguments) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def wait(self) -> None:
        """Wait for the end of the collector that was started last."""
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "ended\n"


def ended(process: subprocess.Popen[str], number: int | None = None, seconds: float = SECONDS) -> tuple[int, str]:
    """Wait for a process, after a signal where given; return its exit code and output."""
    if number is not None:
        process.send_signal(number)
    output, _ = process.communicate(timeout=seconds)
    return process.returncode, output


def events_of(facts: Iterable[Any]) -> list[Event]:
    """Return the events of these facts."""
    return [fact.event for fact in facts if fact.message is None]
