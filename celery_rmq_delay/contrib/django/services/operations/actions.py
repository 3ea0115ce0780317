"""The actions on tasks. A new one is a class here, with an instance in `ACTIONS`; lists show them in its order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django import forms
from django.db.models import QuerySet
from django.utils.html import format_html
from django.utils.safestring import SafeString

from .....exceptions import RmqDelayError
from .....operations.approval import has_own_call
from .....signals import before_requeue
from ...broker import delay, queue_problem
from ...models import Operation, TaskState
from ...queries import grouped, plural
from ..payloads import plain
from . import parked, requeue
from .action import Action, ConfirmForm, Counted, Undo, registered
from .states import Discard as DiscardWork
from .states import Restore as RestoreWork

#: Tasks whose messages the page reads to count expired ones.
CHECKED = 1_000


class RunNow(Action):
    """Send parked tasks to their origin queues before they are due."""

    name = "run_now"
    kind = Operation.Kind.RUN_NOW
    label = "Run now"
    work = parked.RunNow
    explanation = (
        "The delay queues are searched for these tasks, and those found go to their origin queues at once. "
        "A task that is not found is already due."
    )
    states = (TaskState.PARKED,)
    permission = "requeue"
    done = "sent to run now"
    again = ("Run the failed now", "Run the rest now")
    command = ("run-now", TaskState.PARKED)


class RequeueForm(ConfirmForm):
    """The form of a requeue."""

    queue = forms.CharField(
        label="Into the queue",
        required=False,
        max_length=255,
        help_text=(
            "Empty: each task goes to its origin queue. In another queue, its workers must know the tasks, and retries "
            "follow that queue's ladder."
        ),
    )
    without_expiry = forms.BooleanField(
        label="Without expiry",
        required=False,
        help_text="Publish the messages without “expires”: expired tasks run, too.",
    )

    def clean_queue(self) -> str:
        """Return the name of an existing queue, or an empty text."""
        name: str = self.cleaned_data["queue"].strip()
        if name and (problem := queue_problem(name)):
            raise forms.ValidationError(plain(problem, 500))
        return name

    def options(self) -> dict[str, Any]:
        """Add the other queue and the removed expiry, where chosen."""
        chosen = {"into_queue": self.cleaned_data["queue"], "without_expiry": self.cleaned_data["without_expiry"]}
        return {**super().options(), "details": {name: value for name, value in chosen.items() if value}}


class Requeue(Action):
    """Send exhausted tasks back to their origin queues."""

    name = "requeue"
    kind = Operation.Kind.REQUEUE
    label = "Requeue"
    work = requeue.Requeue
    explanation = "Each message is published to its origin queue as it was, with the same task id and a fresh ladder."
    states = (TaskState.EXHAUSTED,)
    permission = "requeue"
    done = "requeued"
    again = ("Requeue the failed", "Requeue the rest")
    form: type[ConfirmForm] = RequeueForm
    requeues = True
    can_be_gradual = True
    command: tuple[str, TaskState] | None = ("requeue", TaskState.EXHAUSTED)

    def notes(self, tasks: QuerySet[Any], counts: Sequence[Counted]) -> list[str | SafeString]:
        """Return how many tasks have no message or have expired, and which do more when they are called."""
        affected = sum(each.count for each in counts)
        found = [
            _without_message(counts),
            _expired(tasks, affected),
            _own_calls({each.values["name"] for each in counts}),
        ]
        return [each for each in found if each]

    def obstacle(self, counts: Sequence[Counted]) -> str:
        """Return that there is no message, where none of the tasks has one."""
        if any(each.without_message < each.count for each in counts):
            return ""
        return (
            "None of the selected tasks has a message in the database. Without its message a task cannot be requeued."
        )

    def continued_by(self, operation: Operation) -> str:
        """Return the gradual requeue for an operation with canaries or a rate."""
        return "requeue_gradually" if operation.canary or operation.rate else "requeue"


def _without_message(counts: Sequence[Counted]) -> str:
    without = sum(each.without_message for each in counts)
    if not without:
        return ""
    what = plural(without, "has no message in the database and is", "have no message in the database and are")
    return f"{grouped(without)} of these tasks {what} skipped."


def _expired(tasks: QuerySet[Any], affected: int) -> str:
    expired = requeue.expired_among(tasks, CHECKED)
    if not expired:
        return ""
    what = plural(expired, "has expired and is", "have expired and are")
    found = f"{grouped(expired)} of these tasks {what} skipped, unless you requeue without expiry."
    return found if affected <= CHECKED else f"At least {found} The first {grouped(CHECKED)} were checked."


def _own_calls(names: set[str]) -> str | SafeString:
    """Return which tasks do more in ``apply_async`` than a requeue, where no receiver of `before_requeue` does it."""
    if before_requeue.receivers:
        return ""
    try:
        known = delay().app.tasks
    except RmqDelayError:
        return ""
    own = sorted(name for name in names if has_own_call(known.get(name)))
    text = (
        "A requeue does not call the <code>apply_async</code> of {}, such as one that takes a lock: connect a receiver "
        "to the signal <code>before_requeue</code>."
    )
    return format_html(text, ", ".join(own)) if own else ""


class GradualForm(RequeueForm):
    """The form of a gradual requeue."""

    canary = forms.IntegerField(
        label="Canaries", min_value=0, max_value=1_000, initial=5, help_text="Number of tasks to requeue first."
    )
    rate = forms.IntegerField(
        label="Per minute",
        min_value=1,
        max_value=100_000,
        initial=60,
        help_text="Number of the other tasks to requeue per minute.",
    )

    def options(self) -> dict[str, Any]:
        """Add the number of canaries and the rate."""
        return {**super().options(), "canary": self.cleaned_data["canary"], "rate": self.cleaned_data["rate"]}


class Gradually(Requeue):
    """Send exhausted tasks back: canaries first, then the others at a limited rate."""

    name = "requeue_gradually"
    label = "Requeue gradually"
    explanation = (
        "The canaries are requeued first. The others follow at the rate below once every canary has recovered; "
        "if one fails again, they are not requeued."
    )
    form = GradualForm
    in_background = True
    on_task_page = False
    command = None


class Discard(Action):
    """Discard tasks: they do not run again unless they are restored."""

    name = "discard"
    kind = Operation.Kind.DISCARD
    label = "Discard"
    work = DiscardWork
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


class Restore(Action):
    """Make discarded tasks exhausted again."""

    name = "restore"
    kind = Operation.Kind.RESTORE
    label = "Restore"
    work = RestoreWork
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


class Edit(Action):
    """Requeue a task with other arguments; its form is in the admin's `message`."""

    name = "edit"
    kind = Operation.Kind.EDIT
    label = "Edit and requeue"
    work = requeue.Edit
    permission = "edit_payload"
    done = "edited and requeued"
    requeues = True


ACTIONS = registered(RunNow(), Requeue(), Gradually(), Discard(), Restore(), Edit())
