"""The registry of topologies for exact delays.

A topology is a class that takes `Options` and implements `Topology`, and one line in `_FACTORIES`, or a call of
`register` in another package.
"""

from __future__ import annotations

from collections.abc import Callable

from ...exceptions import SettingsError
from .alternatives import Hold, Loop, Plugin
from .base import Options, Topology
from .levels import Levels

Factory = Callable[[Options], Topology]

_FACTORIES: dict[str, Factory] = {"levels": Levels, "hold": Hold, "loop": Loop, "plugin": Plugin}


def register(name: str, factory: Factory) -> None:
    """Register a topology under a name for the setting ``exact_delays``. Call it before ``install``."""
    if _FACTORIES.get(name, factory) is not factory:
        raise SettingsError("exact_delays", name, "Another topology has this name: register yours under another one.")
    _FACTORIES[name] = factory


def known() -> tuple[str, ...]:
    """Return the names of all topologies."""
    return tuple(_FACTORIES)


def make(name: str, options: Options) -> Topology:
    """Return the topology of that name."""
    return _FACTORIES[name](options)
