"""Tasks of an app that another app has declared: Celery registers each task that is ``shared`` with every app."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from celery import _state

if TYPE_CHECKING:
    from celery import Celery

    from .state import AppState


class Finalize:
    """`Celery.finalize` of an app, which remembers the tasks of other apps and then checks the app's own ones.

    ``@shared_task`` declares a task for every app; ``@app.task`` for its own, although Celery shares it, too.
    """

    def __init__(self, app: Celery, delay: AppState) -> None:
        self._app: Any = app  # the stubs lack the registry, and the tasks that wait for the end of the setup
        self._delay, self._lock = delay, threading.RLock()

    def __call__(self, *args: Any, **options: Any) -> None:
        """Finalize the app. Raises `SettingsError` for tasks of its own with an invalid setting."""
        stock = type(self._app).finalize
        with self._lock:
            if self._app.finalized:
                return
            own, declared = set(self._app._tasks), list(self._app._pending)
            self._delay.checks_bound = False
            try:
                stock(self._app, *args, **options)
            finally:
                self._delay.checks_bound = True
            own.update(each.name for each in declared)
            self._delay.borrowed = _of_apps(self._app._tasks.values()) - own
        self._delay.check_tasks()


def _of_apps(tasks: Iterable[Any]) -> set[str]:
    """Return the names of the tasks that were declared with the decorator of an app."""
    known: Any = _state  # the stubs lack the set
    declared = {id(function) for each in list(known._on_app_finalizers) if (function := _declared(each))}
    return {task.name for task in tasks if id(_function(task)) in declared}


def _declared(register: Callable[..., Any]) -> Any:
    """Return the function for which `Celery.task` has made ``register``; None for other callbacks."""
    is_celerys = getattr(register, "__module__", "") == "celery.app.base" and register.__qualname__.endswith(".cons")
    return inspect.getclosurevars(register).nonlocals.get("fun") if is_celerys else None


def _function(task: Any) -> Any:
    wrapped = getattr(task, "__wrapped__", None)
    return getattr(wrapped, "__func__", wrapped)
