"""Restore: makes discarded tasks exhausted again."""

from __future__ import annotations

from ....models import Operation, TaskState
from .. import states
from ..action import Action, Run, Work


class Restore(Action):
    """Make discarded tasks exhausted again."""

    name = "restore"
    kind = Operation.Kind.RESTORE
    label = "Restore"
    explanation = (
        "Discarded tasks become exhausted again, and so do tasks whose outcome is unknown, or that were requeued and "
        "have sent no event since. Check first whether one of these has run or waits in its queue: if you requeue it, "
        "it may run twice."
    )
    states = (TaskState.DISCARDED, TaskState.UNKNOWN, TaskState.REQUEUED)
    permission = "discard"
    done = "restored"
    not_done = "not restored"
    again = ("Restore the failed", "Restore the rest")
    command = ("restore", TaskState.DISCARDED)

    def work(self, run: Run) -> Work:
        """Return what changes the states."""
        return states.Restore(run.lease)
