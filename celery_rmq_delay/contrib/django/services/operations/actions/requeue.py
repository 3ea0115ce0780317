"""Requeue: sends exhausted tasks back to their origin queues."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django import forms
from django.db.models import QuerySet
from django.utils.html import format_html
from django.utils.safestring import SafeString

from ......exceptions import RmqDelayError
from ......operations.approval import has_own_call
from ......signals import before_requeue
from ....broker import delay
from ....models import Operation, TaskState
from ....queries import grouped, plural
from ...plain import plain
from .. import requeue
from ..action import Action, Counted, Run, Work
from ..forms import ConfirmForm
from ..target import queue_problem

#: Tasks whose messages the page reads to count expired ones.
CHECKED = 1_000


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
    explanation = "Each message is published to its origin queue as it was, with the same task id and a fresh ladder."
    states = (TaskState.EXHAUSTED,)
    permission = "requeue"
    done = "requeued"
    again = ("Requeue the failed", "Requeue the rest")
    form: type[ConfirmForm] = RequeueForm
    requeues = True
    can_be_gradual = True
    command: tuple[str, TaskState] | None = ("requeue", TaskState.EXHAUSTED)

    def work(self, run: Run) -> Work:
        """Return what publishes the stored messages."""
        return requeue.Requeue(run.lease, run.link)

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
    expired, _checked = requeue.expired_among(tasks, CHECKED)
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
