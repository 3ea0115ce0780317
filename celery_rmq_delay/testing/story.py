"""The story of one task, its attempts and its end, as readable text; and assertions that show it if they fail."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, NoReturn

from celery import states

from ..durations import format_ms, parse_ms
from ..events.fingerprint import message_of, type_name

#: Number of attempts that the text shows at both ends of a long story.
_MOST_LINES = 10


@dataclass
class Attempt:
    """One execution.

    ``at``: seconds since the task's first attempt began. ``state``: Celery's state afterwards; None while it runs.
    ``tier`` and ``delay`` (seconds) describe the wait afterwards: in the 1-based tier, or, if that is None, for an
    exact delay. ``delay`` is None if the message does not wait.
    """

    number: int
    queue: str
    at: float
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    state: str | None = None
    exception: BaseException | None = None
    tier: int | None = None
    delay: float | None = None

    def __str__(self) -> str:
        text = f"attempt {self.number} on {self.queue} at {seconds(self.at)}: "
        if self.exception is not None:
            text += f"{type_name(self.exception)}: {message_of(self.exception)}, ".replace("\n", " ")
        if self.delay is None:
            return f"{text}{self.state or 'runs'}"
        where = "for an exact delay" if self.tier is None else f"in tier {self.tier}"
        return f"{text}parked {where} for {seconds(self.delay)}"


@dataclass
class TaskStory:
    """The attempts of one task and its end.

    ``recovered`` and ``reason`` come from the signals ``task_recovered`` and ``task_exhausted``; ``result`` is
    the task's return value.
    """

    id: str
    name: str
    attempts: list[Attempt] = field(default_factory=list)
    state: str = states.PENDING
    result: Any = None
    recovered: bool = False
    #: Why it is exhausted: ``retries_used``, ``gave_up`` or ``crashed``; None if it is not.
    reason: str | None = None
    exception: BaseException | None = None
    #: Whether the package settles its messages: it is a `RetryableTask` on a queue with a ladder.
    has_ladder: bool = False

    @property
    def parked(self) -> list[Attempt]:
        """The attempts after which the task waited."""
        return [attempt for attempt in self.attempts if attempt.delay is not None]

    @property
    def waits(self) -> list[float]:
        """The planned delay of each wait, in seconds."""
        return [attempt.delay for attempt in self.attempts if attempt.delay is not None]

    @property
    def tiers(self) -> list[int | None]:
        """The tier of each wait; None for an exact delay."""
        return [attempt.tier for attempt in self.parked]

    @property
    def is_finished(self) -> bool:
        """Whether the task has ended, and its message was settled."""
        if self.state == states.SUCCESS:
            return self.recovered or not (self.has_ladder and self.attempts[-1].number)
        if self.state == states.FAILURE:
            return self.reason is not None or not self.has_ladder
        return self.state in (states.REVOKED, states.IGNORED)

    def __str__(self) -> str:
        lines = [f"{self.name}[{self.id}] is {self.state}" + (f", exhausted: {self.reason}" if self.reason else "")]
        lines += [f"  {attempt}" for attempt in self.attempts[:_MOST_LINES]] or ["  no attempt began"]
        rest = self.attempts[_MOST_LINES:]
        if len(rest) > _MOST_LINES:
            lines.append(f"  ... {len(rest) - _MOST_LINES} attempts ...")
        return "\n".join([*lines, *(f"  {attempt}" for attempt in rest[-_MOST_LINES:])])


def seconds(value: float) -> str:
    """Return seconds as people write delays, such as ``1m30s``."""
    milliseconds = round(value * 1000)
    return format_ms(milliseconds) if milliseconds > 0 else "0s"


#: A delay as in the settings: ``"90s"``, seconds, or a timedelta.
DelayLike = str | float | timedelta


def parked(
    task: TaskStory, *, tier: int | None = None, delay: DelayLike | tuple[DelayLike, DelayLike] | None = None
) -> Attempt:
    """Assert that ``task`` was parked, in a 1-based ``tier``, for a ``delay``; return the first attempt that fits.

    With jitter, pass a pair as the delay: the shortest and the longest one that are accepted.
    """
    __tracebackhide__ = True
    low, high = delay if isinstance(delay, tuple) else (delay, delay)
    for attempt in task.parked:
        if tier in (None, attempt.tier) and _is_between(attempt.delay, low, high):
            return attempt
    where = "" if tier is None else f" in tier {tier}"
    span = "" if delay is None else f" for {_text(low)}" + (f" to {_text(high)}" if low != high else "")
    found = ", ".join(_where(attempt) for attempt in task.parked) or "none"
    return _fail(f"was not parked{where}{span}, found: {found}", task)


def recovered(task: TaskStory, *, after: int | None = None) -> None:
    """Assert that ``task`` failed first and then succeeded, after ``after`` retries (default: one or more)."""
    __tracebackhide__ = True
    retries = task.attempts[-1].number if task.attempts else 0
    if not task.recovered:
        succeeded = task.state == "SUCCESS" and not retries
        _fail("did not recover: it " + ("succeeded at once" if succeeded else f"is {task.state}"), task)
    if after is not None and retries != after:
        _fail(f"recovered after {retries} {'retry' if retries == 1 else 'retries'}, expected {after}", task)


def exhausted(
    task: TaskStory, *, reason: str | None = None, exception: type[BaseException] | None = None
) -> BaseException:
    """Assert that ``task`` went to the exhausted queue; return its last exception.

    ``reason``: ``retries_used``, ``gave_up`` or ``crashed``. ``exception``: the type of the exception, or a base of it.
    """
    __tracebackhide__ = True
    found = task.exception
    if task.reason is None or found is None:
        _fail(f"is not exhausted: it is {task.state}", task)
    if reason not in (None, task.reason):
        _fail(f"is exhausted for the reason {task.reason!r}, expected {reason!r}", task)
    if exception is not None and not isinstance(found, exception):
        _fail(f"is exhausted by {type_name(found)}: {message_of(found)}, expected {exception.__name__}", task)
    return found


def _is_between(delay: float | None, low: DelayLike | None, high: DelayLike | None) -> bool:
    if delay is None or low is None or high is None:
        return delay is not None
    return _ms(low) <= round(delay * 1000) <= _ms(high)


def _ms(delay: DelayLike) -> int:
    return parse_ms(delay, "delay") if delay else 0


def _text(delay: DelayLike | None) -> str:
    return seconds(_ms(delay or 0) / 1000)


def _where(attempt: Attempt) -> str:
    tier = "an exact delay" if attempt.tier is None else f"tier {attempt.tier}"
    return f"{tier} for {seconds(attempt.delay or 0)}"


def _fail(what: str, task: TaskStory) -> NoReturn:
    __tracebackhide__ = True
    raise AssertionError(f"{task.name} {what}\n\n{task}")
