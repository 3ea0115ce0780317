"""Requeue gradually: canaries first, then the other tasks at a limited rate."""

from __future__ import annotations

from typing import Any

from django import forms

from .requeue import Requeue, RequeueForm

#: Defaults of the form.
CANARIES, RATE = 5, 60


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
