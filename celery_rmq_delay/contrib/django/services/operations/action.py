"""An action on tasks: one class has all that the pages, the command and the runner need to know about it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from django import forms
from django.db.models import QuerySet

from ...models import Operation, TaskState
from .. import clock

if TYPE_CHECKING:
    from django.utils.safestring import SafeString

#: How far in the future an operation can start.
LATEST = timedelta(days=366)


def schedule_problem(moment: datetime) -> str:
    """Return why an operation cannot be scheduled for a time; an empty text where it can."""
    away = moment - clock.now()
    if timedelta(minutes=-1) < away < LATEST:
        return ""
    found = moment.isoformat(sep=" ", timespec="minutes")
    return f"Found {found}: choose a time from now on, within {LATEST.days} days."


def reason_field() -> forms.CharField:
    """Return the form field for the reason."""
    return forms.CharField(
        label="Why",
        required=False,
        max_length=1_000,
        widget=forms.Textarea(attrs={"rows": 2, "cols": 60}),
        help_text="Stored with the operation.",
    )


class ConfirmForm(forms.Form):
    """The form of the confirmation page."""

    reason = reason_field()
    not_before = forms.DateTimeField(
        label="Not before",
        required=False,
        widget=forms.DateTimeInput(attrs={"type": "datetime-local"}),
        help_text="Empty: as soon as “manage.py rmq_delay_operate” can run it.",
    )

    def clean_not_before(self) -> datetime | None:
        """Return the time of the start."""
        moment: datetime | None = self.cleaned_data["not_before"]
        if moment is not None and (problem := schedule_problem(moment)):
            raise forms.ValidationError(problem)
        return moment

    def options(self) -> dict[str, Any]:
        """Return the options of `confirm`; those of an action are in its ``details``."""
        answer = self.cleaned_data
        return {"reason": answer["reason"].strip(), "not_before": answer.get("not_before"), "details": {}}


@dataclass(frozen=True)
class Counted:
    """The tasks of one combination of values: how many, and how many of them have no message."""

    values: dict[str, str]
    count: int
    without_message: int


@dataclass(frozen=True)
class Undo:
    """The action, by its name, that undoes another one on the tasks that are still in a state that it left."""

    action: str
    state: TaskState


class Action:
    """What an operator can do to tasks. An instance with ``states`` is on the lists of tasks in these states."""

    #: The name in requests, and in the code.
    name: str
    #: The kind of its operations.
    kind: str
    label: str
    #: The subclass of `lease.Work` that processes the tasks of its operations.
    work: type[Any]
    #: What it does, on the confirmation page.
    explanation: str = ""
    #: The states of the tasks that it applies to.
    states: tuple[TaskState, ...] = ()
    #: The permission that it needs: a key of the admin's ``PERMISSIONS``.
    permission: str
    #: What was done to a task, and what was not done to one that an error left out, in the result.
    done: str
    not_done: str = "not sent"
    #: The labels of the buttons that continue with failed tasks, and with those that it has not tried, too.
    again: tuple[str, str] | None = None
    undo: Undo | None = None
    #: Its form on the confirmation page.
    form: type[ConfirmForm] = ConfirmForm
    #: Whether its options always leave it to ``rmq_delay_operate``, also for few tasks: its page says so.
    in_background: bool = False
    #: Whether the page of a task has its button.
    on_task_page: bool = True
    #: Whether its button looks like one that deletes.
    dangerous: bool = False
    #: Whether it publishes the stored message of a task.
    requeues: bool = False
    #: Whether its operations can have canaries and a rate.
    can_be_gradual: bool = False
    #: Its name as an action of ``rmq_delay_operate``, and the state of the tasks that this selects.
    command: tuple[str, TaskState] | None = None

    def notes(self, tasks: QuerySet[Any], counts: Sequence[Counted]) -> list[str | SafeString]:
        """Return the warnings of the confirmation page about these tasks."""
        return []

    def obstacle(self, counts: Sequence[Counted]) -> str:
        """Return why none of these tasks can be processed; empty if one may be."""
        return ""

    def continued_by(self, operation: Operation) -> str:
        """Return the name of the action that continues an operation of this kind."""
        return self.name


_BY_KIND: dict[str, Action] = {}


def registered(*actions: Action) -> tuple[Action, ...]:
    """Make actions known to `of_kind`, and return them; of several of a kind the first stands for it."""
    for each in actions:
        _BY_KIND.setdefault(each.kind, each)
    return actions


def of_kind(kind: str) -> Action | None:
    """Return the action of a kind of operation; None if operations of this kind cannot be run."""
    return _BY_KIND.get(kind)
