"""The pages of collectors."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils import timezone
from django.utils.safestring import SafeString

from ..models import CollectorStatus
from ..queries import COLLECTOR_SILENT_AFTER, grouped
from . import text
from .base import ReadOnlyAdmin, found


class FactsAdmin(ReadOnlyAdmin):
    """A list whose rows open as a page of labels and values."""

    sortable_by = ()
    actions = None
    #: The template of a row's page.
    row_template = "admin/rmq_delay/facts.html"

    def facts(self, request: HttpRequest, row: Any) -> list[tuple[str, str | SafeString]]:
        """Return the labels and values of a row."""
        raise NotImplementedError

    def row_page(self, request: HttpRequest, object_id: str | None) -> HttpResponse:
        """Show one row."""
        return self.facts_page(request, found(self.get_queryset(request), object_id))

    def facts_page(self, request: HttpRequest, row: Any, **more: Any) -> HttpResponse:
        """Return the page of a row; ``more`` is added to the template's context."""
        context = self.page_context(request, text.plain(row, 120), facts=self.facts(request, row), original=row, **more)
        return TemplateResponse(request, self.row_template, context)


class CollectorStatusAdmin(FactsAdmin):
    """The collectors, latest heartbeat first."""

    ordering = ("-heartbeat_at", "-id")
    list_display = ("shown_name", "alive", "latest", "shown_events", "shown_exhausted", "lag", "shown_waiting", "error")
    list_display_links = ("shown_name",)

    @admin.display(description="collector")
    def shown_name(self, row: CollectorStatus) -> SafeString:
        """Return its name."""
        return text.hostile(row.name, 120)

    @admin.display(description="state")
    def alive(self, row: CollectorStatus) -> SafeString:
        """Return whether the collector is running."""
        if row.heartbeat_at > timezone.now() - COLLECTOR_SILENT_AFTER:
            return text.badge("running", "play", "good")
        return text.badge("silent", "cross", "bad")

    @admin.display(description="last heartbeat")
    def latest(self, row: CollectorStatus) -> SafeString:
        """Return the time of its last heartbeat."""
        return text.moment(row.heartbeat_at, timezone.now())

    @admin.display(description="events")
    def shown_events(self, row: CollectorStatus) -> str:
        """Return how many events it has written."""
        return grouped(row.events)

    @admin.display(description="exhausted messages")
    def shown_exhausted(self, row: CollectorStatus) -> str:
        """Return how many messages it has taken from the exhausted queue."""
        return grouped(row.exhausted)

    @admin.display(description="lag")
    def lag(self, row: CollectorStatus) -> str:
        """Return how far behind it is."""
        return text.duration(row.lag_ms)

    @admin.display(description="waiting")
    def shown_waiting(self, row: CollectorStatus) -> str:
        """Return how many messages were waiting when it last counted them."""
        return grouped(row.waiting)

    @admin.display(description="last error")
    def error(self, row: CollectorStatus) -> SafeString:
        """Return its last error."""
        return text.hostile(row.last_error)

    def facts(self, request: HttpRequest, row: Any) -> list[tuple[str, str | SafeString]]:
        """Return the labels and values of a collector."""
        now = timezone.now()
        return [
            ("State", self.alive(row)),
            ("Started", text.moment(row.started_at, now)),
            ("Last heartbeat", text.moment(row.heartbeat_at, now)),
            ("Events", grouped(row.events)),
            ("Exhausted messages", grouped(row.exhausted)),
            ("Lag", text.duration(row.lag_ms)),
            ("Waiting", grouped(row.waiting)),
            ("Delay queues hold more than the table", grouped(row.differs_by)),
            ("Difference since", text.moment(row.differs_since, now)),
            ("Last error", text.hostile(row.last_error, 5_000)),
        ]
