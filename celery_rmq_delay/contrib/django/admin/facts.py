"""Lists whose rows open as a page of labels and values: collectors, and messages that they could not read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django import forms
from django.contrib import messages
from django.db.models import QuerySet
from django.db.models.functions import Left, Length
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.utils import timezone
from django.utils.cache import add_never_cache_headers
from django.utils.safestring import SafeString

from ....exceptions import RmqDelayError
from ..models import CollectorStatus, UnreadableMessage
from ..queries import COLLECTOR_SILENT_AFTER, grouped, plural
from ..services import unreadable
from ..services.operations.action import reason_field
from . import text
from .base import ReadOnlyAdmin, actor, column, found, log, log_operation, outside_transactions, row_number


class FactsAdmin(ReadOnlyAdmin):
    """A list whose rows open as a page of labels and values."""

    sortable_by = ()
    actions = None
    row_template: str

    def row_page(self, request: HttpRequest, object_id: str) -> HttpResponse:
        row = found(self.get_queryset(request), object_id)
        context = self.page_context(request, text.plain(row, 120), original=row, **self.row_context(request, row))
        return TemplateResponse(request, self.row_template, context)

    def row_context(self, request: HttpRequest, row: Any) -> dict[str, Any]:
        """Return what the template of a row needs beside the row."""
        raise NotImplementedError


def _state(row: CollectorStatus) -> SafeString:
    if row.heartbeat_at > timezone.now() - COLLECTOR_SILENT_AFTER:
        return text.badge("running", "play", "good")
    return text.badge("silent", "cross", "bad")


class CollectorStatusAdmin(FactsAdmin):
    """The collectors, latest heartbeat first."""

    ordering = ("-heartbeat_at", "-id")
    list_display = ("shown_name", "alive", "latest", "shown_events", "shown_exhausted", "lag", "shown_waiting", "error")
    list_display_links = ("shown_name",)
    row_template = "admin/rmq_delay/collector.html"

    shown_name = column("collector", lambda row: text.hostile(row.name, 120))
    alive = column("state", _state)
    latest = column("last heartbeat", lambda row: text.moment(row.heartbeat_at))
    shown_events = column("events", lambda row: grouped(row.events))
    shown_exhausted = column("exhausted messages", lambda row: grouped(row.exhausted))
    lag = column("lag", lambda row: text.duration(row.lag_ms))
    shown_waiting = column("waiting", lambda row: grouped(row.waiting))
    error = column("last error", lambda row: text.hostile(row.last_error))

    def row_context(self, request: HttpRequest, row: Any) -> dict[str, Any]:
        return {"state": _state(row)}


class DropForm(forms.Form):
    """The form of the page that confirms a drop."""

    reason = reason_field()


class RequeueForm(DropForm):
    """The form of the page that confirms a requeue."""

    queue = forms.CharField(
        label="Into the queue",
        max_length=255,
        help_text="An existing queue. Filled in where the message names the queue that it came from.",
    )
    field_order = ("queue", "reason")


class UnreadableMessageAdmin(FactsAdmin):
    """Messages that a collector could not read, the newest first."""

    ordering = ("-id",)
    list_display = ("received", "shown_queue", "size", "shown_error")
    list_display_links = ("received",)
    row_template = "admin/rmq_delay/unreadable.html"

    received = column("received", lambda row: text.moment(row.received_at))
    shown_queue = column("queue", lambda row: text.hostile(row.queue, 120))
    size = column("size", lambda row: f"{grouped(row.bytes)} {plural(row.bytes, 'byte', 'bytes')}")
    shown_error = column("error", lambda row: text.hostile(row.error_text))

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """Return the messages without their bytes."""
        found: Any = super().get_queryset(request).defer("body", "headers", "properties", "error")
        short: QuerySet[Any] = found.annotate(bytes=Length("body"), error_text=Left("error", text.ON_PAGE))
        return short

    def row_context(self, request: HttpRequest, row: Any) -> dict[str, Any]:
        problem = unreadable.readable(row).problem
        may_requeue = self.allows(request, "requeue") and not problem
        return {
            "problem": problem,
            "download_url": self.here("download", row.pk) if self.allows(request, "view_payload") else None,
            "requeue_url": self.here("requeue", row.pk) if may_requeue else None,
            "drop_url": self.here("drop", row.pk) if self.allows(request, "discard") else None,
        }

    def get_urls(self) -> list[Any]:
        acts = (
            ("download", self.download, "view_payload"),
            ("requeue", self.requeue, "requeue"),
            ("drop", self.drop, "discard"),
        )
        return [*(self.row_url(name, self._act(view), needs) for name, view, needs in acts), *super().get_urls()]

    def _act(self, view: Callable[[HttpRequest, UnreadableMessage], HttpResponse]) -> Callable[..., HttpResponse]:
        """Return a view that acts on a message with its bytes, and tells the user where it is gone or refused."""

        @outside_transactions
        def act(request: HttpRequest, object_id: str) -> HttpResponse:
            rows = UnreadableMessage.objects.filter(pk=row_number(object_id))
            row = rows.first()
            if row is None:
                problem = "Another user has requeued or dropped this message. Nothing was changed."
            else:
                try:
                    return view(request, row)
                except RmqDelayError as error:
                    problem = text.plain(error, 500)
            messages.warning(request, problem)
            return HttpResponseRedirect(
                self.here("change", row.pk) if row and rows.exists() else self.here("changelist")
            )

        return act

    def download(self, request: HttpRequest, row: UnreadableMessage) -> HttpResponse:
        """Send the body of a message, or its properties as JSON, after an entry in the audit log."""
        body, properties = unreadable.download(row, actor(request))
        log(request, "Message revealed", row)
        is_body = request.POST.get("part") != "properties"
        answer = HttpResponse(
            body if is_body else properties,
            content_type="application/octet-stream",
            headers={
                "Content-Disposition": f'attachment; filename="message-{row.pk}.{"bin" if is_body else "json"}"',
                "X-Content-Type-Options": "nosniff",
            },
        )
        add_never_cache_headers(answer)
        return answer

    def requeue(self, request: HttpRequest, row: UnreadableMessage) -> HttpResponse:
        """Show the confirmation of a requeue, or run it."""
        known = unreadable.readable(row)
        if known.problem:
            messages.error(request, known.problem)
            return HttpResponseRedirect(self.here("change", row.pk))
        form = RequeueForm(request.POST if "confirm" in request.POST else None, initial={"queue": known.origin})
        if form.is_valid():
            queue, reason = form.cleaned_data["queue"], form.cleaned_data["reason"].strip()
            done = unreadable.requeue(row, queue, actor=actor(request), reason=reason)
            log_operation(request, done.operation)
            if not done.problem:
                messages.success(request, f"The message was requeued to {text.plain(queue, 255)}.")
                return HttpResponseRedirect(self.here("changelist"))
            form.add_error("queue", text.plain(done.problem, 1_000))
        return self._confirmation(request, row, form, "Requeue", known=known)

    def drop(self, request: HttpRequest, row: UnreadableMessage) -> HttpResponse:
        """Show the confirmation of a drop, or run it."""
        form = DropForm(request.POST if "confirm" in request.POST else None)
        if not form.is_valid():
            return self._confirmation(request, row, form, "Drop", dangerous=True)
        reason = form.cleaned_data["reason"].strip()
        log_operation(request, unreadable.drop(row, actor=actor(request), reason=reason))
        messages.success(request, "The message was dropped.")
        return HttpResponseRedirect(self.here("changelist"))

    def _confirmation(
        self, request: HttpRequest, row: UnreadableMessage, form: forms.Form, act: str, **more: Any
    ) -> HttpResponse:
        shown = found(self.get_queryset(request), str(row.pk))
        back = self.here("change", row.pk)
        context = self.page_context(request, act, original=row, shown=shown, form=form, act=act, back=back, **more)
        return TemplateResponse(request, "admin/rmq_delay/unreadable_confirm.html", context)
