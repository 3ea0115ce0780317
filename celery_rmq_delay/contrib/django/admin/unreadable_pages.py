"""The pages of unreadable messages: download, requeue and drop them."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.db.models.functions import Left, Length
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.utils import timezone
from django.utils.cache import add_never_cache_headers
from django.utils.safestring import SafeString

from ....exceptions import RmqDelayError
from ..models import UnreadableMessage
from ..queries import grouped, plural
from ..services import unreadable
from ..services.operations.action import reason_field
from . import log_entries, text
from .base import found, outside_transactions, row_number
from .collector_pages import FactsAdmin


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

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """Return the messages without their bytes."""
        found: Any = super().get_queryset(request).defer("body", "headers", "properties", "error")
        short: QuerySet[Any] = found.annotate(bytes=Length("body"), error_text=Left("error", text.ON_PAGE))
        return short

    @admin.display(description="received")
    def received(self, row: UnreadableMessage) -> SafeString:
        """Return when it was received."""
        return text.moment(row.received_at, timezone.now())

    @admin.display(description="queue")
    def shown_queue(self, row: UnreadableMessage) -> SafeString:
        """Return the queue that it came from."""
        return text.hostile(row.queue, 120)

    @admin.display(description="size")
    def size(self, row: Any) -> str:
        """Return the size of its body."""
        return f"{grouped(row.bytes)} {plural(row.bytes, 'byte', 'bytes')}"

    @admin.display(description="error")
    def shown_error(self, row: Any) -> SafeString:
        """Return why it could not be read."""
        return text.hostile(row.error_text)

    def facts(self, request: HttpRequest, row: Any) -> list[tuple[str, str | SafeString]]:
        """Return the labels and values of a message."""
        return [
            ("Received", text.moment(row.received_at, timezone.now())),
            ("Queue", text.hostile(row.queue, 255)),
            ("Size", f"undecodable ({self.size(row)})"),
            ("Error", text.hostile(row.error_text, text.ON_PAGE)),
            ("Digest", text.hostile(row.digest, 64)),
        ]

    def get_urls(self) -> list[Any]:
        """Return Django's URLs, and those of the acts."""
        views = {"download": self.download_view, "requeue": self.requeue_view, "drop": self.drop_view}
        return [*(self.row_url(name, view) for name, view in views.items()), *super().get_urls()]

    def row_page(self, request: HttpRequest, object_id: str | None) -> HttpResponse:
        """Show one message, with the acts that the user may run."""
        row = found(self.get_queryset(request), object_id)
        known = unreadable.readable(row)
        may_requeue = self.has_requeue_permission(request)
        return self.facts_page(
            request,
            row,
            problem=known.problem,
            download_url=self.here("download", row.pk) if self.has_view_payload_permission(request) else None,
            requeue_url=self.here("requeue", row.pk) if may_requeue and not known.problem else None,
            drop_url=self.here("drop", row.pk) if self.has_discard_permission(request) else None,
        )

    def download_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Send the body of a message, or its properties as JSON, after an entry in the audit log."""
        row = self._row(request, object_id, may=self.has_view_payload_permission(request))
        if row is None:
            return self._gone(request)
        body, properties = unreadable.download(row, log_entries.actor(request))
        log_entries.log(request, row, "Message revealed")
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

    @outside_transactions
    def requeue_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Show the confirmation of a requeue, or run it."""
        row = self._row(request, object_id, may=self.has_requeue_permission(request))
        if row is None:
            return self._gone(request)
        known = unreadable.readable(row)
        if known.problem:
            messages.error(request, known.problem)
            return HttpResponseRedirect(self.here("change", row.pk))
        form = RequeueForm(request.POST if "confirm" in request.POST else None, initial={"queue": known.origin})
        if form.is_valid():
            queue, reason = form.cleaned_data["queue"], form.cleaned_data["reason"].strip()
            try:
                done = unreadable.requeue(row, queue, actor=log_entries.actor(request), reason=reason)
            except RmqDelayError as error:
                return self._refused(request, row, error)
            log_entries.log_operation(request, done.operation)
            if not done.problem:
                shown = f"The message was requeued to {text.plain(queue, 255)}."
                messages.success(request, shown)
                return HttpResponseRedirect(self.here("changelist"))
            form.add_error("queue", text.plain(done.problem, 1_000))
        return self._confirmation(request, row, form, "Requeue", known=known)

    @outside_transactions
    def drop_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Show the confirmation of a drop, or run it."""
        row = self._row(request, object_id, may=self.has_discard_permission(request))
        if row is None:
            return self._gone(request)
        form = DropForm(request.POST if "confirm" in request.POST else None)
        if not form.is_valid():
            return self._confirmation(request, row, form, "Drop", dangerous=True)
        try:
            reason = form.cleaned_data["reason"].strip()
            operation = unreadable.drop(row, actor=log_entries.actor(request), reason=reason)
        except RmqDelayError as error:
            return self._refused(request, row, error)
        log_entries.log_operation(request, operation)
        messages.success(request, "The message was dropped.")
        return HttpResponseRedirect(self.here("changelist"))

    def _row(self, request: HttpRequest, object_id: str, *, may: bool) -> UnreadableMessage | None:
        """Return a message with its bytes; None where it is gone. Raises `PermissionDenied`."""
        if not may or not self.has_view_permission(request):
            raise PermissionDenied
        return UnreadableMessage.objects.filter(pk=row_number(object_id)).first()

    def _gone(self, request: HttpRequest) -> HttpResponse:
        messages.warning(request, "Another user has requeued or dropped this message. Nothing was changed.")
        return HttpResponseRedirect(self.here("changelist"))

    def _refused(self, request: HttpRequest, row: UnreadableMessage, error: RmqDelayError) -> HttpResponse:
        messages.warning(request, text.plain(error, 500))
        is_here = UnreadableMessage.objects.filter(pk=row.pk).exists()
        return HttpResponseRedirect(self.here("change", row.pk) if is_here else self.here("changelist"))

    def _confirmation(
        self, request: HttpRequest, row: UnreadableMessage, form: forms.Form, act: str, **more: Any
    ) -> HttpResponse:
        shown = found(self.get_queryset(request), str(row.pk))
        context = self.page_context(
            request,
            act,
            original=row,
            form=form,
            act=act,
            facts=self.facts(request, shown),
            back=self.here("change", row.pk),
            **more,
        )
        return TemplateResponse(request, "admin/rmq_delay/unreadable_confirm.html", context)
