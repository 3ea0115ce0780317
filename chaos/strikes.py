"""What a fault is: its name, how long it lasts, what it touches, what it can have done to a task. Pure."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from enum import Enum
from random import Random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from chaos.world import World


class Effect(str, Enum):
    """What a strike can explain; `checker` says how narrowly."""

    #: Ends pool processes, whose ids are the victims: their attempts count as failed.
    CHILD = "child"
    #: Ends or restarts worker processes, whose ids are the victims: what they held is delivered again.
    WORKER = "worker"
    #: Ends worker processes in good order, whose ids are the victims: nothing, except in an alarm; then as `WORKER`.
    ORDERLY = "orderly"
    #: Ends connections, of the workers whose ids are the victims, or all of them: what they held is delivered again.
    CONNECTION = "connection"
    #: Ends the broker, or a node of it: all connections, and what it was moving may come twice.
    BROKER = "broker"
    #: Holds up what workers and broker say to each other; by itself it doubles nothing.
    STALL = "stall"
    #: The broker reads nothing that is published: a `STALL`, in which a worker that ends cannot make copies.
    ALARM = "alarm"
    #: Ends the result backend: holds up who stores a result; one that cannot be stored is a failure, by Celery.
    RESULTS = "results"
    #: Deletes an origin queue for a while: what is due meanwhile is exhausted as undeliverable.
    GONE = "gone"
    #: Nothing that tasks could notice.
    NONE = "none"


@dataclass
class Victims:
    """The processes that a strike met; None are all of them. A fault may add to them as it goes on.

    ``effect`` is that of the strike, where it was another than that of its fault.
    """

    pids: list[int] | None = field(default_factory=list)
    effect: Effect | None = None


@dataclass(frozen=True)
class Fault:
    """A kind of fault. ``strike`` is entered when it begins and left when it is over, and all is well again."""

    name: str
    strike: Callable[[World, Random], AbstractContextManager[Victims]]
    effect: Effect
    #: Seconds between beginning and end, at least and at most.
    lasts: tuple[float, float] = (0.0, 0.0)
    #: What no other strike may touch meanwhile: names of parts of the world.
    touches: frozenset[str] = frozenset()
    #: Seconds that beginning and end may take themselves, by and large.
    takes: float = 1.0
    #: What it is to all processes besides.
    to_all: Effect | None = None
