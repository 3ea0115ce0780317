"""The findings of `doctor`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ..commands import command
from .results import Result

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
