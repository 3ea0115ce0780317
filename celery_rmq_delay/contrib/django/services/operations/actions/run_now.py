"""Run now: sends parked tasks to their origin queues before they are due."""

from __future__ import annotations

from ....models import Operation, TaskState
from .. import parked
from ..action import Action, Run, Work


class RunNow(Action):
    """Send parked tasks to their origin queues before they are due."""

    name = "run_now"
    kind = Operation.Kind.RUN_NOW
    label = "Run now"
    explanation = (
        "The delay queues are searched for these tasks, and those found go to their origin queues at once. "
        "A task that is not found is already due."
    )
    states = (TaskState.PARKED,)
    permission = "requeue"
    done = "sent to run now"
    again = ("Run the failed now", "Run the rest now")
    command = ("run-now", TaskState.PARKED)

    def work(self, run: Run) -> Work:
        """Return the search of the delay queues."""
        return parked.RunNow(run.lease, run.link, run.tick)
