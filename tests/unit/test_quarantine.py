"""Quarantined tasks of a worker while its pool is full."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from kombu import Connection

from celery_rmq_delay.worker.quarantine import Quarantine


class Rig:
    """Quarantined tasks of a worker whose one process is busy: ``looks`` has its timer's calls, ``now`` its clock."""

    def __init__(self, connection):
        self.now = 100.0
        self.looks: list[Callable[[], None]] = []
        timer = SimpleNamespace(call_after=lambda _seconds, _soon, args: self.looks.append(args[0]))
        self.jobs = {1: SimpleNamespace(ready=lambda: False)}
        self.consumer: Any = SimpleNamespace(
            connection=connection,
            app=SimpleNamespace(conf=SimpleNamespace(accept_content=["json"])),
            controller=SimpleNamespace(autoscaler=None),
            pool=SimpleNamespace(num_processes=1, _pool=SimpleNamespace(_cache=self.jobs)),
            timer=timer,
            call_soon=None,
        )
        publisher: Any = SimpleNamespace(is_blocked=False)
        self.quarantine = Quarantine(self.consumer, publisher, lambda _: None, lambda *_: None)

    def look(self, seconds=0.1):
        """Let so many seconds pass, and check for a free process."""
        self.now += seconds
        (look,) = self.looks
        self.looks.clear()
        look()


@pytest.fixture
def rig(monkeypatch):
    with Connection("memory://") as connection:
        connection.default_channel.queue_declare("q.quarantine")
        rig = Rig(connection)
        monkeypatch.setattr("celery_rmq_delay.worker.quarantine.time", SimpleNamespace(monotonic=lambda: rig.now))
        rig.quarantine._channel.basic_cancel = lambda _tag, **_: None  # kombu's has no nowait
        rig.quarantine._channel.callbacks = {}
        rig.quarantine.add("q")
        rig.quarantine.start()
        rig.quarantine.wait_for_room("q")
        yield rig


def test_held_actions_go_on_after_one_of_them_has_raised(rig):
    done: list[str] = []

    def fail():
        raise RuntimeError("a result backend")

    for act in (lambda: done.append("first"), fail, lambda: done.append("last")):
        assert rig.quarantine.holds
        rig.quarantine.hold(act)
    rig.jobs.clear()
    rig.look()  # a process is free: the quarantined tasks are consumed, and come first
    rig.quarantine.note_begun()
    with pytest.raises(RuntimeError):
        rig.look(1)
    rig.look()
    assert done == ["first", "last"]


def test_quarantined_tasks_and_others_go_first_for_the_same_time(rig):
    done: list[str] = []
    rig.quarantine.hold(lambda: done.append("held"))
    rig.look(9)
    assert rig.quarantine.holds  # no process is free
    rig.jobs.clear()
    rig.look(0.9)
    rig.quarantine.note_begun()
    rig.quarantine.wait_for_room("q")
    rig.look()
    assert rig.quarantine.holds
    assert not done
    rig.jobs[1] = SimpleNamespace(ready=lambda: False)
    rig.quarantine.wait_for_room("q")
    rig.look(1)  # quarantined tasks came first for 1.1 s
    assert done == ["held"]
    for _ in range(10):
        assert not rig.quarantine.holds
        rig.look(0.105)
    rig.look(0.105)
    assert rig.quarantine.holds


def test_others_are_not_held_for_quarantined_tasks_that_do_not_come(rig):
    rig.jobs.clear()
    rig.look()
    rig.look(0.8)
    assert rig.quarantine.holds
    rig.look(0.3)
    assert not rig.quarantine.holds
    assert not rig.looks


def test_the_maximum_of_an_autoscaler_is_followed_when_it_changes(rig):
    assert not rig.quarantine.have_room
    rig.consumer.controller.autoscaler = SimpleNamespace(max_concurrency=4)
    assert rig.quarantine.have_room
    rig.consumer.controller.autoscaler.max_concurrency = 1
    assert not rig.quarantine.have_room
