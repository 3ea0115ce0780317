"""The buttons of a failure group: they start an action on all its open tasks, or mute it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.http import HttpRequest
from django.utils.html import format_html_join
from django.utils.safestring import SafeString

from ..models import ExhaustedTask, FailureGroup, TaskState
from ..services.operations.actions import ACTIONS
from .base import ReadOnlyAdmin
from .buttons import Button
from .text import plain

#: The form on the page of the groups that the buttons of its rows belong to.
FORM = "rmq-group-acts"

_BUTTON = (
    '<button type="submit" class="{}" form="{}" formaction="{}" name="{}" value="{}" aria-label="{}: {}">{}</button>'
)


class GroupActs:
    """What a user may do with failure groups; the permissions are read once for all rows of a page."""

    def __init__(self, pages: ReadOnlyAdmin, request: HttpRequest) -> None:
        self._pages = pages
        self._tasks = pages.page_url(request, ExhaustedTask, "changelist")
        names: Any = pages.admin_site._registry[ExhaustedTask].get_actions(request) if self._tasks else ()
        open_ones = [each for each in ACTIONS if TaskState.EXHAUSTED in each.states]
        self._acts = [each for each in open_ones if each.name in names]
        self._may_mute = pages.has_annotate_permission(request)

    def tasks_url(self, group: FailureGroup) -> str | None:
        """Return the URL of the group's open tasks; None if the user may not see them."""
        return f"{self._tasks}?group={group.pk}" if self._tasks else None

    def on_tasks(self, group: Any) -> list[Button]:
        """Return the actions on the group's open tasks that the user may start; each leads to its confirmation page.

        ``group`` is annotated by `with_open_tasks`.
        """
        url = self.tasks_url(group)
        if url is None or not group.open_tasks:
            return []
        return [
            Button(url, "action", act.name, f"{act.label}…", "button rmq-danger" if act.dangerous else "button")
            for act in self._acts
        ]

    def on_alerts(self, group: FailureGroup) -> list[Button]:
        """Return the button that mutes the group, or unmutes it; none without permission."""
        if not self._may_mute:
            return []
        value, label = ("0", "Unmute") if group.muted else ("1", "Mute")
        return [Button(self._pages.here("mute", group.pk), "muted", value, label)]


def in_row(buttons: Iterable[Button], group: FailureGroup) -> SafeString:
    """Return the buttons of a row; for screen readers each names the group."""
    named = plain(group, 80)
    rows = ((each.css, FORM, each.url, each.name, each.value, each.label, named, each.label) for each in buttons)
    return format_html_join(" ", _BUTTON, rows)
