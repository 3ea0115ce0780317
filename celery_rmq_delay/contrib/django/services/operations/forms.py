"""The form of the confirmation page, which an action can extend."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django import forms

from .schedule import schedule_problem


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
