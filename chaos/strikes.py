"""Definition of a fault: its name, duration, the parts that it touches, and its effect on tasks. Pure."""

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
    """The effect of a strike, by which `checker` explains additional executions."""

    #: Ends pool processes, whose ids are the victims: their attempts count as failed.
    CHILD = "child"
    #: Ends or restarts worker processes, whose ids are the victims: what they held is delivered again.
    WORKER = "worker"
    #: Ends worker processes gracefully, whose ids are the victims: no effect, except in an alarm: then as `WORKER`.
    ORDERLY = "orderly"
    #: Ends connections, of the workers whose ids are the victims, or all of them: what they held is delivered again.
    CONNECTION = "connection"
    #: Ends the broker, or a node of it: all connections, and what it was moving may come twice.
    BROKER = "broker"
    #: Delays the data between workers and broker; by itself it duplicates nothing.
    STALL = "stall"
    #: The broker reads no published messages: a `STALL`, in which a worker that ends cannot make copies.
    ALARM = "alarm"
    #: Ends the result backend: delays storing results; for Celery a result that cannot be stored is a failure.
    RESULTS = "results"
    #: Deletes an origin queue for a while: tasks due meanwhile are exhausted as undeliverable.
    GONE = "gone"
    #: No effect on tasks.
    NONE = "none"


@dataclass
class Victims:
    """The processes that a strike met; None: all of them. A fault may add some while it lasts.

    ``effect`` is the effect of the strike, if it differs from that of its fault.
    """

    pids: list[int] | None = field(default_factory=list)
    effect: Effect | None = None


@dataclass(frozen=True)
class Fault:
    """A kind of fault. ``strike`` is entered when it begins, and exits when it is over and the system has recovered."""

    name: str
    strike: Callable[[World, Random], AbstractContextManager[Victims]]
    effect: Effect
    #: Least and most seconds between beginning and end.
    lasts: tuple[float, float] = (0.0, 0.0)
    #: Parts of the world, by name, that no other strike may touch meanwhile.
    touches: frozenset[str] = frozenset()
    #: Approximate seconds that beginning and end take.
    takes: float = 1.0
    #: Its effect on all other processes.
    to_all: Effect | None = None
