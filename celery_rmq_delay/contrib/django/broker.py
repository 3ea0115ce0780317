"""The project's Celery app, and connections to its broker with short timeouts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import kombu
from celery import Celery
from celery._state import get_current_app
from django.utils.module_loading import import_string

from ...amqp.connections import tolerant
from ...app.state import AppState, state_of
from ...exceptions import SettingsError
from .conf import SETTING, conf

if TYPE_CHECKING:
    from kombu import Connection


def celery_app() -> Celery:
    """Return the project's Celery app. Raises `SettingsError` where ``CELERY_APP`` does not name one."""
    path = conf().celery_app
    if path is None:
        current: Celery = get_current_app()
        current.loader.import_default_modules()
        return current
    try:
        app = import_string(path)
    except ImportError as error:
        raise SettingsError(f"{SETTING}['CELERY_APP']", path, f"It cannot be imported: {error}.") from error
    if not isinstance(app, Celery):
        raise SettingsError(f"{SETTING}['CELERY_APP']", path, f"It is a {type(app).__name__}, not a Celery app.")
    return app


def delay() -> AppState:
    """Return the state that `celery_rmq_delay.install` set on the project's app. Raises `RmqDelayError` without it."""
    return state_of(celery_app())


@contextmanager
def connection() -> Iterator[Connection]:
    """Yield a new connection; its timeouts are the setting ``BROKER_TIMEOUT``.

    Raises `OSError` or `amqp.AMQPError` where the broker does not answer, without another attempt.
    """
    seconds = conf().broker_timeout
    info = celery_app().connection_for_write().info()
    # A broker in alarm stops reading from publishers: without timeouts, reads and writes would block until the alarm
    # clears.
    options = {**tolerant(info.get("transport_options")), "read_timeout": seconds, "write_timeout": seconds}
    with kombu.Connection(**{**info, "connect_timeout": seconds, "transport_options": options}) as opened:
        # `connect` would sleep for two seconds and retry.
        hosts = len(opened.alt or [opened.hostname])
        opened.ensure_connection(
            max_retries=hosts - 1, interval_start=0, interval_step=0, reraise_as_library_errors=False
        )
        yield opened
