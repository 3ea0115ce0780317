"""Assertions on the story of a task. A failure shows the whole story."""

from __future__ import annotations

from datetime import timedelta
from typing import NoReturn

from ..durations import parse_ms
from ..events.failures import message_of, type_name
from .story import Attempt, TaskStory, seconds

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
