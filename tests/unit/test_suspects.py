"""What a worker does with its suspects while its pool is full."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from kombu import Connection

from celery_rmq_delay.worker.suspects import Suspects


class Rig:
    """Suspects of a worker whose one process is busy; ``looks`` has what its timer is to call, ``now`` is its clock."""

    def __init__(self, connection: Connection) -> None:
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
        self.suspects = Suspects(self.consumer, publisher, lambda _: None, lambda *_: None)

    def look(self, seconds: float = 0.1) -> None:
        """Let so many seconds pass, and look for a free process."""
        self.now += seconds
        (look,) = self.looks
        self.looks.clear()
        look()


@pytest.fixture
def rig(monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    with Connection("memory://") as connection:
        connection.default_channel.queue_declare("q.suspects")
        rig = Rig(connection)
        monkeypatch.setattr("celery_rmq_delay.worker.suspects.time", SimpleNamespace(monotonic=lambda: rig.now))
        rig.suspects._channel.basic_cancel = lambda _tag, **_: None  # kombu's knows no nowait
        rig.suspects._channel.callbacks = {}
        rig.suspects.add("q")
        rig.suspects.start()
        rig.suspects.wait_for_room("q")
        yield rig


def test_what_is_held_goes_on_after_one_of_it_has_raised(rig: Rig) -> None:
    done: list[str] = []

    def fail() -> None:
        raise RuntimeError("a result backend")

    for act in (lambda: done.append("first"), fail, lambda: done.append("last")):
        assert rig.suspects.holds
        rig.suspects.hold(act)
    rig.jobs.clear()
    rig.look()  # a process is free: the suspects are consumed, and come first
    rig.suspects.note_begun()
    with pytest.raises(RuntimeError):
        rig.look(1)
    rig.look()
    assert done == ["first", "last"]


def test_suspects_and_others_go_first_for_the_same_time(rig: Rig) -> None:
    done: list[str] = []
    rig.suspects.hold(lambda: done.append("held"))
    rig.look(9)
    assert rig.suspects.holds  # no process is free
    rig.jobs.clear()
    rig.look(0.9)
    rig.suspects.note_begun()
    rig.suspects.wait_for_room("q")
    rig.look()
    assert rig.suspects.holds
    assert not done
    rig.jobs[1] = SimpleNamespace(ready=lambda: False)
    rig.suspects.wait_for_room("q")
    rig.look(1)  # suspects came first for 1.1 s
    assert done == ["held"]
    for _ in range(10):
        assert not rig.suspects.holds
        rig.look(0.105)
    rig.look(0.105)
    assert rig.suspects.holds


def test_others_are_not_held_for_suspects_that_do_not_come(rig: Rig) -> None:
    rig.jobs.clear()
    rig.look()
    rig.look(0.8)
    assert rig.suspects.holds
    rig.look(0.3)
    assert not rig.suspects.holds
    assert not rig.looks


def test_the_maximum_is_that_of_an_autoscaler_whatever_it_was_at_the_start(rig: Rig) -> None:
    assert not rig.suspects.have_room
    rig.consumer.controller.autoscaler = SimpleNamespace(max_concurrency=4)
    assert rig.suspects.have_room
    rig.consumer.controller.autoscaler.max_concurrency = 1
    assert not rig.suspects.have_room
