"""Parsing and validation of the settings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import urlsplit

from ..durations import format_ms, parse_ms
from ..exceptions import SettingsError
from ..ladders import Ladder
from ..names import DEFAULT_PREFIX, check_name
from ..redaction import Redaction, load_hook, without_credentials
from ..redaction.keys import DEFAULT_KEYS
from ..topology.exact.registry import known
from ..topology.native_retry import native_retry_tiers
from .validators import check_choice, check_known, check_ttl, read_flag, read_integer, read_share, read_text, read_tiers
from .values import MOST_EVENTS, MOST_LEVELS, EventSettings, ExactSettings, QueueSettings, Settings, check_queue_name

DEFAULT_TIERS = ("10s", "1m", "10m", "1h")
_QUEUE_KEYS = ("tiers", "jitter", "repeat_last", "queue_type", "max_crashes", "retry")
_TOP_KEYS = (
    *_QUEUE_KEYS, "queues", "prefix", "lanes", "exhausted_queue", "apply_on_start", "strict", "events",
    "events_max_length", "redact", "exact_delays", "exact_unit", "exact_levels", "exact_queue_type", "exact_for",
    "management_url",
)  # fmt: skip
_SHORTEST_UNIT, _LONGEST_UNIT = 100, 60_000
_HOOK = "Write the dotted path of a function that takes and returns a text."


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
    own = {key: raw[key] for key in _QUEUE_KEYS if key in raw}
    default = _queue({"tiers": DEFAULT_TIERS, **own}, setting, lanes, None)
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
        events=_events(raw, setting),
        exact=_exact(raw, setting),
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


# -- queues ------------------------------------------------------------------------------------------------------------


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
    base = default or QueueSettings(Ladder(()))
    tiers = read_tiers(raw["tiers"], f"{where}.tiers") if "tiers" in raw else base.ladder.tiers_ms
    jitter = read_share(raw.get("jitter", base.ladder.jitter), f"{where}.jitter")
    check_ttl(tiers, jitter, f"{where}.jitter", jitter)
    if jitter and lanes < 2:
        hint = f"{where}.jitter spreads delays over lanes: use at least 2."
        raise SettingsError(f"{where.partition('.')[0]}.lanes", lanes, hint)
    queue_type = raw.get("queue_type", base.queue_type)
    hint = 'Write "classic", "quorum" or None (as the origin queue).'
    check_choice(queue_type, f"{where}.queue_type", (None, "classic", "quorum"), hint)
    retry = raw.get("retry", base.retry)
    check_choice(retry, f"{where}.retry", ("ladder", "native"), 'Write "ladder" or "native".')
    if retry == "native":
        _check_native_retry(tiers, jitter, queue_type, where)
    repeat_last = read_flag(raw.get("repeat_last", base.ladder.repeat_last), f"{where}.repeat_last")
    return QueueSettings(
        ladder=Ladder(tiers, jitter, lanes if jitter else 1, repeat_last),
        queue_type=queue_type,
        max_crashes=read_integer(raw.get("max_crashes", base.max_crashes), f"{where}.max_crashes", 0, 1000),
        retry=retry,
    )


def _check_native_retry(tiers: tuple[int, ...], jitter: float, queue_type: object, where: str) -> None:
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


# -- exact delays ------------------------------------------------------------------------------------------------------


def _exact(raw: Mapping[str, Any], setting: str) -> ExactSettings:
    which, queue_type = raw.get("exact_for", "retryable"), raw.get("exact_queue_type")
    check_choice(which, f"{setting}.exact_for", ("retryable", "all"), 'Write "retryable" or "all".')
    hint = 'Write "classic", "quorum" or None (as the default queue).'
    check_choice(queue_type, f"{setting}.exact_queue_type", (None, "classic", "quorum"), hint)
    return ExactSettings(
        topologies=_topologies(raw.get("exact_delays", "levels"), f"{setting}.exact_delays"),
        unit_ms=_unit(raw.get("exact_unit", "1s"), f"{setting}.exact_unit"),
        levels=read_integer(raw.get("exact_levels", MOST_LEVELS), f"{setting}.exact_levels", 1, MOST_LEVELS),
        queue_type=queue_type,
        every_task=which == "all",
    )


def _unit(value: object, where: str) -> int:
    unit = parse_ms(value, where)
    if not _SHORTEST_UNIT <= unit <= _LONGEST_UNIT:
        hint = f"Write a delay from {format_ms(_SHORTEST_UNIT)} to {format_ms(_LONGEST_UNIT)}."
        raise SettingsError(where, value, hint)
    return unit


def _topologies(value: object, where: str) -> tuple[str, ...]:
    names = (value,) if isinstance(value, str) else tuple(value) if isinstance(value, Iterable) else ()
    if not names:
        raise SettingsError(where, value, 'Write "levels", or a list such as ["plugin", "levels"].')
    for name in names:
        if name not in known():
            raise SettingsError(where, name, f"There is no such topology. Known: {', '.join(known())}.")
    return names


# -- events ------------------------------------------------------------------------------------------------------------


def _events(raw: Mapping[str, Any], setting: str) -> EventSettings:
    wanted = raw.get("events", "auto")
    if wanted != "auto" and not isinstance(wanted, bool):
        raise SettingsError(f"{setting}.events", wanted, 'Write "auto", True or False.')
    where = f"{setting}.events_max_length"
    length = read_integer(raw.get("events_max_length", MOST_EVENTS), where, 1_000, 1_000_000_000)
    return EventSettings(wanted, length, _redaction(raw.get("redact", {}), f"{setting}.redact"))


def _redaction(raw: object, where: str) -> Redaction:
    if not isinstance(raw, Mapping):
        raise SettingsError(where, raw, 'Write {"keys": ["maiden_name"], "hook": "shop.privacy.redact"}.')
    check_known(raw, ("keys", "hook"), where)
    keys, hook = raw.get("keys", ()), raw.get("hook")
    is_list = isinstance(keys, (list, tuple, set, frozenset))
    if not is_list or not all(isinstance(key, str) and key.strip("_- ") for key in keys):
        raise SettingsError(f"{where}.keys", keys, "Write a list of non-empty texts.")
    if hook is not None and (not isinstance(hook, str) or "." not in hook.strip(".")):
        raise SettingsError(f"{where}.hook", hook, _HOOK)
    return Redaction(tuple(dict.fromkeys((*DEFAULT_KEYS, *keys))), hook)


def check_hook(redaction: Redaction, setting: str) -> None:
    """Raise `SettingsError` where the hook cannot be imported; for worker start, when all modules are importable."""
    if redaction.hook is None:
        return
    try:
        found = load_hook(redaction.hook)
    except Exception as error:
        hint = f"It cannot be imported ({error}). {_HOOK}"
        raise SettingsError(f"{setting}.redact.hook", redaction.hook, hint) from error
    if not callable(found):
        raise SettingsError(f"{setting}.redact.hook", redaction.hook, _HOOK)
