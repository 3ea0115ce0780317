"""The ladder clock: shortens all delays, so that a test runs through a ladder in a real broker in a second."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, fields, replace

from celery import Celery

from ..amqp.route import Route
from ..app.exact import ExactDelays
from ..app.state import AppState, state_of
from ..durations import format_ms, parse_ms
from ..exceptions import RmqDelayError, SettingsError
from ..ladders import Ladder
from ..settings.values import QueueSettings, Settings
from ..topology.exact.base import Topology
from .story import DelayLike

#: The environment variable that passes the clock to other processes.
VARIABLE = "CELERY_RMQ_DELAY_TEST_CLOCK"

#: The variables from which a Celery process takes its broker; the command ``celery`` prefers the first.
_BROKER = ("BROKER_URL", "CELERY_BROKER_URL")


@dataclass(frozen=True)
class Scale:
    """Shortens delays in ms: ``longest_ms`` becomes ``target_ms``, others ``target_ms * (d / longest_ms) ** power``.

    With a ``power`` of 1 all ratios stay. With a lower one they shrink, and the order stays. Exact delays are rounded
    up to ``unit_ms``.
    """

    longest_ms: int
    target_ms: float
    power: float
    unit_ms: int

    @classmethod
    def of(cls, delays_ms: set[int], *, shortest_ms: int, longest_ms: int) -> Scale:
        """Return the scale that shortens the longest delay to ``longest_ms``, and no delay below ``shortest_ms``."""
        low, high = min(delays_ms), max(delays_ms)
        target = min(longest_ms, high)
        power = 1.0
        if low * target / high < shortest_ms and low < high:
            power = max(0.0, math.log(target / shortest_ms) / math.log(high / low))
        return cls(high, target, power, shortest_ms)

    def shorten(self, delay_ms: int) -> int:
        """Return the shortened delay in ms."""
        shorter: float = self.target_ms * (delay_ms / self.longest_ms) ** self.power
        return min(delay_ms, max(1, round(shorter)))

    def ladder(self, ladder: Ladder) -> Ladder:
        """Return a ladder with the same tiers and shorter delays."""
        return replace(ladder, tiers_ms=tuple(map(self.shorten, ladder.tiers_ms)))


@dataclass(frozen=True)
class _Short(Settings):
    """Settings with shorter delays, also for tasks that are defined later."""

    scale: Scale = Scale(1, 1, 1, 1)

    @classmethod
    def of(cls, settings: Settings, scale: Scale) -> _Short:
        def queue(own: QueueSettings) -> QueueSettings:
            return replace(own, ladder=scale.ladder(own.ladder))

        return cls(
            **{
                **{each.name: getattr(settings, each.name) for each in fields(Settings)},
                "default": queue(settings.default),
                "queues": {name: own and queue(own) for name, own in settings.queues.items()},
                "exact": replace(settings.exact, unit_ms=scale.unit_ms),
            },
            scale=scale,
        )

    def task_ladder(self, queue: str, task: object) -> Ladder | None:
        own = super().task_ladder(queue, task)
        return own and self.scale.ladder(own)


class _ShortExact(ExactDelays):
    """Exact delays that are checked as requested, and then shortened."""

    def __init__(self, settings: _Short, planned: ExactDelays) -> None:
        super().__init__(settings, planned.queue_type)
        self._scale, self._planned = settings.scale, planned

    def along(self, topology: Topology, delay_ms: int, queue: str, what: str, found: object) -> Route:
        if delay_ms:
            self._planned.check(delay_ms, what, found)
        return super().along(topology, self._scale.shorten(delay_ms) if delay_ms else 0, queue, what, found)

    def check(self, delay_ms: int, what: str, found: object) -> None:
        self._planned.check(delay_ms, what, found)

    @property
    def longest_ms(self) -> int:
        return self._planned.longest_ms


class LadderClock:
    """Context manager that shortens the delays of an app: of calls, retries and ladders.

    The longest tier of the app lasts ``longest``, and none less than ``shortest``. Ratios between delays are kept
    where that is possible; otherwise they shrink, and the order stays.

    Worker processes get the same clock with `environment` and ``-I celery_rmq_delay.testing.scaled``. The ladder with
    the short delays stays in the broker after the block: use a separate broker for tests.
    """

    def __init__(
        self, app: Celery, *, shortest: DelayLike = "20ms", longest: DelayLike = "200ms", scale: Scale | None = None
    ) -> None:
        """Take an app that `install` was called with.

        ``scale`` is that of another process. Raises `SettingsError` for queues with native retries, whose delays
        RabbitMQ fixes when they are declared.
        """
        self._delay = state_of(app)
        #: The state of the app without the clock.
        self.planned = AppState(app, self._delay.settings, self._delay.setting)
        self._stack = ExitStack()
        low, high = parse_ms(shortest, "shortest"), parse_ms(longest, "longest")
        if low > high:
            raise SettingsError("shortest", shortest, f"Write at most the longest, {format_ms(high)}.")
        _refuse_native_retry(self.planned)
        self.scale = scale or Scale.of(_delays(self.planned), shortest_ms=low, longest_ms=high)

    @property
    def environment(self) -> Mapping[str, str]:
        """The environment variables that pass the clock and the app's present broker to another process."""
        with self._delay.app.connection_for_write() as connection:
            broker = ";".join(connection.alt) or connection.as_uri(include_password=True)
        scale = json.dumps([getattr(self.scale, each.name) for each in fields(Scale)])
        return {VARIABLE: scale, **dict.fromkeys(_BROKER, broker)}

    def __enter__(self) -> LadderClock:
        """Shorten the delays. Call it before workers start and before tasks are sent."""
        if isinstance(self._delay.settings, _Short):
            hint = "Use one clock at a time; a BrokerLadder has one."
            raise RmqDelayError(f"The delays of {self._delay.app!r} are already shortened. {hint}")
        short = _Short.of(self._delay.settings, self.scale)
        self._stack.enter_context(self._delay.apart(short))
        vars(self._delay)["exact"] = _ShortExact(short, self.planned.exact)
        return self

    def __exit__(self, *_: object) -> None:
        """Restore the delays."""
        self._stack.close()


def clock_from(environment: Mapping[str, str], app: Celery) -> LadderClock:
    """Return the clock of another process, for ``app``. Raises `SettingsError` without a usable `VARIABLE`."""
    text = environment.get(VARIABLE)
    try:
        scale = Scale(*json.loads(text or ""))
        scale.shorten(1)
    except (ValueError, TypeError, ArithmeticError) as error:
        raise SettingsError(VARIABLE, text, "Set it to the value from LadderClock.environment.") from error
    return LadderClock(app, scale=scale)


def _delays(delay: AppState) -> set[int]:
    """Return all tiers of an app in ms."""
    delay.finalize()
    return {tier for ladder in _ladders(delay) for tier in ladder.tiers_ms}


def _ladders(delay: AppState) -> Iterator[Ladder]:
    queues = [settings for settings in (delay.settings.default, *delay.settings.queues.values()) if settings]
    yield from (settings.ladder for settings in queues)
    for task in delay.retryable_tasks():
        if task.tiers is not None:
            yield delay.ladder(delay.routed_to(task) or delay.app.conf.task_default_queue, task)


def _refuse_native_retry(delay: AppState) -> None:
    if delay.settings.default.retry == "native" or any(
        each and each.retry == "native" for each in delay.settings.queues.values()
    ):
        hint = 'The clock cannot shorten RabbitMQ\'s native retry: write short tiers, or "retry": "ladder", in tests.'
        raise SettingsError(f"{delay.setting}.retry", "native", hint)
