"""The Django app's settings: ``RMQ_DELAY`` in the settings module, validated on first use."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import timedelta
from functools import lru_cache
from typing import Any, Literal
from urllib.parse import urlsplit

from django.conf import settings as django_settings
from django.core.signals import setting_changed

from ...exceptions import SettingsError
from ...history.url import problem_of, shown
from ...settings.validators import is_integer, read_flag

SETTING = "RMQ_DELAY"
StorePayload = Literal["exhausted", "never"]

NOTIFY_KINDS = ("parked", "recovered", "exhausted", "discarded_ran")


@dataclass(frozen=True)
class Notify:
    """Settings of alerts: the keys of ``RMQ_DELAY["NOTIFY"]``. Without mail and webhook no alerts are sent."""

    #: Whether to send mail to ADMINS.
    mail: bool = False
    #: The URL to post JSON to; its path is often a secret.
    webhook: str | None = field(default=None, repr=False)
    #: What to post: ``"json"``, data for programs, or ``"slack"``, a message for Slack and compatible chats.
    format: Literal["json", "slack"] = "json"
    #: The URL of the admin site, such as ``"https://shop.example/admin/"``; alerts link to its pages.
    admin_url: str | None = None
    #: The minutes between two alerts of one failure group.
    every_minutes: float = 15
    kinds: tuple[str, ...] = ("exhausted", "discarded_ran")


@dataclass(frozen=True)
class Conf:
    """Settings of the Django app: the keys of ``RMQ_DELAY`` in lower case."""

    #: Dotted path of the Celery app, such as ``"shop.celery.app"``; None uses the current app.
    celery_app: str | None = None
    #: Which messages are stored: ``"exhausted"`` stores those of exhausted tasks, and of parked tasks that a user
    #: discards, which would be lost otherwise; with ``"never"`` no task can be requeued or edited.
    store_payload: StorePayload = "exhausted"
    #: Whether "Edit and requeue" is available.
    allow_edit: bool = False
    #: The most tasks of an action that runs within the request; ``rmq_delay_operate`` runs larger ones.
    inline_limit: int = 1_000
    #: Maximum number of rows that a list counts; above it, the list shows "more than".
    count_cap: int = 10_000
    #: Seconds for which the counts of the broker's queues are cached.
    broker_cache: float = 5.0
    #: Seconds to wait for the broker before a page is shown without it, and for a confirm.
    broker_timeout: float = 5.0
    #: Days after which recovered and requeued, discarded, and exhausted tasks are deleted; None keeps them.
    keep_recovered_days: int | None = 7
    keep_discarded_days: int | None = 30
    keep_exhausted_days: int | None = 90
    #: Days after which attempts, counters and operations are deleted; None keeps them.
    keep_history_days: int | None = 365
    #: The place of history files: a URL that pyarrow supports, or an absolute path; None writes none.
    history_url: str | None = field(default=None, repr=False)
    #: The output of the analytics, which the page *Insights* loads, as ``history_url``; None is beside the history.
    insights_url: str | None = field(default=None, repr=False)
    #: Alerts by mail and webhook, sent by the collector.
    notify: Notify = Notify()

    def keeps(self, days: int | None) -> timedelta | None:
        """Return a number of days as a timedelta; None keeps rows forever."""
        return None if days is None else timedelta(days=days)


def _checked(raw: object) -> Conf:
    if not isinstance(raw, Mapping):
        raise SettingsError(SETTING, raw, 'Write a dictionary, such as {"STORE_PAYLOAD": "exhausted"}.')
    known = {field.name.upper(): field.name for field in fields(Conf)}
    for key, value in raw.items():
        if key not in known:
            hint = f"There is no such setting. Known: {', '.join(known)}."
            raise SettingsError(f"{SETTING}[{key!r}]", value, hint)
        _check(key, value)
    values: dict[str, Any] = {known[key]: value for key, value in raw.items()}
    if "notify" in values:
        values["notify"] = _notify(values["notify"])
    return Conf(**values)


def _check(key: str, value: Any) -> None:
    def refuse(hint: str) -> SettingsError:
        return SettingsError(f"{SETTING}[{key!r}]", value, hint)

    if key in ("HISTORY_URL", "INSIGHTS_URL") and value is not None and (problem := problem_of(value)):
        raise SettingsError(f"{SETTING}[{key!r}]", shown(value), problem)
    if key == "STORE_PAYLOAD" and value not in ("exhausted", "never"):
        raise refuse('Write "exhausted" or "never".')
    if key == "ALLOW_EDIT":
        read_flag(value, f"{SETTING}[{key!r}]")
    if key == "CELERY_APP" and not (value is None or (isinstance(value, str) and "." in value)):
        raise refuse('Write the dotted path of the Celery app, such as "shop.celery.app", or None.')
    if key.startswith("KEEP_") and not (value is None or is_integer(value, 1)):
        raise refuse("Write a number of days of 1 or more, or None to keep them forever.")
    if key in ("INLINE_LIMIT", "COUNT_CAP") and not is_integer(value, 1):
        raise refuse("Write a whole number of 1 or more.")
    if key in ("BROKER_CACHE", "BROKER_TIMEOUT") and not _is_number(value, 3600):
        raise refuse("Write a number of seconds above 0, up to 3600.")


def _notify(raw: object) -> Notify:
    where = f"{SETTING}['NOTIFY']"
    if not isinstance(raw, Mapping):
        raise SettingsError(where, type(raw).__name__, 'Write a dictionary, such as {"mail": True}.')
    known = [each.name for each in fields(Notify)]
    for key in raw:
        if key not in known:
            raise SettingsError(where, key, f"There is no such setting. Known: {', '.join(known)}.")
    found = Notify(**{**raw, "kinds": _kinds(raw["kinds"], where)} if "kinds" in raw else raw)
    read_flag(found.mail, f"{where}['mail']")
    if found.webhook is not None and not _is_url(found.webhook):
        hint = 'Write a URL, such as "https://alerts.example/hook", or None.'
        raise SettingsError(f"{where}['webhook']", str(found.webhook)[:8], hint)
    if found.format not in ("json", "slack"):
        raise SettingsError(f"{where}['format']", found.format, 'Write "json" or "slack".')
    if found.admin_url is not None and not _is_url(found.admin_url):
        hint = 'Write the URL of the admin site, such as "https://shop.example/admin/", or None.'
        raise SettingsError(f"{where}['admin_url']", shown(found.admin_url), hint)
    if not _is_number(found.every_minutes, 10_080):
        hint = "Write a number of minutes above 0, up to a week."
        raise SettingsError(f"{where}['every_minutes']", found.every_minutes, hint)
    return found


def _is_number(value: object, most: float) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value <= most


def _kinds(value: object, where: str) -> tuple[str, ...]:
    found = list(value) if isinstance(value, (list, tuple, set, frozenset)) else []
    if not found or any(kind not in NOTIFY_KINDS for kind in found):
        hint = f"Write a list of some of {', '.join(NOTIFY_KINDS)}."
        raise SettingsError(f"{where}['kinds']", value, hint)
    return tuple(kind for kind in NOTIFY_KINDS if kind in found)


def _is_url(value: object) -> bool:
    try:
        parts = urlsplit(value) if isinstance(value, str) and re.fullmatch(r"[!-;=?-~]+", value) else None
        return parts is not None and parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


@lru_cache(maxsize=1)
def conf() -> Conf:
    """Return the settings. Raises `SettingsError` with a hint for an invalid value."""
    return _checked(getattr(django_settings, SETTING, {}))


def _forget(*, setting: str, **_: object) -> None:
    if setting == SETTING:
        conf.cache_clear()


setting_changed.connect(_forget)
