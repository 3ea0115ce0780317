"""System checks of the project's settings. They open no connection to the broker."""

from __future__ import annotations

import importlib.util
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from datetime import timedelta
from typing import Any

from celery import Celery
from celery._state import get_current_app
from django.apps import apps
from django.conf import settings as django_settings
from django.core.checks import CheckMessage, Error, Info, Tags, Warning, register  # noqa: A004 - Django's name
from django.db import DatabaseError, connections, router
from django.utils import timezone

from ...app.inventory import require_amqp
from ...app.state import AppState, find_state
from ...durations import format_ms
from ...exceptions import RmqDelayError, SettingsError
from ...ladders import Ladder
from ...redaction import shortened
from ...settings.parser import check_hook
from .broker import celery_app
from .conf import SETTING, Conf, conf
from .models import CollectorStatus, TaskRecord, search

TAG = "rmq_delay"

#: A collector with a heartbeat within this time is running.
_ALIVE = timedelta(minutes=5)


@register(TAG)
def check_settings(**_: Any) -> list[CheckMessage]:
    """Check Django's settings and ``RMQ_DELAY``."""
    return list(_of_django())


@register(TAG)
def check_celery(**_: Any) -> list[CheckMessage]:
    """Check the Celery app, its events and the retention of its tasks."""
    try:
        settings = conf()
    except SettingsError:  # `check_settings` reports it
        return []
    return list(_of_celery(settings))


@register(TAG, deploy=True)
def check_surroundings(**_: Any) -> list[CheckMessage]:
    """Check optional parts: the admin and a result backend. Runs with ``check --deploy`` only."""
    found: list[CheckMessage] = []
    if not apps.is_installed("django.contrib.admin"):
        hint = "Add it to INSTALLED_APPS to see parked and exhausted tasks."
        found.append(Info("django.contrib.admin is not installed: there are no pages.", hint=hint, id="rmq_delay.I002"))
    try:
        backend = _celery_app().conf.result_backend
    except RmqDelayError:  # `check_celery` reports it
        return found
    if not backend or str(backend).startswith("disabled"):
        hint = "Set Celery's result_backend if callers need to know that a task was discarded (state REVOKED)."
        found.append(Info("The Celery app has no result backend.", hint=hint, id="rmq_delay.I001"))
    return found


@register(TAG)
def check_routers(**_: Any) -> list[CheckMessage]:
    """Check that the tables to which rows of operations refer are in the same database: users and the admin's log."""
    related = ("admin.LogEntry", "contenttypes.ContentType", django_settings.AUTH_USER_MODEL)
    models = [apps.get_model(each) for each in related if each.partition(".")[0] in apps.app_configs]
    places: dict[str, list[str]] = {}
    for model in [*apps.get_app_config(CollectorStatus._meta.app_label).get_models(), *models]:
        places.setdefault(router.db_for_write(model), []).append(model._meta.label)
    if len(places) < 2:
        return []
    found = "; ".join(f"{alias!r}: {shortened(', '.join(labels), 200)}" for alias, labels in sorted(places.items()))
    hint = "Let DATABASE_ROUTERS return one database for them: operations refer to users and are in the admin's log."
    return [
        Error(f"Tables that refer to each other are in several databases. {found}.", hint=hint, id="rmq_delay.E008")
    ]


@register(TAG)
def check_database(**_: Any) -> list[CheckMessage]:
    """Check that SQLite's transaction mode allows several processes to write."""
    using = connections[router.db_for_write(CollectorStatus)]
    if using.vendor != "sqlite" or using.settings_dict["OPTIONS"].get("transaction_mode") == "IMMEDIATE":
        return []
    hint = 'Set "OPTIONS": {"timeout": 20, "transaction_mode": "IMMEDIATE"} in DATABASES: then writers wait in turn.'
    message = "With SQLite, a page or command that writes while the collector runs can fail with 'database is locked'."
    return [Warning(message, hint=hint, id="rmq_delay.W005")]


@register(TAG)
def check_search(**_: Any) -> list[CheckMessage]:
    """Check that SQLite has the module for the search of messages and arguments."""
    if connections[router.db_for_read(TaskRecord)].vendor != "sqlite":
        return []
    with closing(sqlite3.connect(":memory:")) as memory:
        if search.has_fts5(memory.cursor()):
            return []
    hint = 'Use a Python whose SQLite has FTS5, then run "migrate".'
    message = "SQLite was built without FTS5: the lists of tasks do not search messages and arguments."
    return [Warning(message, hint=hint, id="rmq_delay.W008")]


