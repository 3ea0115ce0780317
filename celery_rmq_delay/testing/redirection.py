"""Redirects an app to another broker inside a block, with results in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import kombu
from celery import Celery, _state
from celery.backends.base import KeyValueStoreBackend
from celery.states import READY_STATES
from kombu import pools

from ..exceptions import NotFinishedError

#: Seconds between two checks for a result.
_INTERVAL = 0.01

#: Eager tasks would not be sent; without the second one, Celery before 5.7 warns.
_SETTINGS = {"task_always_eager": False, "broker_connection_retry_on_startup": True}

#: Options of a connection that Celery sets, apart from its URL.
_KEPT = ("connect_timeout", "heartbeat", "transport_options")


@contextmanager
def redirected(app: Celery, **where: Any) -> Iterator[None]:
    """Let all connections of ``app`` lead to ``where`` (arguments of `kombu.Connection`), and make it the current app.

    The app's queues are created again, and ``task_always_eager`` is off; both are restored afterwards.
    """
    amqp: Any = app.amqp
    known: Any = app  # the stubs lack what is private
    before, pool, current = dict(vars(amqp)), known._pool, getattr(_state._tls, "current_app", None)  # type: ignore[attr-defined]
    made: list[kombu.Connection] = []

    def connect(*_: Any, **options: Any) -> kombu.Connection:
        kept = {name: options[name] for name in _KEPT if options.get(name) is not None}
        made.append(kombu.Connection(**kept, **where))
        return made[-1]

    queues, settings = dict(amqp.queues), {name: app.conf[name] for name in _SETTINGS}
    for name in ("router", "default_queue"):
        vars(amqp).pop(name, None)
    amqp.Connection, amqp._producer_pool, amqp.queues, known._pool = connect, None, queues, None
    app.conf.update(_SETTINGS)
    _state._set_current_app(app)  # type: ignore[attr-defined]
    try:
        yield
    finally:
        _close_pools(made)
        vars(amqp).clear()
        vars(amqp).update(before)
        known._pool = pool
        app.conf.update(settings)
        _state._tls.current_app = current  # type: ignore[attr-defined]


def _close_pools(made: list[kombu.Connection]) -> None:
    """Close the pools of the redirected connections, which are not used again."""
    for connection in made:
        for group in (pools.producers, pools.connections):
            pool = dict.pop(group, connection, None)
            if pool is not None:
                pool.force_close_all()


class Results(KeyValueStoreBackend):
    """Results in a dictionary. Waiting for one calls ``run`` first."""

    implements_incr = True
    persistent = False

    def __init__(self, app: Celery, run: Callable[[], object] | None = None) -> None:
        super().__init__(app)
        self._run = run
        self._kept: dict[Any, Any] = {}

    def get(self, key: Any) -> Any:
        """Return what is stored."""
        return self._kept.get(key)

    def mget(self, keys: Any) -> list[Any]:
        """Return what is stored."""
        return [self._kept.get(key) for key in keys]

    def set(self, key: Any, value: Any) -> None:
        """Store."""
        self._kept[key] = value

    def delete(self, key: Any) -> None:
        """Forget."""
        self._kept.pop(key, None)

    def incr(self, key: Any) -> int:
        """Count, for chords."""
        self._kept[key] = count = int(self._kept.get(key) or 0) + 1
        return count

    def wait_for(self, task_id: str, *args: Any, **options: Any) -> Any:
        """Return the result's record. Raises `NotFinishedError` if no message is left that could bring it."""
        if self._run is None:
            return super().wait_for(task_id, *args, **{**options, "interval": _INTERVAL})
        self._run()
        found = self.get_task_meta(task_id)
        if found["status"] in READY_STATES:
            return found
        raise NotFinishedError(
            f"Task {task_id} has no result, and nothing is left to run: its state is {found['status']}. Send it inside "
            "the block of the ladder, and do not set ignore_result."
        )


@contextmanager
def results_in_memory(app: Celery, run: Callable[[], object] | None = None) -> Iterator[None]:
    """Let ``app`` keep its results in this process; see `Results`."""
    known: Any = app
    before, known._backend_cache = known._backend_cache, Results(app, run)
    try:
        yield
    finally:
        known._backend_cache = before
