"""Actors of operations, and audit log entries of acts that need no run."""

from __future__ import annotations

import getpass
import os
from dataclasses import dataclass
from typing import Any

from django.utils import timezone

from ..models import Operation


@dataclass(frozen=True)
class Actor:
    """The person or account behind an operation. ``name`` stays in the audit log when ``user`` is deleted."""

    user: Any  # an instance of AUTH_USER_MODEL, or None
    name: str


def who_runs_this() -> Actor:
    """Return the actor of a command: the system user's name, or the uid where it has none, as in some containers."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):
        name = f"uid {os.getuid()}"
    return Actor(None, name)


def note_done(
    kind: str,
    actor: Actor,
    *,
    requested: int = 0,
    failed: int = 0,
    unknown: int = 0,
    reason: str = "",
    message: str = "",
    **details: Any,
) -> Operation:
    """Add an act that needs no run to the audit log, in the state DONE."""
    now = timezone.now()
    made: Operation = Operation.objects.create(
        kind=kind,
        state=Operation.State.DONE,
        user=actor.user,
        actor=actor.name[:150],
        reason=reason,
        requested=requested,
        ok=requested - failed - unknown,
        failed=failed,
        unknown=unknown,
        started_at=now,
        finished_at=now,
        message=message,
        details=details,
    )
    return made
