"""Parsing and validation of the settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from ..durations import format_ms
from ..exceptions import SettingsError
from ..ladders import Ladder
from ..names import DEFAULT_PREFIX, check_name
from ..redaction import without_credentials
from ..topology.native_retry import native_retry_tiers
from .events import KEYS as EVENT_KEYS
from .events import parse_events
from .exact import KEYS as EXACT_KEYS
from .exact import parse_exact
from .validators import check_known, check_ttl, read_flag, read_integer, read_share, read_text, read_tiers
from .values import QueueSettings, Settings, check_queue_name

DEFAULT_TIERS = ("10s", "1m", "10m", "1h")
_QUEUE_KEYS = ("tiers", "jitter", "repeat_last", "queue_type", "max_crashes", "retry")
_TOP_KEYS = (
    *_QUEUE_KEYS, "queues", "prefix", "lanes", "exhausted_queue", "apply_on_start", "strict", *EVENT_KEYS, *EXACT_KEYS,
    "management_url",
)  # fmt: skip


def parse_settings(raw: object, setting: str = "rmq_delay") -> Settings:
    """Return the validated settings of ``app.conf.rmq_delay`` (``CELERY_RMQ_DELAY`` with Django).

    Raises `SettingsError`, with the setting, the value and a hint, for an invalid value.
    """
    raw = {} if raw is None else raw
    if not isinstance(raw, Mapping):
        raise SettingsError(setting, raw, 'Write a dictionary, such as {"tiers": ["10s", "1m", "10m"]}.')
    check_known(raw, _TOP_KEYS, setting)
    lanes = read_integer(raw.get("lanes", 5), f"{setting}.lanes", 1, 64)
    prefix = read_text(raw.get("prefix", DEFAULT_PREFIX), f"{setting}.prefix")
    default = _queue({"tiers": DEFAULT_TIERS, **_pick(raw, _QUEUE_KEYS)}, setting, lanes, None)
    queues = raw.get("queues", {})
    if not isinstance(queues, Mapping):
        raise SettingsError(f"{setting}.queues", queues, 'Write {"queue": {"tiers": [...]}}.')
    settings = Settings(
        default=default,
        queues={name: _queue_override(name, own, setting, lanes, default) for name, own in queues.items()},
        prefix=prefix,
        lanes=lanes,
        exhausted_queue=_exhausted_queue(raw, prefix, setting),
        apply_on_start=read_flag(raw.get("apply_on_start", True), f"{setting}.apply_on_start"),
        strict=read_flag(raw.get("strict", False), f"{setting}.strict"),
        events=parse_events(raw, setting),
        exact=parse_exact(raw, setting),
        management_url=_management_url(raw.get("management_url"), f"{setting}.management_url"),
    )
    for name in settings.queues:
        check_queue_name(settings, name, setting)
    return settings


def _management_url(value: object, where: str) -> str | None:
    if value is None:
        return None
    try:
        parts = urlsplit(value) if isinstance(value, str) else None
        good = parts is not None and parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        good = False
    if not good:
        hint = 'Write the base URL of the management API, such as "https://rabbit.example:15671".'
        raise SettingsError(where, without_credentials(value), hint)
    return str(value)


def _exhausted_queue(raw: Mapping[str, Any], prefix: str, setting: str) -> str:
    if "exhausted_queue" not in raw:
        return check_name(f"{prefix}.exhausted", f"{setting}.prefix")
    where = f"{setting}.exhausted_queue"
    return check_name(read_text(raw["exhausted_queue"], where), where)


def _queue_override(
    name: object, own: object, setting: str, lanes: int, default: QueueSettings
) -> QueueSettings | None:
    where = f"{setting}.queues[{name!r}]"
    if not isinstance(name, str) or not name:
        raise SettingsError(f"{setting}.queues", name, "A queue's name is a non-empty text.")
    if own is False or own is None:
        return None
    if not isinstance(own, Mapping):
        raise SettingsError(where, own, 'Write {"tiers": [...]}, or False to leave this queue alone.')
    check_known(own, _QUEUE_KEYS, where)
    return _queue(own, where, lanes, default)


def _queue(raw: Mapping[str, Any], where: str, lanes: int, default: QueueSettings | None) -> QueueSettings:
    base = default.ladder if default else None
    tiers = read_tiers(raw["tiers"], f"{where}.tiers") if "tiers" in raw else base.tiers_ms if base else ()
    jitter = read_share(raw.get("jitter", base.jitter if base else 0.0), f"{where}.jitter")
    check_ttl(tiers, jitter, f"{where}.jitter", jitter)
    if jitter and lanes < 2:
        hint = f"{where}.jitter spreads delays over lanes: use at least 2."
        raise SettingsError(f"{where.partition('.')[0]}.lanes", lanes, hint)
    queue_type = raw.get("queue_type", default.queue_type if default else None)
    if queue_type not in (None, "classic", "quorum"):
        raise SettingsError(
            f"{where}.queue_type", queue_type, 'Write "classic", "quorum" or None (as the origin queue).'
        )
    crashes = raw.get("max_crashes", default.max_crashes if default else 3)
    retry = raw.get("retry", default.retry if default else "ladder")
    if retry not in ("ladder", "native"):
        raise SettingsError(f"{where}.retry", retry, 'Write "ladder" or "native".')
    if retry == "native":
        _check_native_retry(tiers, jitter, queue_type, where)
    return QueueSettings(
        ladder=Ladder(
            tiers,
            jitter,
            lanes if jitter else 1,
            read_flag(raw.get("repeat_last", base.repeat_last if base else False), f"{where}.repeat_last"),
        ),
        queue_type=queue_type,
        max_crashes=read_integer(crashes, f"{where}.max_crashes", 0, 1000),
        retry=retry,
    )


def _check_native_retry(tiers: tuple[int, ...], jitter: float, queue_type: object, where: str) -> None:
    """Raise `SettingsError` for settings that RabbitMQ's native retry does not support."""
    possible = native_retry_tiers(tiers)
    if tiers != possible:
        found, hinted = ([format_ms(tier) for tier in each] for each in (tiers, possible))
        hint = f'Native delays grow by the first one, up to the last: write {hinted}, or "retry": "ladder".'
        raise SettingsError(f"{where}.tiers", found, hint)
    if jitter:
        hint = 'Native retries have no jitter: write 0, or "retry": "ladder".'
        raise SettingsError(f"{where}.jitter", jitter, hint)
    if queue_type == "classic":
        hint = 'Native retries need a quorum queue: write "quorum", or "retry": "ladder".'
        raise SettingsError(f"{where}.queue_type", queue_type, hint)


def _pick(raw: Mapping[str, Any], keys: tuple[str, ...]) -> dict[str, Any]:
    return {key: raw[key] for key in keys if key in raw}
