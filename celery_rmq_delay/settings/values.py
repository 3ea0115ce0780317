"""The settings of an app as typed values."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import inf
from typing import Literal

from ..exceptions import SettingsError
from ..ladders import Ladder, QueueType
from ..names import DEFAULT_PREFIX, MAX_NAME_BYTES, Names, delay_queue, is_derived, moving
from ..redaction import Redaction
from .validators import check_ttl, is_integer, read_tiers

RetryMode = Literal["ladder", "native"]
#: The Django app that reads events.
DJANGO_APP = "celery_rmq_delay.contrib.django"
#: The most levels of `levels`; the objects of fewer are among theirs.
MOST_LEVELS = 28
#: The number of events above which their queue drops the oldest, by default.
MOST_EVENTS = 1_000_000


@dataclass(frozen=True)
class ExactSettings:
    """The settings of calls and retries with a ``countdown`` or an ``eta``.

    ``topologies``: names in the order of preference. ``queue_type`` None is the type of the app's default queue.
    ``unit_ms``: delays are rounded up to it. ``every_task``: also for tasks that are not a `RetryableTask`.
    """

    topologies: tuple[str, ...] = ("levels",)
    unit_ms: int = 1000
    levels: int = MOST_LEVELS
    queue_type: QueueType | None = None
    every_task: bool = False


@dataclass(frozen=True)
class EventSettings:
    """``wanted`` as set; ``max_length``: the number of events above which the queue drops the oldest."""

    wanted: bool | Literal["auto"] = "auto"
    max_length: int = MOST_EVENTS
    redaction: Redaction = field(default_factory=Redaction)

    @property
    def on(self) -> bool:
        """Whether this process sends events: as set; with ``"auto"`` if the Django app that reads them is installed."""
        if self.wanted != "auto":
            return self.wanted
        registry = getattr(sys.modules.get("django.apps"), "apps", None)  # Django is not imported for this
        return bool(registry is not None and registry.ready and registry.is_installed(DJANGO_APP))


@dataclass(frozen=True)
class QueueSettings:
    """The settings of one origin queue."""

    ladder: Ladder
    queue_type: QueueType | None = None
    max_crashes: int = 3
    retry: RetryMode = "ladder"


@dataclass(frozen=True)
class Settings:
    """The settings of an app. ``queues`` maps a queue's name to its settings; None excludes a queue."""

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
        """The rules of redaction for everything that is shown to people."""
        return self.events.redaction

    @cached_property  # used at each publish
    def uses_jitter(self) -> bool:
        """Whether any ladder of the settings spreads its delays over lanes."""
        every = [self.default, *self.queues.values()]
        return any(queue is not None and queue.ladder.jitter for queue in every)

    def for_queue(self, name: str) -> QueueSettings | None:
        """Return the settings of an origin queue; None when it is excluded."""
        return self.queues.get(name, self.default)

    def task_ladder(self, queue: str, task: object) -> Ladder | None:
        """Return the ladder of a task's own ``tiers`` on ``queue``; None when the task uses the queue's."""
        tiers = getattr(task, "tiers", None)
        settings = self.for_queue(queue)
        if tiers is None or settings is None:
            return None
        where = f"tiers of task {getattr(task, 'name', task)}"
        queues = settings.ladder
        own = read_tiers(tiers, where)
        check_ttl(own, queues.jitter, where, tiers)
        return Ladder(own, queues.jitter, queues.lanes, queues.repeat_last)


def check_queue_name(
    settings: Settings, queue: str, setting: str = "rmq_delay", tasks: Iterable[Ladder | None] = ()
) -> None:
    """Raise `SettingsError` if a name derived from ``queue`` is too long for AMQP, or ``queue`` is such a name."""
    own = settings.for_queue(queue)
    if own is None:
        return
    record = queue.startswith(f"{settings.prefix}.") and queue.endswith((".record", moving(".record")))
    if record or queue in (settings.exhausted_queue, settings.names.events) or is_derived(queue):
        hint = "This package reserves such names for its queues: rename the queue, or set False to leave it alone."
        raise SettingsError(f"{setting}.queues", queue, hint)
    tiers = [
        delay_queue(queue, tier_index, ttl, settings.prefix, "quorum")  # the longer names
        for each in {own.ladder, *filter(None, tasks)}
        for tier_index in range(1, len(each) + 1)
        for ttl in each.lane_ttls(tier_index)
    ]
    longest = max(settings.names.lane0(queue, "0" * 8, 1000), *tiers, key=lambda name: len(name.encode()))
    size = len(longest.encode())
    if size > MAX_NAME_BYTES:
        hint = f"{longest!r} would have {size} bytes and AMQP allows {MAX_NAME_BYTES}: shorten the queue or the prefix."
        raise SettingsError(f"{setting}.queues", queue, hint)


class _NotSet:
    def __repr__(self) -> str:
        return "not set"


#: A ``max_retries`` that is not set on the task: the ladder decides. None means no limit.
NOT_SET = _NotSet()


def check_max_retries(max_retries: int | _NotSet | None, ladder: Ladder, task: str) -> None:
    """Raise `SettingsError` when a task asks for more retries than its ladder has tiers; None means no limit."""
    if isinstance(max_retries, _NotSet):
        return
    if max_retries is not None and not is_integer(max_retries, -inf):
        raise SettingsError(f"max_retries of task {task}", max_retries, "Write a whole number, or leave it out.")
    if ladder.retries is not None and (max_retries is None or max_retries > ladder.retries):
        hint = (
            f"The ladder is the retry budget and has {ladder.retries} tiers: leave max_retries out, add tiers, "
            "or set repeat_last=True."
        )
        raise SettingsError(f"max_retries of task {task}", max_retries, hint)
