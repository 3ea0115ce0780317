"""Settings: read once, validated in one place, typed ever after."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal
from urllib.parse import urlsplit

from .config_events import KEYS as EVENT_KEYS
from .config_events import EventSettings, parse_events
from .config_exact import KEYS as EXACT_KEYS
from .config_exact import ExactSettings, parse_exact
from .durations import MAX_TTL_MS, format_ms, parse_ms
from .exceptions import SettingsError
from .ladders import Ladder, QueueType
from .names import DEFAULT_PREFIX, MAX_NAME_BYTES, Names, check_name, is_derived, moving, rung_queue
from .redaction import Redaction, without_credentials
from .topology.native import native_tiers

RetryMode = Literal["ladder", "native"]

DEFAULT_TIERS = ("10s", "1m", "10m", "1h")
_QUEUE_KEYS = ("tiers", "jitter", "repeat_last", "queue_type", "max_crashes", "retry")
_TOP_KEYS = (
    *_QUEUE_KEYS, "queues", "prefix", "lanes", "exhausted_queue", "apply_on_start", "strict", *EVENT_KEYS, *EXACT_KEYS,
    "management_url",
)  # fmt: skip


@dataclass(frozen=True)
class QueueSettings:
    """What holds for one origin queue."""

    ladder: Ladder
    queue_type: QueueType | None = None
    max_crashes: int = 3
    retry: RetryMode = "ladder"


@dataclass(frozen=True)
class Settings:
    """What holds for the app. ``queues`` maps a queue's name to its settings; None leaves a queue alone."""

    default: QueueSettings
    queues: Mapping[str, QueueSettings | None] = field(default_factory=dict)
    prefix: str = DEFAULT_PREFIX
    lanes: int = 5
    exhausted_queue: str = "rmq_delay.exhausted"
    apply_on_start: bool = True
    strict: bool = False
    events: EventSettings = field(default_factory=EventSettings)
    exact: ExactSettings = field(default_factory=ExactSettings)
    management_url: str | None = field(default=None, repr=False)

    @property
    def names(self) -> Names:
        """The names of broker objects under this prefix."""
        return Names(self.prefix)

    @property
    def redaction(self) -> Redaction:
        """What is taken out of what people read."""
        return self.events.redaction

    @cached_property  # asked at each publish
    def uses_jitter(self) -> bool:
        """Whether any ladder of the settings spreads its delays over lanes."""
        every = [self.default, *self.queues.values()]
        return any(queue is not None and queue.ladder.jitter for queue in every)

    def for_queue(self, name: str) -> QueueSettings | None:
        """Return the settings of an origin queue; None when it is left alone."""
        return self.queues.get(name, self.default)

    def task_ladder(self, queue: str, task: object) -> Ladder | None:
        """Return the ladder that a task class declares for itself on ``queue``; None when it climbs the queue's."""
        tiers = getattr(task, "tiers", None)
        settings = self.for_queue(queue)
        if tiers is None or settings is None:
            return None
        where = f"tiers of task {getattr(task, 'name', task)}"
        queues = settings.ladder
        own = read_tiers(tiers, where)
        check_ttl(own, queues.jitter, where, tiers)
        return Ladder(own, queues.jitter, queues.lanes, queues.repeat_last)


