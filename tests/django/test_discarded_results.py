"""Results of discarded tasks in result backends that store them, fail, or hang."""

import os
import signal
import socket
import threading
import time
from contextlib import contextmanager, suppress

import pytest
from celery.backends.base import DisabledBackend

from celery_rmq_delay.contrib.django.models import TaskRecord, TaskState
from celery_rmq_delay.contrib.django.services.actors import Actor
from celery_rmq_delay.contrib.django.services.operations import states
from celery_rmq_delay.contrib.django.services.operations.requests import freeze, run
from tests.support.django import shop
from tests.support.django.records import record
from tests.support.servers.redis import PrivateRedis
from tests.support.waiting import BUSY, wait_for

pytestmark = pytest.mark.usefixtures("tables")

NOTE = "The result backend failed (it does not answer): not all results are REVOKED"
NO_BROKER = "amqp://127.0.0.1:1//"


class HangingBackend(DisabledBackend):
    """A result backend that does not return before a test lets it."""

    released = threading.Event()

    def mark_as_revoked(self, *_, **__):
        self.released.wait(BUSY)


@pytest.fixture(autouse=True)
def short(monkeypatch):
    """Give up soon, with many windows of few tasks."""
    monkeypatch.setattr(states, "SILENCE", 0.5)
    monkeypatch.setattr(states, "WINDOW", 2)
    monkeypatch.setattr(states._Writer, "left", None)


@contextmanager
def silent_server():
    """A server that accepts connections and never answers: its Redis URL, and its connections."""
    accepted: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def accept():
            with suppress(OSError):
                while True:
                    accepted.append(server.accept()[0])

        thread = threading.Thread(target=accept)
        thread.start()
        try:
            yield f"redis://127.0.0.1:{server.getsockname()[1]}/0", accepted
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join(BUSY)
            for each in accepted:
                each.close()


def discarded(count=40):
    """Discard new tasks."""
    ids = [record().pk for _ in range(count)]
    return run(freeze("discard", TaskRecord.objects.filter(pk__in=ids), actor=Actor(None, "alice")))


def threads():
    return [each for each in threading.enumerate() if isinstance(each, states._Writer)]


def test_a_silent_result_backend_is_given_up_once_for_the_whole_operation(caplog):
    with silent_server() as (url, accepted), shop.of(shop.make(NO_BROKER, result_backend=url)):
        began = time.monotonic()
        operation = discarded()
        assert time.monotonic() - began < BUSY
        assert operation.message.startswith("40 discarded. The result backend failed (")
        assert caplog.text.count("The result backend has no REVOKED") == 1
        wait_for(lambda: not threads(), "the thread to end by itself")
        assert 1 <= len(accepted) <= 5, "those of one window"
    assert TaskRecord.objects.filter(state=TaskState.DISCARDED).count() == 40


@pytest.mark.filterwarnings("ignore:Call to deprecated setex:DeprecationWarning")  # by Celery
def test_a_stopped_redis_is_given_up_and_used_again_by_the_next_operation():
    with PrivateRedis() as redis, shop.of(shop.make(NO_BROKER, result_backend=redis.url)) as app:
        assert redis.pid is not None
        os.kill(redis.pid, signal.SIGSTOP)
        try:
            assert "not all results are REVOKED" in discarded(5).message
        finally:
            os.kill(redis.pid, signal.SIGCONT)
        wait_for(lambda: not threads(), "the thread to end by itself")
        assert discarded(5).message == "5 discarded"
        newest = TaskRecord.objects.latest("pk")
        assert app.AsyncResult(newest.task_id).state == "REVOKED"
        app.backend.client.connection_pool.disconnect()


def test_a_result_backend_that_still_hangs_gets_no_second_thread(monkeypatch):
    monkeypatch.setattr(HangingBackend, "released", threading.Event())
    with shop.of(shop.make(NO_BROKER, result_backend=f"{__name__}:HangingBackend")):
        assert discarded(5).message == f"5 discarded. {NOTE}"
        assert "it still hangs" in discarded(5).message
        assert len(threads()) == 1
        HangingBackend.released.set()
        wait_for(lambda: not threads(), "the thread to end")
        assert discarded(5).message == "5 discarded"


def test_results_that_take_long_together_are_given_up(monkeypatch):
    monkeypatch.setattr(states, "SECONDS", 0.3)
    monkeypatch.setattr(states, "SECONDS_PER_TASK", 0.0)
    monkeypatch.setattr(HangingBackend, "mark_as_revoked", lambda *_, **__: time.sleep(0.2))
    with shop.of(shop.make(NO_BROKER, result_backend=f"{__name__}:HangingBackend")):
        assert discarded(10).message == f"10 discarded. {NOTE}"
