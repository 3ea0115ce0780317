"""The forms of the confirmation page."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django import forms

from ..services.operations.requests import schedule_problem
from ..services.operations.target import queue_problem
from . import text
from .acts import Act, Kind

#: Defaults of a gradual requeue.
CANARIES, RATE = 5, 60


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
        """Return the options of `confirm`; those of the requeue are in its ``details``."""
        answer = self.cleaned_data
        return {"reason": answer["reason"].strip(), "not_before": answer["not_before"], "details": {}}


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
            raise forms.ValidationError(text.plain(problem, 500))
        return name

    def options(self) -> dict[str, Any]:
        """Add the other queue and the removed expiry, where chosen."""
        chosen = {"into_queue": self.cleaned_data["queue"], "without_expiry": self.cleaned_data["without_expiry"]}
        return {**super().options(), "details": {name: value for name, value in chosen.items() if value}}


class GradualForm(RequeueForm):
    """The form of a gradual requeue."""

    canary = forms.IntegerField(
        label="Canaries",
        min_value=0,
        max_value=1_000,
        initial=CANARIES,
        help_text="Number of tasks to requeue first.",
    )
    rate = forms.IntegerField(
        label="Per minute",
        min_value=1,
        max_value=100_000,
        initial=RATE,
        help_text="Number of the other tasks to requeue per minute.",
    )

    def options(self) -> dict[str, Any]:
        """Add the number of canaries and the rate."""
        return {**super().options(), "canary": self.cleaned_data["canary"], "rate": self.cleaned_data["rate"]}


def form_of(act: Act) -> type[ConfirmForm]:
    """Return the form of an action."""
    if act.gradual:
        return GradualForm
    return RequeueForm if act.kind == Kind.REQUEUE else ConfirmForm
