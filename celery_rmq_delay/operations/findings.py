"""The findings of `doctor`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

#: The fixes for missing objects, and for one that differs.
APPLY = "Run `celery -A proj rmq-delay apply`, or start a worker."
REDECLARE = "Drain and delete it, then run `celery -A proj rmq-delay apply`."

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
