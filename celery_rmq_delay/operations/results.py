"""Results of operations as plain data, the findings of `doctor`, and waiting for the broker's counts."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar, Literal, TypeVar

from ..commands import command


class Result:
    """A result: its fields are plain data, times, or other results."""

    #: The precision of its times.
    timespec: ClassVar[str] = "seconds"

    def to_json(self) -> dict[str, Any]:
        """Return plain data; times in ISO 8601, UTC."""
        return {name: self._plain(value) for name, value in vars(self).items()}

    def _plain(self, value: Any) -> Any:
        if isinstance(value, Result):
            return value.to_json()
        if isinstance(value, Mapping):
            return {key: self._plain(each) for key, each in value.items()}
        if hasattr(value, "_asdict"):
            return value._asdict()
        if isinstance(value, datetime):
            return value.isoformat(timespec=self.timespec)
        return [*map(self._plain, value)] if isinstance(value, list | tuple) else value


Severity = Literal["error", "warning", "note"]


@dataclass(frozen=True)
class Finding(Result):
    """One problem with its fix.

    ``code`` is stable for scripts; ``subject`` names the queue or other object. An ``error`` loses or stops
    retries, a ``warning`` makes them worse or hides something, a ``note`` needs no action.
    """

    code: str
    severity: Severity
    subject: str
    found: str
    fix: str

    @property
    def needs_a_person(self) -> bool:
        """Whether an operator has to act."""
        return self.severity != "note"


def apply_fix() -> str:
    """Return the fix where the broker is not as planned."""
    return f"Run `{command('apply')}`, or start a worker."


def redeclare_fix() -> str:
    """Return the fix where an object exists with other arguments."""
    return f"Drain and delete it, then run `{command('apply')}`."


T = TypeVar("T")


def poll(seconds: float, inspect: Callable[[], T], pause: float, until: Callable[[T], object] = bool) -> T:
    """Inspect every ``pause`` seconds, for ``seconds`` at most, until the result is as wanted; return the last one."""
    deadline = time.monotonic() + seconds
    while not until(found := inspect()) and time.monotonic() < deadline:
        time.sleep(pause)
    return found


def listed_counts(counts: Mapping[str, int | None]) -> str:
    """Return text with the queues that have any, and how many."""
    return ", ".join(f"{name} ({count})" for name, count in counts.items() if count)
