"""What a worker does with its suspects while its pool is full."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from kombu import Connection

from celery_rmq_delay.suspects import Suspects


class Rig:
    """Suspects of a worker whose pool has ``size`` processes and no task; ``looks`` has what its timer is to call."""

    def __init__(self, connection: Connection, size: int = 1) -> None:
        self.looks: list[Callable[[], None]] = []
        timer = SimpleNamespace(call_after=lambda _seconds, _soon, args: self.looks.append(args[0]))
        self.jobs = {1: SimpleNamespace(ready=lambda: False)}
        self.consumer: Any = SimpleNamespace(
            connection=connection,
            app=SimpleNamespace(conf=SimpleNamespace(accept_content=["json"])),
            controller=SimpleNamespace(autoscaler=None),
            pool=SimpleNamespace(num_processes=size, _pool=SimpleNamespace(_cache=self.jobs)),
            timer=timer,
            call_soon=None,
        )
        publisher: Any = SimpleNamespace(is_blocked=False)
        self.suspects = Suspects(self.consumer, publisher, lambda _: None, lambda *_: None)

    def look(self) -> None:
        self.looks.pop()()


@pytest.fixture
def rig() -> Iterator[Rig]:
    with Connection("memory://") as connection:
        connection.default_channel.queue_declare("q.suspects")
        rig = Rig(connection)
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
        rig.look()
    rig.look()
    assert done == ["first", "last"]


def test_the_maximum_is_that_of_an_autoscaler_whatever_it_was_at_the_start(rig: Rig) -> None:
    assert not rig.suspects.have_room
    rig.consumer.controller.autoscaler = SimpleNamespace(max_concurrency=4)
    assert rig.suspects.have_room
    rig.consumer.controller.autoscaler.max_concurrency = 1
    assert not rig.suspects.have_room
