"""The actions on tasks: label, explanation, the states that each applies to, and their buttons. No I/O."""

from __future__ import annotations

from dataclasses import dataclass

from ..models import Operation, TaskState

Kind = Operation.Kind


@dataclass(frozen=True)
class Act:
    """An action with a confirmation page; it applies to tasks in one of ``states``."""

    name: str
    kind: str
    label: str
    explanation: str
    states: tuple[TaskState, ...]
    gradual: bool = False
    #: Whether its button looks like one that deletes.
    dangerous: bool = False


@dataclass(frozen=True)
class Button:
    """A button that sends ``name`` and ``value`` to ``url``, which asks for a confirmation where one is needed."""

    url: str
    name: str
    value: str
    label: str
    css: str = "button"
    #: The ids of the rows that it selects; without them, all rows of the URL's filters.
    rows: tuple[int, ...] = ()


RUN_NOW = Act(
    "run_now",
    Kind.RUN_NOW,
    "Run now",
    "The delay queues are searched for these tasks, and those found go to their origin queues at once. "
    "A task that is not found is already due.",
    (TaskState.PARKED,),
)


REQUEUE = Act(
    "requeue",
    Kind.REQUEUE,
    "Requeue",
    "Each message is published to its origin queue as it was, with the same task id and a fresh ladder.",
    (TaskState.EXHAUSTED,),
)


GRADUALLY = Act(
    "requeue_gradually",
    Kind.REQUEUE,
    "Requeue gradually",
    "The canaries are requeued first. The others follow at the rate below once every canary has recovered; "
    "if one fails again, they are not requeued.",
    (TaskState.EXHAUSTED,),
    gradual=True,
)


DISCARD = Act(
    "discard",
    Kind.DISCARD,
    "Discard",
    "These tasks will not run again, and their results become REVOKED. You can restore them: their data is kept.",
    (TaskState.PARKED, TaskState.EXHAUSTED, TaskState.UNKNOWN),
    dangerous=True,
)


RESTORE = Act(
    "restore",
    Kind.RESTORE,
    "Restore",
    "Discarded tasks become exhausted again, and so do tasks whose outcome is unknown, or that were requeued and "
    "have sent no event since. Check first whether one of these has run or waits in its queue: if you requeue it, "
    "it may run twice.",
    (TaskState.DISCARDED, TaskState.UNKNOWN, TaskState.REQUEUED),
)


#: The actions that the page of a task offers, depending on its state.
ACTS = (RUN_NOW, REQUEUE, DISCARD, RESTORE)