def parse_settings(raw: object, setting: str = "rmq_delay") -> Settings:
    """Return the validated settings of ``app.conf.rmq_delay`` (``CELERY_RMQ_DELAY`` with Django).

    Raises `SettingsError` with the setting, the value and the mend for whatever cannot work.
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
        queues={name: _own_queue(name, own, setting, lanes, default) for name, own in queues.items()},
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
        mend = 'Write the base URL of the management API, such as "https://rabbit.example:15671".'
        raise SettingsError(where, without_credentials(value), mend)
    return str(value)


def _exhausted_queue(raw: Mapping[str, Any], prefix: str, setting: str) -> str:
    if "exhausted_queue" not in raw:
        return check_name(f"{prefix}.exhausted", f"{setting}.prefix")
    where = f"{setting}.exhausted_queue"
    return check_name(read_text(raw["exhausted_queue"], where), where)


def check_queue_name(
    settings: Settings, queue: str, setting: str = "rmq_delay", tasks: Iterable[Ladder | None] = ()
) -> None:
    """Raise `SettingsError` when a name derived from ``queue`` would be too long for AMQP, or ``queue`` is one.

    ``tasks``: the ladders that tasks have of their own there; None is the queue's.
    """
    own = settings.for_queue(queue)
    if own is None:
        return
    record = queue.startswith(f"{settings.prefix}.") and queue.endswith((".record", moving(".record")))
    if record or queue in (settings.exhausted_queue, settings.names.events) or is_derived(queue):
        mend = "This package gives such names to queues of its own: rename the queue, or set False to leave it alone."
        raise SettingsError(f"{setting}.queues", queue, mend)
    longest = settings.names.lane0(queue, "0" * 8, 1000)
    ladders = {own.ladder, *filter(None, tasks)}
    ttls = ((rung, ttl) for each in ladders for rung in range(1, len(each) + 1) for ttl in each.lane_ttls(rung))
    rungs = (rung_queue(queue, rung, ttl, settings.prefix, "quorum") for rung, ttl in ttls)  # the longer names
    longest = max(longest, *rungs, key=lambda name: len(name.encode()))
    size = len(longest.encode())
    if size > MAX_NAME_BYTES:
        mend = f"{longest!r} would have {size} bytes and AMQP allows {MAX_NAME_BYTES}: shorten the queue or the prefix."
        raise SettingsError(f"{setting}.queues", queue, mend)


class _NotSet:
    def __repr__(self) -> str:
        return "not set"


#: Stands for a ``max_retries`` that a task's author did not write: the ladder decides. None is for ever.
NOT_SET = _NotSet()


def check_max_retries(max_retries: int | _NotSet | None, ladder: Ladder, task: str) -> None:
    """Raise `SettingsError` when a task asks for more retries than its ladder has tiers; None asks for no end."""
    if isinstance(max_retries, _NotSet) or ladder.retries is None:
        return
    if max_retries is None or max_retries > ladder.retries:
        mend = (
            f"The ladder is the retry budget and has {ladder.retries} tiers: leave max_retries out, add tiers, "
            "or set repeat_last=True."
        )
        raise SettingsError(f"max_retries of task {task}", max_retries, mend)


def _own_queue(name: object, own: object, setting: str, lanes: int, default: QueueSettings) -> QueueSettings | None:
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
        mend = f"{where}.jitter spreads delays over lanes: use at least 2."
        raise SettingsError(f"{where.partition('.')[0]}.lanes", lanes, mend)
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
        _check_native(tiers, jitter, queue_type, where)
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


def _check_native(tiers: tuple[int, ...], jitter: float, queue_type: object, where: str) -> None:
    """Refuse what RabbitMQ's own delayed retry cannot do."""
    can = native_tiers(tiers)
    if tiers != can:
        found, told = ([format_ms(tier) for tier in each] for each in (tiers, can))
        mend = f'Native delays grow by the first one, up to the last: write {told}, or "retry": "ladder".'
        raise SettingsError(f"{where}.tiers", found, mend)
    if jitter:
        mend = 'Native retries have no jitter: write 0, or "retry": "ladder".'
        raise SettingsError(f"{where}.jitter", jitter, mend)
    if queue_type == "classic":
        mend = 'Native retries need a quorum queue: write "quorum", or "retry": "ladder".'
        raise SettingsError(f"{where}.queue_type", queue_type, mend)


def check_ttl(tiers: tuple[int, ...], jitter: float, where: str, found: object) -> None:
    for tier in tiers:
        if tier * (1 + jitter) > MAX_TTL_MS:
            mend = f"{format_ms(tier)} with a jitter of {jitter:g} is over RabbitMQ's longest TTL: use less of either."
            raise SettingsError(where, found, mend)


def read_tiers(value: object, where: str) -> tuple[int, ...]:
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise SettingsError(where, value, 'Write a list of delays, such as ["10s", "1m", "10m"].')
    tiers = tuple(parse_ms(tier, f"{where}[{index}]") for index, tier in enumerate(value))
    if not tiers:
        raise SettingsError(where, value, "A ladder needs at least one tier.")
    return tiers


def check_known(raw: Mapping[str, Any], known: tuple[str, ...], where: str) -> None:
    for key in raw:
        if key not in known:
            raise SettingsError(f"{where}.{key}", raw[key], f"There is no such setting. Known: {', '.join(known)}.")


def _pick(raw: Mapping[str, Any], keys: tuple[str, ...]) -> dict[str, Any]:
    return {key: raw[key] for key in keys if key in raw}


def read_integer(value: object, where: str, low: int, high: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise SettingsError(where, value, f"Write a whole number from {low} to {high}.")
    return value


def read_share(value: object, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1:
        raise SettingsError(where, value, "Write a share of the delay from 0 up to, not including, 1.")
    return float(value)


def read_flag(value: object, where: str) -> bool:
    if not isinstance(value, bool):
        raise SettingsError(where, value, "Write True or False.")
    return value


def read_text(value: object, where: str) -> str:
    if not isinstance(value, str) or not value:
        raise SettingsError(where, value, "Write a non-empty text.")
    return value
