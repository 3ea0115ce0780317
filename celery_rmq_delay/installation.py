"""The one call a user makes."""

from __future__ import annotations

from typing import Any

from celery import Celery, signals

from .config import parse_settings
from .delay import Delay, find_delay, set_delay
from .exceptions import SettingsError
from .headers import LANE
from .ladders import lane_of
from .queues import queues_class


def install(app: Celery) -> Delay:
    """Let failed tasks of ``app`` wait in RabbitMQ instead of in a worker.

    Call it once, after the app's configuration is known, in the module that makes the app: publishers need it as much
    as workers do. Reads ``app.conf.rmq_delay`` (``CELERY_RMQ_DELAY`` with Django). Raises `SettingsError` for whatever
    cannot work; opens no connection.
    """
    raw = app.conf.get("rmq_delay")  # loads the configuration, which the prefix is part of
    setting = _setting(app)
    settings = parse_settings(raw, setting)
    present = find_delay(app)
    if present is not None:
        if present.settings != settings:
            raise SettingsError(setting, raw, "install() was called with other settings before.")
        return present
    delay = Delay(app, settings, setting)
    set_delay(app, delay)
    _declare_origin_queues(app, delay)
    app.steps["consumer"].add("celery_rmq_delay.bootstep:LadderStep")
    if settings.uses_jitter:
        _stamp_lanes(settings.lanes)
    known: Any = app  # the stubs lack ``finalized``
    if known.finalized:
        delay.check_tasks()
    return delay


def _setting(app: Celery) -> str:
    """Return the name under which the user wrote the settings."""
    prefix = getattr(app.conf, "prefix", None)
    return f"{prefix}rmq_delay".upper() if prefix else "rmq_delay"


def _declare_origin_queues(app: Celery, delay: Delay) -> None:
    amqp = app.amqp
    amqp.queues_cls = queues_class(delay)
    if "queues" in vars(amqp):  # somebody looked at the queues before: what they hold is made anew
        amqp.queues = amqp.Queues(dict(amqp.queues))


def _stamp_lanes(lanes: int) -> None:
    def stamp(headers: dict[str, Any] | None = None, **_: Any) -> None:
        if headers is not None and "id" in headers:
            headers[LANE] = lane_of(headers["id"], lanes)

    signals.before_task_publish.connect(stamp, weak=False, dispatch_uid=f"celery_rmq_delay.lanes.{lanes}")
