"""The commands that errors, log lines and findings name: ``celery -A shop rmq-delay apply``."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import click
from celery.app.utils import find_app

if TYPE_CHECKING:
    from celery import Celery

#: What a command names where the app is not known, as in Celery's documentation.
PLACEHOLDER = "proj"
#: What ``-A`` takes for each app that has delay queues; None until a text needs it, when its modules are imported.
_NAMES: WeakKeyDictionary[Celery, str | None] = WeakKeyDictionary()
#: Names of an app, or of a module with it, that no other process can import.
_NO_MODULES = (None, "__main__", "__mp_main__")


def add_app(app: Celery) -> None:
    """Note an app that has delay queues."""
    _NAMES.setdefault(app, None)


def command(words: str, app: Celery | None = None) -> str:
    """Return a command line. Default app: that of the running ``celery`` command, or the only one with delay queues."""
    return f"celery -A {shlex.quote(_name(app))} rmq-delay {words}"


def _name(app: Celery | None) -> str:
    context = click.get_current_context(silent=True)
    root: Any = context.find_root() if context else None
    running = getattr(root.obj, "app", None) if root else None
    if app is None:
        app = running or (next(iter(_NAMES)) if len(_NAMES) == 1 else None)
    if app is None or app not in _NAMES:
        return PLACEHOLDER
    if app is running and root.params.get("app"):
        return str(root.params["app"])
    found = _NAMES[app] or next(_importable(app), None) or (PLACEHOLDER if app.main in _NO_MODULES else str(app.main))
    _NAMES[app] = found
    return found


def _importable(app: Celery) -> Iterator[str]:
    """Yield what ``-A`` takes for this app, the shortest first: modules that have it, and packages of a `celery.py`."""
    having = {
        (name, attribute)
        for name, module in list(sys.modules.items())
        for attribute, value in list(getattr(module, "__dict__", {}).items())
        if value is app and name not in _NO_MODULES and not name.startswith("celery.")
    }
    names = {name for name, _attribute in having}
    names |= {name.removesuffix(".celery") for name in names} | {":".join(pair) for pair in having}
    for name in sorted(names, key=lambda name: (":" in name, name.count("."), len(name), name)):
        with suppress(AttributeError, ImportError):
            if find_app(name) is app:
                yield name
