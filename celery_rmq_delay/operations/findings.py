"""The findings of `doctor`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from ..commands import command

Severity = Literal["error", "warning", "note"]


@dataclass(frozen=True)
class Finding:
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

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return dict(vars(self))


def apply_fix() -> str:
    """Return the fix where the broker is not as planned."""
    return f"Run `{command('apply')}`, or start a worker."


def redeclare_fix() -> str:
    """Return the fix where an object exists with other arguments."""
    return f"Drain and delete it, then run `{command('apply')}`."
