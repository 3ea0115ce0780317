"""The story of one task: its attempts and its end, for assertions and as readable text."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from celery import states

from ..durations import format_ms
from ..events.failures import message_of, type_name

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