@register(Tags.database)
def check_collectors(databases: Sequence[str] | None = None, **_: Any) -> list[CheckMessage]:
    """Check that at most one collector writes into a SQLite file. Runs with ``check --database`` only."""
    alias = router.db_for_write(CollectorStatus)
    if alias not in (databases or ()) or connections[alias].vendor != "sqlite":
        return []
    try:
        alive = CollectorStatus.objects.using(alias).filter(heartbeat_at__gt=timezone.now() - _ALIVE).count()
    except DatabaseError:  # before the first migrate
        return []
    if alive < 2:
        return []
    hint = "They wait for each other: run one collector, or use PostgreSQL."
    return [Warning(f"{alive} collectors write into one SQLite database.", hint=hint, id="rmq_delay.W004")]


def _celery_app() -> Celery:
    """Return the app without importing its tasks' modules: with Django, Celery runs these checks during that import."""
    if conf().celery_app is not None:
        return celery_app()
    current: Celery = get_current_app()
    return current


def _of_django() -> Iterator[CheckMessage]:
    if not django_settings.USE_TZ:
        hint = "Set USE_TZ = True: all times in the tables have a time zone."
        yield Error("USE_TZ is False.", hint=hint, id="rmq_delay.E003")
    try:
        settings = conf()
    except SettingsError as error:
        yield Error(str(error), id="rmq_delay.E001")
        return
    if settings.notify.mail and not django_settings.ADMINS:
        yield Warning("NOTIFY sends mail to ADMINS, which is empty.", hint="Set Django's ADMINS.", id="rmq_delay.W003")
    if settings.history_url is not None and importlib.util.find_spec("pyarrow") is None:
        hint = 'pip install "celery-rmq-delay[history]", which brings it.'
        yield Error(f"{SETTING} has a HISTORY_URL, and pyarrow is not installed.", hint=hint, id="rmq_delay.E007")


def _of_celery(settings: Conf) -> Iterator[CheckMessage]:
    try:
        app = _celery_app()
    except RmqDelayError as reason:
        hint = f"Set {SETTING}['CELERY_APP'] to the path of the Celery app, or to None for the current app."
        yield Error(f"The Celery app cannot be used: {reason}", hint=hint, id="rmq_delay.E002")
        return
    try:
        with app.connection_for_write() as connection:  # not opened
            require_amqp(connection)
    except (RmqDelayError, ImportError) as error:
        yield Error(str(error), hint="Set Celery's broker_url.", id="rmq_delay.E005")
    delay = find_state(app)
    if delay is None:
        hint = f"Call it in the module that creates the app, or set {SETTING}['CELERY_APP'] to the right app."
        yield Error(f"install() was not called for {app!r}.", hint=hint, id="rmq_delay.E004")
        return
    try:
        check_hook(delay.settings.redaction, delay.setting)
    except SettingsError as error:
        hint = "Workers with this setting do not start, and the pages show no texts: fix the path or the module."
        yield Error(str(error), hint=hint, id="rmq_delay.E006")
    if delay.settings.events.wanted is False:
        hint = f'Set {delay.setting}["events"] to "auto", or take the app out of INSTALLED_APPS.'
        yield Warning("Workers send no events: the tables stay empty.", hint=hint, id="rmq_delay.W002")
    yield from _retention(delay, settings)


def _retention(delay: AppState, settings: Conf) -> Iterator[CheckMessage]:
    ladder, whose = max(_ladders(delay), key=lambda each: _length_ms(each[0]))
    length = _length_ms(ladder)
    for name in ("keep_recovered_days", "keep_discarded_days", "keep_exhausted_days", "keep_history_days"):
        days: int | None = getattr(settings, name)
        if days is not None and days * 86_400_000 < length:
            yield Warning(
                f"{SETTING}['{name.upper()}'] is {days} days, and the ladder of {whose} takes {format_ms(length)}.",
                hint="Keep it longer: the history of a task would be deleted before its last retry.",
                id="rmq_delay.W001",
            )


def _ladders(delay: AppState) -> Iterator[tuple[Ladder, str]]:
    settings = delay.settings
    yield settings.default.ladder, "queues without a ladder of their own"
    yield from ((own.ladder, f"queue {name!r}") for name, own in settings.queues.items() if own is not None)
    for task in delay.retryable_tasks():
        queue = delay.routed_to(task) or delay.app.conf.task_default_queue
        own = settings.task_ladder(queue, task)
        if own is not None:
            yield own, f"task {task.name}"


def _length_ms(ladder: Ladder) -> int:
    """Return the sum of all tiers in ms; a last tier that repeats is counted once."""
    return sum(max(ladder.lane_ttls(tier_index)) for tier_index in range(1, len(ladder) + 1))
