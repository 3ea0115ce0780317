"""Who does something, and acts that are noted in the audit log as done."""

from __future__ import annotations

import getpass
import os
from dataclasses import dataclass
from typing import Any

from django.utils import timezone

from ..models import Operation


@dataclass(frozen=True)
class Actor:
    """Who does something. ``name`` is kept for good, ``user`` as long as the account is there."""

    user: Any  # an instance of AUTH_USER_MODEL, or None
    name: str


def who_runs_this() -> Actor:
    """Return the actor of a command: the system's user, which in a container may be a number that has no name."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):
        name = f"uid {os.getuid()}"
    return Actor(None, name)


def note_done(
    kind: str, actor: Actor, *, requested: int = 0, reason: str = "", message: str = "", **details: Any
) -> Operation:
    """Add an act that needs no run to the audit log, as done."""
    now = timezone.now()
    made: Operation = Operation.objects.create(
        kind=kind,
        state=Operation.State.DONE,
        user=actor.user,
        actor=actor.name[:150],
        reason=reason,
        requested=requested,
        ok=requested,
        started_at=now,
        finished_at=now,
        message=message,
        details=details,
    )
    return made
