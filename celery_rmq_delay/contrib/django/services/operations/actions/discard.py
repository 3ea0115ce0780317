"""Discard: tasks do not run again unless they are restored."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.db.models import QuerySet
from django.utils.safestring import SafeString

from ......exceptions import RmqDelayError
from ....broker import delay
from ....models import Operation, TaskState
from ....queries import grouped, plural
from .. import states
from ..action import Action, Counted, Run, Undo, Work


class Discard(Action):
    """Discard tasks: they do not run again unless they are restored."""

    name = "discard"
    kind = Operation.Kind.DISCARD
    label = "Discard"
    explanation = (
        "These tasks will not run again, and their results become REVOKED. You can restore them: their data is kept."
    )
    states = (TaskState.PARKED, TaskState.EXHAUSTED, TaskState.UNKNOWN)
    permission = "discard"
    done = "discarded"
    not_done = "not discarded"
    again = ("Discard the failed", "Discard the rest")
    undo = Undo("restore", TaskState.DISCARDED)
    dangerous = True
    command = ("discard", TaskState.EXHAUSTED)

    def work(self, run: Run) -> Work:
        """Return what marks the tasks, and removes parked ones from their delay queues."""
        return states.Discard(run.lease, run.link, run.tick)

    def notes(self, tasks: QuerySet[Any], counts: Sequence[Counted]) -> list[str | SafeString]:
        """Return how many tasks a crash of the broker can bring back."""
        found = _in_classic(counts)
        if not found:
            return []
        parked = plural(found, "task is parked in a classic queue", "tasks are parked in classic queues")
        which = plural(found, "the task", "these tasks")
        return [
            f"{grouped(found)} {parked}. If the broker crashes within the next seconds, {which} can come back and run."
        ]


def _in_classic(counts: Sequence[Counted]) -> int:
    """Return how many of the tasks are parked in classic queues, which a crash of the broker can bring back."""
    parked = [each for each in counts if each.values["state"] == TaskState.PARKED]
    try:
        return sum(each.count for each in parked if delay().queue_type(each.values["queue"]) == "classic")
    except RmqDelayError:  # without an app the types are not known
        return sum(each.count for each in parked)
