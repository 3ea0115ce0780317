"""The views that reveal the stored message of a task, and edit and requeue it."""

from __future__ import annotations

from django import forms
from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.utils.cache import add_never_cache_headers

from ....exceptions import EditError, RmqDelayError
from ....operations.preview import Preview
from ..conf import conf
from ..models import TaskRecord
from ..services import counts, payloads
from ..services.operations.action import reason_field
from ..services.operations.edit import MAX_TEXT, edit, editable
from . import text
from .base import ReadOnlyAdmin, actor, log, log_operation
from .confirming import show_result
from .task_page import task_page


def _json(rows: int) -> forms.Textarea:
    return forms.Textarea(attrs={"rows": rows, "cols": 80, "class": "rmq-json", "spellcheck": "false", "dir": "auto"})


class EditForm(forms.Form):
    """The edited arguments, as JSON."""

    args = forms.CharField(label="Arguments", max_length=MAX_TEXT, strip=False, widget=_json(8))
    kwargs = forms.CharField(label="Keyword arguments", max_length=MAX_TEXT, strip=False, widget=_json(12))
    reason = reason_field()


def _revealed(pages: ReadOnlyAdmin, request: HttpRequest, record: TaskRecord) -> Preview:
    """Return the unredacted message, after an entry in the audit log and in the history of this list's model."""
    shown = payloads.reveal(record, actor(request))
    log(request, "Message revealed", pages.model(pk=record.pk, name=record.name, task_id=record.task_id))
    return shown


def reveal(pages: ReadOnlyAdmin, request: HttpRequest, record: TaskRecord) -> HttpResponse:
    """Log the reveal, then show a task with its unredacted message."""
    page = task_page(pages, request, record, message=_revealed(pages, request, record))
    add_never_cache_headers(page)
    return page


def edit_view(pages: ReadOnlyAdmin, request: HttpRequest, record: TaskRecord) -> HttpResponse:
    """Show the form to edit arguments, or requeue the task with those of the form.

    The form shows unredacted arguments, so that opening it is logged like a reveal.
    """
    if not conf().allow_edit:
        raise PermissionDenied
    try:
        now = editable(record)
        if "args" not in request.POST:
            _revealed(pages, request, record)
            return _edit_page(pages, request, record, EditForm(initial=now))
        form = EditForm(request.POST)
        if form.is_valid():
            return _edited(pages, request, record, form)
    except EditError as error:
        messages.error(request, text.plain(error, 500))
        return HttpResponseRedirect(pages.here("change", record.pk))
    return _edit_page(pages, request, record, form)


def _edited(pages: ReadOnlyAdmin, request: HttpRequest, record: TaskRecord, form: EditForm) -> HttpResponse:
    answer = form.cleaned_data
    who, why = actor(request), answer["reason"].strip()
    try:
        operation = edit(record, answer["args"], answer["kwargs"], actor=who, reason=why)
    except EditError as error:
        form.add_error(error.field or None, text.plain(error, 500))
        return _edit_page(pages, request, record, form)
    except RmqDelayError as error:
        messages.error(request, text.plain(error, 500))
    else:
        log_operation(request, operation)
        show_result(request, operation)
        counts.forget()
    return HttpResponseRedirect(pages.here("change", record.pk))


def _edit_page(pages: ReadOnlyAdmin, request: HttpRequest, record: TaskRecord, form: EditForm) -> HttpResponse:
    context = pages.page_context(
        request,
        "Edit and requeue",
        record=record,
        original=record,
        form=form,
        locked=[each for each in payloads.preview(record).headers if each.locked],
        back=pages.here("change", record.pk),
    )
    page = TemplateResponse(request, "admin/rmq_delay/edit.html", context)
    add_never_cache_headers(page)
    return page
