"""The stored message of a task: shown without secrets, revealed to those who may see them, edited and sent again."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import path
from django.utils.cache import add_never_cache_headers
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from ....exceptions import EditError, RmqDelayError
from ..conf import conf
from ..models import TaskRecord, TaskState
from ..services import counts, payloads
from ..services.operations.edit import MAX_TEXT, edit, editable
from . import log_entries, text
from .actions import reason_field, tell
from .base import outside_transactions
from .task_page import RecordPages


def _json(rows: int) -> forms.Textarea:
    return forms.Textarea(attrs={"rows": rows, "cols": 80, "class": "rmq-json", "episodecheck": "false", "dir": "auto"})


class EditForm(forms.Form):
    """Other arguments, as JSON."""

    args = forms.CharField(label=gettext_lazy("Arguments"), max_length=MAX_TEXT, strip=False, widget=_json(8))
    kwargs = forms.CharField(
        label=gettext_lazy("Keyword arguments"), max_length=MAX_TEXT, strip=False, widget=_json(12)
    )
    reason = reason_field()


class MessagePages(RecordPages):
    """What can be done with the message of one task."""

    def get_urls(self) -> list[Any]:
        """Return the pages, and what is sent to reveal and to edit."""
        views = {"reveal": self.reveal_view, "edit": self.edit_view}
        own = [
            path(
                f"<path:object_id>/{name}/",
                self.admin_site.admin_view(view),
                name=f"{self.opts.app_label}_{self.opts.model_name}_{name}",
            )
            for name, view in views.items()
        ]
        return [*own, *super().get_urls()]

    def record_page(self, request: HttpRequest, record: TaskRecord, **more: Any) -> HttpResponse:
        """Return the page of a task with its message: redacted, unless it is given."""
        shown = more.pop("message", None) or payloads.preview(record)
        hidden = shown.redacted and shown.size > 0
        return super().record_page(
            request,
            record,
            message=_shown(shown),
            reveal_url=self.here("reveal", record.pk) if hidden and self.has_view_payload_permission(request) else None,
            edit_url=self.here("edit", record.pk) if self.may_edit(request, record) else None,
            **more,
        )

    def may_edit(self, request: HttpRequest, record: TaskRecord) -> bool:
        """Return whether the setting, the permission and the task's state allow an edit."""
        return conf().allow_edit and self.has_edit_payload_permission(request) and record.state == TaskState.EXHAUSTED

    def reveal_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Show a task with its message as it is; who has seen it is noted before."""
        record = self.found(request, object_id)
        if request.method != "POST" or not self.has_view_payload_permission(request):
            raise PermissionDenied
        shown = payloads.reveal(record, log_entries.actor(request))
        log_entries.log(request, self._listed(record), _("Message revealed"))
        page = self.record_page(request, record, message=shown)
        add_never_cache_headers(page)
        return page

    @outside_transactions
    def edit_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Show the form of an edit, or requeue the task as the form says.

        The form shows arguments unredacted, so that opening it is noted like a reveal, and takes a POST.
        """
        record = self.found(request, object_id)
        if request.method != "POST" or not conf().allow_edit or not self.has_edit_payload_permission(request):
            raise PermissionDenied
        try:
            now = editable(record)
            if "args" not in request.POST:
                payloads.reveal(record, log_entries.actor(request))
                log_entries.log(request, self._listed(record), _("Message revealed"))
                return self._edit_page(request, record, EditForm(initial=vars(now)))
            form = EditForm(request.POST)
            if form.is_valid():
                return self._edited(request, record, form)
        except EditError as error:
            messages.error(request, text.plain(error, 500))
            return HttpResponseRedirect(self.here("change", record.pk))
        return self._edit_page(request, record, form)

    def _edited(self, request: HttpRequest, record: TaskRecord, form: EditForm) -> HttpResponse:
        answer = form.cleaned_data
        try:
            operation = edit(
                record,
                answer["args"],
                answer["kwargs"],
                actor=log_entries.actor(request),
                reason=answer["reason"].strip(),
            )
        except EditError as error:
            form.add_error(error.field or None, text.plain(error, 500))
            return self._edit_page(request, record, form)
        except RmqDelayError as error:
            messages.error(request, text.plain(error, 500))
        else:
            log_entries.log(request, self._listed(record), log_entries.told(operation))
            tell(request, operation)
            counts.forget()
        return HttpResponseRedirect(self.here("change", record.pk))

    def _edit_page(self, request: HttpRequest, record: TaskRecord, form: EditForm) -> HttpResponse:
        shown = payloads.preview(record)
        context = self.page_context(
            request,
            _("Edit and requeue"),
            record=record,
            original=record,
            form=form,
            task=text.hostile(record.name, 255),
            task_id=text.hostile(record.task_id, 255),
            locked=[each for each in _shown(shown)["headers"] if each["locked"]],
            back=self.here("change", record.pk),
        )
        page = TemplateResponse(request, "admin/rmq_delay/edit.html", context)
        add_never_cache_headers(page)
        return page

    def _listed(self, record: TaskRecord) -> Any:
        """Return a task as this list's model, under which its history stands."""
        return self.model(pk=record.pk, name=record.name, task_id=record.task_id)


def _shown(preview: payloads.Preview) -> dict[str, Any]:
    """Return a message for the template; characters that no page can show are replaced."""
    return {
        "args": text.plain(preview.args),
        "kwargs": text.plain(preview.kwargs),
        "problem": text.plain(preview.problem, 500),
        "size": preview.size,
        "content_type": text.plain(preview.content_type, 100),
        "redacted": preview.redacted,
        "headers": [
            {"name": text.hostile(each.name, 255), "value": text.plain(each.value, 2_000), "locked": each.locked}
            for each in preview.headers
        ],
        "deaths": [
            {
                "queue": text.hostile(each.queue, 255),
                "reason": text.hostile(each.reason, 40),
                "count": each.count,
                "exchange": text.hostile(each.exchange, 255),
                "keys": text.hostile(each.routing_keys, 255),
                "time": text.absolute(each.time) if each.time else text.EMPTY,
            }
            for each in preview.deaths
        ],
    }
