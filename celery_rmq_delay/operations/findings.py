"""What an examination finds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

#: The fixes for objects that are missing, and for one that differs.
APPLY = "Run `celery -A proj rmq-delay apply`, or start a worker."
REDECLARE = "Drain and delete it, then run `celery -A proj rmq-delay apply`."

Severity = Literal["error", "warning", "note"]


@dataclass(frozen=True)
class Finding:
    """One thing that is not as it should be.

    ``code`` is stable for scripts; ``subject`` the queue or other thing it is about. An ``error`` loses or stops
    retries, a ``warning`` makes them worse or hides something, a ``note`` needs nobody.
    """

    code: str
    severity: Severity
    subject: str
    found: str
    fix: str

    @property
    def needs_a_person(self) -> bool:
        """Whether somebody has to act."""
        return self.severity != "note"

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return dict(vars(self))
