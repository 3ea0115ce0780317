"""`install`: the setup of an app."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable
from typing import Any

from celery import Celery, _state
from celery.app.routes import Router
from kombu.utils.imports import symbol_by_name

from .app.queues import OriginQueues
from .app.state import ATTRIBUTE, AppState, find_state
from .commands import add_app
from .exceptions import SettingsError
from .publish.calls import SendTask
from .redaction import without_credentials
from .settings.parser import parse_settings


def install(app: Celery) -> AppState:
    """Park failed tasks of ``app`` in RabbitMQ instead of in a worker.

    Call it once, after the app's configuration is set, in the module that creates the app: publishers need it as much
    as workers do. Reads ``app.conf.rmq_delay`` (``CELERY_RMQ_DELAY`` with Django). Opens no connection. Raises
    `SettingsError` for invalid settings.
    """
    raw = app.conf.get("rmq_delay")  # loads the configuration, which contains the prefix
    setting = _setting(app)
    settings = parse_settings(raw, setting)
    present = find_state(app)
    if present is not None:
        if present.settings != settings:
            hint = "install() was called with other settings before: call it once for each app."
            raise SettingsError(setting, _shown(raw), hint)
        return present
    delay = AppState(app, settings, setting)
    setattr(app, ATTRIBUTE, delay)
    add_app(app)
    _declare_origin_queues(app, delay)
    setattr(app, "send_task", SendTask(app, delay))  # noqa: B010 - the stubs have a method there
    setattr(app, "finalize", Finalize(app, delay))  # noqa: B010
    if settings.exact.every_task:
        _refuse_celery_native_delay(app, setting)
    app.steps["consumer"].add("celery_rmq_delay.worker.bootstep:LadderStep")
    known: Any = app  # the stubs lack ``finalized``
    if known.finalized:
        delay.check_tasks()
    return delay


def _shown(raw: Any) -> Any:
    url = raw.get("management_url") if raw else None
    return {**raw, "management_url": without_credentials(url)} if url else raw


def _setting(app: Celery) -> str:
    prefix = getattr(app.conf, "prefix", None)
    return f"{prefix}rmq_delay".upper() if prefix else "rmq_delay"


def _refuse_celery_native_delay(app: Celery, setting: str) -> None:
    """Make workers run without the step that declares Celery's native delay queues and binds queues to them."""
    ours = "celery_rmq_delay.worker.consumer:ConsumerWithoutNativeDelay"
    stock = "celery.worker.consumer:Consumer"
    if app.conf.worker_consumer not in (ours, stock):
        hint = f"This turns off Celery's native delayed delivery and needs worker_consumer = {ours!r}, or a subclass."
        consumer = symbol_by_name(app.conf.worker_consumer)
        if not issubclass(consumer, symbol_by_name(ours)):
            raise SettingsError(f"{setting}.exact_for", "all", hint)
        return
    app.conf.worker_consumer = ours


def _declare_origin_queues(app: Celery, delay: AppState) -> None:
    amqp = app.amqp
    amqp.queues_cls = type("OriginQueues", (OriginQueues,), {"delay": delay})
    if "queues" in vars(amqp):  # the queues were read before: create them again
        amqp.queues = amqp.Queues(dict(amqp.queues))
        router = vars(amqp).get("router")  # it keeps the queues it was created with
        if isinstance(router, Router):
            setattr(router, "queues", amqp.queues)  # noqa: B010 - the stubs lack it


class Finalize:
    """`Celery.finalize` of an app, which notes the tasks that other apps share with it, then checks its own ones."""

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
            known: Any = _state  # the stubs lack the set
            by_apps = {id(function) for each in list(known._on_app_finalizers) if (function := _declared(each))}
            self._delay.borrowed = {
                each.name for each in self._app._tasks.values() if id(_function(each)) in by_apps
            } - own
        self._delay.check_tasks()


def _declared(register: Callable[..., Any]) -> Any:
    """Return the function for which `Celery.task` has made ``register``; None for other callbacks."""
    is_celerys = getattr(register, "__module__", "") == "celery.app.base" and register.__qualname__.endswith(".cons")
    return inspect.getclosurevars(register).nonlocals.get("fun") if is_celerys else None


def _function(task: Any) -> Any:
    wrapped = getattr(task, "__wrapped__", None)
    return getattr(wrapped, "__func__", wrapped)
