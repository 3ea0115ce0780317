"""Tools for tests of retries: ladders in memory, assertions, a private broker, and pytest fixtures.

The names below are imported at first use: pytest loads this package in every run, for the fixtures of
:mod:`celery_rmq_delay.testing.plugin`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from ..exceptions import NotFinishedError, PrivateServerError, ServerNotFoundError, ServerStartError

if TYPE_CHECKING:
    from .clock import LadderClock
    from .memory import MemoryLadder
    from .servers.broker import PrivateBroker
    from .story import Attempt, TaskStory, exhausted, parked, recovered
    from .worker import BrokerLadder

__all__ = [
    "Attempt",
    "BrokerLadder",
    "LadderClock",
    "MemoryLadder",
    "NotFinishedError",
    "PrivateBroker",
    "PrivateServerError",
    "ServerNotFoundError",
    "ServerStartError",
    "TaskStory",
    "exhausted",
    "parked",
    "recovered",
]

_MODULES = {
    "Attempt": "story",
    "BrokerLadder": "worker",
    "LadderClock": "clock",
    "MemoryLadder": "memory",
    "PrivateBroker": "servers.broker",
    "TaskStory": "story",
    "exhausted": "story",
    "parked": "story",
    "recovered": "story",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
